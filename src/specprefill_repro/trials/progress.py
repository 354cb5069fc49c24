"""Events from the jobs of a run to whoever shows its progress, over a named pipe. Without one, nothing happens."""

import json
import os
import sys

from specprefill_repro.errors import ReproError

PROGRESS_PIPE = "SPECPREFILL_PROGRESS"
"""Environment variable: path of the named pipe."""
MAX_LINE_BYTES = 4_000
"""Linux writes up to 4,096 bytes (PIPE_BUF) to a pipe in one piece, whoever else writes at the same time."""
MAX_TEXT_BYTES = 1_000
"""Of each text in an event, as JSON."""


def report(**event: object) -> None:
    """Write one event as a line; lost when nobody reads, or when it is longer than `MAX_LINE_BYTES`."""
    path, line = os.environ.get(PROGRESS_PIPE), _json(event) + b"\n"
    if not path or len(line) > MAX_LINE_BYTES:
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        with os.fdopen(descriptor, "wb", buffering=0) as pipe:
            pipe.write(line)
    except OSError:
        return


def report_error(error: ReproError) -> None:
    """Hand an error to the run that shows it to the user."""
    report(
        error={
            "what": _cut(error.what),
            "why": _cut(error.why),
            "next": _cut(error.next),
            "exit_code": int(error.exit_code),
        }
    )


def say(line: str) -> None:
    """Tell a line to whoever looks: on standard error, and to the run that shows its progress."""
    print(line, file=sys.stderr)
    report_warning(line)


def report_warning(line: str) -> None:
    """Hand a line to the run, which shows it beside its progress."""
    report(warning=_cut(line))


def _json(value: object) -> bytes:
    # Not as \\u escapes, which take two to six times the room of the text.
    return json.dumps(value, ensure_ascii=False).encode(errors="replace")


def _cut(text: str) -> str:
    """The beginning of a text that takes at most `MAX_TEXT_BYTES` as JSON."""
    text = text[:MAX_TEXT_BYTES]
    while (size := len(_json(text))) > MAX_TEXT_BYTES:
        text = text[: len(text) * MAX_TEXT_BYTES // size]
    return text
