"""Environments of server engines: installed from a hash-locked file of envs/, beside ours and apart from it."""

import shutil
import sys
from pathlib import Path

from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.files import read_model, sha256_file, write_json
from specprefill_repro.installers import run_installer
from specprefill_repro.project import Project
from specprefill_repro.schema import Frozen

LEAST_FREE_BYTES = 2_000_000_000
SHOWN = ("mlx", "mlx-lm", "mlx-cpu", "mlx-metal", "transformers", "tokenizers")


class EnvironmentReceipt(Frozen):
    """What was installed."""

    name: str
    lock_sha256: str
    versions: dict[str, str]
    """Of the packages that compute."""


def locked_environments(project: Project, kind: str) -> list[str]:
    """Names of the environments of one kind of engine that have a lock file."""
    return sorted(path.stem for path in (project.root / "envs").glob(f"{kind}-*.lock"))


def require_lock(project: Project, kind: str, name: str) -> Path:
    """The lock file of an environment.

    Raises:
        ReproError: there is none of that name.
    """
    lock = project.engine_lock(name)
    if not lock.is_file():
        raise ReproError(
            f"There is no environment {name!r}; there are: {', '.join(locked_environments(project, kind)) or 'none'}.",
            f"The study names a version of {kind} for which envs/ has no lock file.",
            f"Name another version, or write envs/{name}.in and run envs/lock {name}",
        )
    return lock


def install_environment(project: Project, kind: str, name: str) -> EnvironmentReceipt:
    """Install an environment from its lock, unless that was done before; every file is checked against its hash.

    Raises:
        ReproError: no lock, no room, no network, or a package that does not match its hash.
    """
    lock = require_lock(project, kind, name)
    folder, sha256 = project.engine_environment(name), sha256_file(lock)
    made = folder / "made-from.json"
    if made.exists():
        receipt = read_model(made, EnvironmentReceipt)
        if receipt.lock_sha256 == sha256:
            return receipt
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder.parent).free
    if free < LEAST_FREE_BYTES:
        raise ReproError(
            f"Only {free / 1e9:.1f} GB are free on the disk of {folder.parent}.",
            f"The environment {name} takes about 1 GB.",
            f"Free some space (df -h '{folder.parent}'), then run the same command again.",
            Exit.ENVIRONMENT,
        )
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    python = folder / "bin" / "python"
    install = ["--quiet", "--no-deps", "--require-hashes", "-r", str(lock)]
    if uv:
        _run(name, [sys.executable, "-m", "venv", "--without-pip", str(folder)])
        _run(name, [uv, "pip", "install", "--python", str(python), *install])
    else:
        _run(name, [sys.executable, "-m", "venv", str(folder)])
        _run(name, [str(python), "-m", "pip", "install", "--disable-pip-version-check", *install])
    receipt = EnvironmentReceipt(name=name, lock_sha256=sha256, versions=installed_versions(folder, kind))
    write_json(made, receipt)
    return receipt


def _run(name: str, command: list[str]) -> None:
    status, said = run_installer(command, f"install the environment {name}")
    if status != 0:
        last = " | ".join(line.strip() for line in said.strip().splitlines()[-3:])
        raise ReproError(
            f"Could not install the environment {name}: {last}",
            "No network, no room on the disk, or a package that does not match its recorded hash.",
            "Check the network and df -h ., then run the same command again.",
            Exit.ENVIRONMENT,
        )


def installed_versions(folder: Path, *kinds: str) -> dict[str, str]:
    """Versions of the packages that compute, as installed in an environment; missing ones are left out."""
    versions = {}
    for package in (*kinds, *SHOWN):
        stem = package.replace("-", "_")
        for found in folder.glob(f"lib/python3*/site-packages/{stem}-*.dist-info"):
            versions[package] = found.name.removeprefix(f"{stem}-").removesuffix(".dist-info")
    return versions
