"""The plan of a study: predicted from probes on a scripted machine, and held against what that machine then does."""

import io
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from specprefill_repro import forecast as module
from specprefill_repro.calibration.chain import estimates_of, prepare, run_chain, usual_study
from specprefill_repro.calibration.worlds import COSTS, claim, controls
from specprefill_repro.engines.scripted import Cost, Noise, ScriptedEngine, World
from specprefill_repro.forecast import Forecast, forecast, print_forecast
from specprefill_repro.project import Project
from specprefill_repro.study.schema import Study

STUDY = usual_study(blocks=3, most_blocks=5)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> ScriptedEngine:
    made = ScriptedEngine(World(COSTS, Noise(0.01)), 1, 100)
    monkeypatch.setattr(module, "engine_of", lambda project, study, name: made)
    return made


def planned(project: Project, study: Study = STUDY) -> Forecast:
    return forecast(project, study, lambda line: None)


def text(study: Study, found: Forecast) -> str:
    console = Console(file=io.StringIO(), width=200)
    print_forecast(study, found, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_every_cell_is_predicted_within_10_percent_of_what_is_then_measured(
    tmp_path: Path, engine: ScriptedEngine
) -> None:
    found = {cell.cell.id: cell for cell in planned(prepare(tmp_path / "a", STUDY, [claim()])).cells}
    project, _ = run_chain(tmp_path / "b", STUDY, World(COSTS, Noise(0.01)), [*controls(), claim()])
    for measured in estimates_of(project).cells:
        expected = found[measured.cell]
        assert measured.dense_median_seconds == pytest.approx(expected.dense_seconds, rel=0.1)
        assert measured.treated_median_seconds == pytest.approx(expected.treated_seconds, rel=0.1)
        if expected.speedup is not None:
            assert measured.speedup == pytest.approx(expected.speedup, rel=0.1)
            assert measured.predicted_speedup == pytest.approx(expected.speedup, rel=0.1)
            assert measured.bound_speedup == pytest.approx(expected.bound, rel=0.1)


def test_the_plan_says_what_it_takes_and_that_it_can_help(tmp_path: Path, engine: ScriptedEngine) -> None:
    said = text(STUDY, planned(prepare(tmp_path, STUDY, [claim()])))
    assert "trials: 72 to 120" in said and "SpecPrefill can help here: predicted speed-up 2.7" in said
    assert "time: about" in said and "disk: 0.0 GB" in said and "memory: 4.3 GB" in said


def test_where_nothing_can_be_won_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alike = {name: Cost(0.01, 0.0, 0.01) for name in COSTS}
    monkeypatch.setattr(module, "engine_of", lambda project, study, name: ScriptedEngine(World(alike), 1, 100))
    found = planned(prepare(tmp_path, STUDY, [claim()]))
    assert "SpecPrefill cannot help here: predicted speed-up 0." in text(STUDY, found)
    assert all(cell.break_even is None for cell in found.cells)


def test_probes_are_run_once(tmp_path: Path, engine: ScriptedEngine) -> None:
    project = prepare(tmp_path, STUDY, [claim()])
    first = planned(project)
    assert engine.done == 6
    assert planned(project) == first and engine.done == 6


def test_a_model_that_is_not_here_is_named_and_nothing_is_guessed(tmp_path: Path, engine: ScriptedEngine) -> None:
    project = prepare(tmp_path, STUDY, [claim()])
    shutil.rmtree(project.model_folder("large"))
    found = planned(project)
    said = text(STUDY, found)
    assert found.missing == ("large",) and "not here yet: large" in said and "./reproduce scripted" in said
    assert found.disk_bytes is None and found.least_seconds is None
    assert {cell.cell.pair for cell in found.cells if cell.speedup is not None} == {"self"}
