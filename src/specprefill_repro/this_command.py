"""How this program was started: what a hint has to name, so that whoever follows it can paste it."""

import os
import shlex
import shutil
import sys
from pathlib import Path

NAME = "specprefill-repro"
IN_CHECKOUT = f".venv/bin/{NAME}"
"""Where `reproduce` and `test` put it."""


def this_command() -> str:
    """The command as a shell in the current folder finds it.

    The name alone where the shell finds the same file by it; else its path, from the current folder if it lies below.
    """
    started = Path(sys.argv[0])
    if started.name == "__main__.py":
        return f"{_shown(Path(sys.executable))} -m specprefill_repro"
    # Anything else, such as a test or another program, has it as a library.
    return _shown(started) if started.name == NAME else IN_CHECKOUT


def _shown(file: Path) -> str:
    found = shutil.which(file.name)
    if found is not None and Path(found).absolute() == file.absolute():
        return file.name
    below = file.absolute()
    here = Path.cwd()
    return shlex.quote(os.path.relpath(below, here) if below.is_relative_to(here) else str(below))
