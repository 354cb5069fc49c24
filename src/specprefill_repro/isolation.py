"""What this package's processes import: itself, and what its environment holds. No setting of the user's adds to it."""

import os
import site
import sys
from collections.abc import Mapping
from pathlib import Path

from specprefill_repro.errors import Exit, ReproError

HARMLESS = ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "PYTHONIOENCODING", "PYTHONUTF8", "PYTHONUNBUFFERED")
"""Python's settings that change neither what is imported nor what is computed."""
OWN = {"PYTHONPATH": str(Path(__file__).parent.parent), "PYTHONSAFEPATH": "1", "PYTHONNOUSERSITE": "1"}
"""This very copy of the package first, whichever is installed; no module from the working folder or the user's home."""


def isolated(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment for a process of this package, with all else that `environment` holds."""
    return {
        name: value for name, value in environment.items() if not name.startswith("PYTHON") or name in HARMLESS
    } | OWN


def start_isolated() -> None:
    """Start this process anew, with the same arguments, where a setting steers what Python imports or computes."""
    steering = {
        name: value
        for name, value in os.environ.items()
        if name.startswith("PYTHON") and name not in HARMLESS and OWN.get(name) != value
    }
    if steering:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], isolated(os.environ))


def check_imported(*packages: str) -> None:
    """Make sure that what this process has imported of some packages lies in its environment.

    A record names versions as installed; this is what makes them those of the code that ran.

    Raises:
        ReproError: a package, or a module of one, was imported from elsewhere or not at all.
    """
    installed = tuple(os.path.realpath(folder) + os.sep for folder in site.getsitepackages())
    for package in packages:
        modules = [module for name, module in sys.modules.items() if name.partition(".")[0] == package]
        # The folder's real path alone: an installer may link single files to its cache.
        folders = {os.path.dirname(file) for module in modules if (file := getattr(module, "__file__", None))}  # noqa: PTH120 - a tenth of the time
        strange = sorted(folder for folder in folders if not (os.path.realpath(folder) + os.sep).startswith(installed))
        if strange or not folders:
            raise ReproError(
                f"{package} was imported from {strange[0] if strange else 'nowhere'}, not from {installed[0][:-1]}.",
                "Something puts another folder before the installed packages: a .pth file, or sitecustomize.py.",
                "Remove it, or make the environment anew: rm -rf .venv && ./reproduce",
                Exit.ENVIRONMENT,
            )
