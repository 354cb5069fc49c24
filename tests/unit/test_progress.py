"""Events on their way to the run that shows them: each is one whole line of JSON, whatever its text."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.plain_text import without_controls
from specprefill_repro.trials.progress import PROGRESS_PIPE, report, report_error, report_warning

any_text = st.text(st.characters(), max_size=2000)


@pytest.fixture
def pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    monkeypatch.setenv(PROGRESS_PIPE, str(path))
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    yield descriptor
    os.close(descriptor)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example("模型" * 1000, "\0" * 2000, '"\\' * 1000)
@example("\ud800" * 1500, "ü" * 1500, "😀" * 1500)
@given(any_text, any_text, any_text)
def test_an_error_arrives_whole_whatever_its_letters(pipe: int, what: str, why: str, next: str) -> None:
    report_error(ReproError(what, why, next, Exit.TRIAL))
    line = os.read(pipe, 100_000)
    assert line.endswith(b"\n") and line.count(b"\n") == 1 and len(line) <= 4096
    error = json.loads(line)["error"]
    assert error["exit_code"] == Exit.TRIAL
    for name, text in {"what": what, "why": why, "next": next}.items():
        said = without_controls(text)
        assert said.startswith(error[name])
        assert error[name] == said or len(json.dumps(error[name], ensure_ascii=False).encode()) > 900


def test_a_short_text_arrives_as_it_is_and_an_endless_event_not_at_all(pipe: int) -> None:
    report_warning("Größe: 模型")
    report(block="x" * 5000)
    assert [json.loads(line) for line in os.read(pipe, 100_000).splitlines()] == [{"warning": "Größe: 模型"}]
