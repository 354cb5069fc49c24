"""Events from the jobs of a run to whoever shows its progress, over a named pipe. Without one, nothing happens."""

import json
import os

from specprefill_repro.errors import ReproError

PROGRESS_PIPE = "SPECPREFILL_PROGRESS"
"""Environment variable: path of the named pipe."""


def report(**event: object) -> None:
    """Write one event as a line; lost when nobody reads."""
    path = os.environ.get(PROGRESS_PIPE)
    if not path:
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        with os.fdopen(descriptor, "wb", buffering=0) as pipe:
            pipe.write(json.dumps(event).encode()[:4000] + b"\n")
    except OSError:
        return


def report_error(error: ReproError) -> None:
    """Hand an error to the run that shows it to the user."""
    report(
        error={
            "what": error.what[:1000],
            "why": error.why[:1000],
            "next": error.next[:1000],
            "exit_code": int(error.exit_code),
        }
    )


def report_warning(line: str) -> None:
    """Hand a line to the run, which shows it beside its progress."""
    report(warning=line[:1000])
