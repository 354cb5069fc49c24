"""A run that is followed by its events: what an interruption leaves behind."""

import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from specprefill_repro import run
from synthetic_records import demo_study


class Interrupted(Console):
    """A terminal at which somebody presses Ctrl-C when the first line is shown."""

    def print(self, *_: Any, **__: Any) -> None:
        raise KeyboardInterrupt


def test_an_interrupted_run_leaves_no_thread_that_fails_or_writes_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    pipe = tmp_path / "progress"
    os.mkfifo(pipe)
    # Kept open, so that the line is still there when the run begins to read.
    writer = os.open(pipe, os.O_RDWR)
    os.write(writer, b'{"warning": "busy"}\n')
    process = subprocess.Popen(["sleep", "60"])
    with pytest.raises(KeyboardInterrupt):
        run._follow(process, pipe, run._Work(demo_study()), Interrupted())
    # Takes the number of the descriptor that the run has closed.
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
    process.kill()
    process.wait()
    for thread in threading.enumerate():
        if "tell_end" in thread.name:
            thread.join(10)
    os.close(other)
    os.close(writer)
    assert failed == []
    assert (tmp_path / "other").read_bytes() == b""
