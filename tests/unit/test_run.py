"""A run that is followed by its events: what an interruption leaves behind."""

import html
import io
import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from specprefill_repro import run, staleness
from specprefill_repro.calibration.chain import render_page, run_chain, usual_study
from specprefill_repro.calibration.worlds import COSTS, claim, controls
from specprefill_repro.engines.scripted import Noise, ScriptedEngine, World
from specprefill_repro.made_from import remembered
from specprefill_repro.steps import steps_of
from specprefill_repro.study.plan import plan_cells
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


def ended(tmp_path: Path, *events: dict[str, Any]) -> "tuple[subprocess.Popen[bytes], Path, int]":
    """A process that has ended well, the pipe with its events, and a descriptor that keeps them there."""
    pipe = tmp_path / "progress"
    os.mkfifo(pipe)
    writer = os.open(pipe, os.O_RDWR)
    os.write(writer, b"".join(json.dumps(event).encode() + b"\n" for event in events))
    process = subprocess.Popen(["true"])
    process.wait()
    return process, pipe, writer


def test_a_run_that_goes_on_counts_what_was_finished_before(tmp_path: Path) -> None:
    study = demo_study(2)
    cell, other = (planned.id for planned in plan_cells(study)[:2])
    before = {(cell, 0), (cell, 1)}
    work = run._Work(study, set(before), expected=300.0)
    assert work.blocks == 22 and 0 < work.done < work.total
    assert work.in_words() == "demo: 22 blocks of four trials, 2 of them finished before; about 5 min left."
    done = work.done
    # Found again, then measured.
    events = [{"block": cell, "index": 1}, {"block": other, "index": 0}, {"block": other, "index": 1}]
    process, pipe, writer = ended(tmp_path, *events)
    console = Console(file=io.StringIO(), width=40)
    assert run._follow(process, pipe, work, console) == []
    os.close(writer)
    assert len(work.finished) == 4 and work.done == pytest.approx(2 * done)
    # One line a cell, whole however narrow.
    assert console.file.getvalue().splitlines() == [  # type: ignore[attr-defined]
        f"{other}: finished; 4 of 22 blocks, about 5 min left"
    ]


def test_a_run_that_has_ended_well_shows_all_as_done(tmp_path: Path) -> None:
    study = demo_study(1)
    process, pipe, writer = ended(tmp_path, {"block": plan_cells(study)[0].id, "index": 0})
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    run._follow(process, pipe, run._Work(study, expected=60.0), console)
    os.close(writer)
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "11/11" in said and "left" not in said.rpartition("11/11")[2]


def test_a_run_begins_with_the_blocks_that_are_as_they_should_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = usual_study(blocks=2, lengths=(512,))
    project, _ = run_chain(tmp_path, study, World(COSTS, Noise(0.01)), [*controls(), claim()])
    monkeypatch.setattr(staleness, "engine_of", lambda *given: ScriptedEngine(World(COSTS), 1, 100))
    # There is no file of a model to hash.
    monkeypatch.setattr(staleness, "model_parts", lambda project, study, model: {})
    for step in steps_of(project, study):
        if step.id.startswith("blocks/") or not step.id.startswith(("stopping", "estimates", "verdicts", "report")):
            with remembered(project, study.name, step.id):
                pass
    first, second = plan_cells(study)[:2]
    project.block_receipt(study.name, first.id, 1).unlink()
    project.made_from(study.name, f"blocks/{second.id}/0").unlink()
    work = run._work_left(project, study)
    assert len(work.finished) == 4 and not {(first.id, 1), (second.id, 0)} & work.finished


def test_the_answer_of_a_run_is_that_of_its_report(tmp_path: Path) -> None:
    study = usual_study(blocks=3, lengths=(512,))
    project, _ = run_chain(tmp_path, study, World(COSTS, Noise(0.01)), [claim()])
    line = run.answer_line(project, study)
    page = html.unescape(render_page(project).read_text())
    headline, _, sentence = line.partition(". ")
    assert headline == "Yes" and "\n" not in line
    assert " ".join(sentence.split()) in " ".join(page.split())


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_a_run_under_nohup_outlives_its_terminal(handler: signal.Handlers) -> None:
    before = signal.signal(signal.SIGHUP, handler)
    try:
        with run._ends_like_a_key_press():
            if handler is signal.SIG_IGN:
                os.kill(os.getpid(), signal.SIGHUP)
            else:
                with pytest.raises(KeyboardInterrupt):
                    os.kill(os.getpid(), signal.SIGHUP)
                    time.sleep(1)
        assert signal.getsignal(signal.SIGHUP) is handler
    finally:
        signal.signal(signal.SIGHUP, before)
