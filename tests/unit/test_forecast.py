"""The plan of a study: predicted from probes on a scripted machine, and held against what that machine then does."""

import dataclasses
import io
import os
import re
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from specprefill_repro import forecast as module
from specprefill_repro import staleness
from specprefill_repro.calibration.chain import estimates_of, prepare, run_chain, usual_study
from specprefill_repro.calibration.worlds import COSTS, claim, controls
from specprefill_repro.engines.scripted import MACHINE, Cost, Noise, ScriptedEngine, World
from specprefill_repro.files import write_text
from specprefill_repro.fitting import Room
from specprefill_repro.forecast import Forecast, forecast, print_forecast
from specprefill_repro.made_from import remembered
from specprefill_repro.project import Project
from specprefill_repro.published_times import published_time
from specprefill_repro.steps import steps_of
from specprefill_repro.study.load import load_study
from specprefill_repro.study.schema import Study
from specprefill_repro.trials.job import Job, Measurement
from specprefill_repro.trials.probes import REPEATS
from specprefill_repro.verdicts.claims import load_claims
from specprefill_repro.verdicts.matching import ModelFacts

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
    assert "time: about" in said and "download: none, every model is here" in said and "disk: 0.0 GB" in said
    assert "memory: pair: about 1.0 GB dense, 1.0 GB speculative; fits in" in said


def test_where_nothing_can_be_won_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alike = {name: Cost(0.01, 0.0, 0.01) for name in COSTS}
    monkeypatch.setattr(module, "engine_of", lambda project, study, name: ScriptedEngine(World(alike), 1, 100))
    found = planned(prepare(tmp_path, STUDY, [claim()]))
    assert "SpecPrefill cannot help here: predicted speed-up 0." in text(STUDY, found)
    assert all(cell.break_even is None for cell in found.cells)


def test_probes_are_run_once(tmp_path: Path, engine: ScriptedEngine) -> None:
    project = prepare(tmp_path, STUDY, [claim()])
    first = planned(project)
    assert engine.done == 2 * 3 * REPEATS
    assert planned(project).cells == first.cells and engine.done == 2 * 3 * REPEATS


class Crowded(ScriptedEngine):
    """A machine on which others are at work while `load` is high; it makes every trial scatter."""

    load = 100.0 * (os.cpu_count() or 1)

    def measure(self, job: Job, lease: int | None) -> Measurement:
        seen = super().measure(job, lease)
        return seen.model_copy(update={"before": seen.before.model_copy(update={"load_1min": self.load})})


def test_probes_of_a_busy_machine_are_named_and_taken_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crowded = Crowded(World({name: Cost(0.01, 0.0, 0.01) for name in COSTS}), 1, 100)
    monkeypatch.setattr(module, "engine_of", lambda project, study, name: crowded)
    project, told = prepare(tmp_path, STUDY, [claim()]), list[str]()
    said = text(STUDY, planned(project))
    assert "kept this machine busy while large was timed (load average up to" in said and "timed anew" in said
    assert "It is not clear yet whether SpecPrefill can help here: predicted speed-up 0." in said
    crowded.load = 0.1
    quiet = forecast(project, STUDY, told.append)
    assert any("again, since the machine was busy" in line for line in told) and not quiet.busy
    assert "SpecPrefill cannot help here" in text(STUDY, quiet)
    done = crowded.done
    planned(project)
    assert crowded.done == done


def test_nothing_is_called_hopeless_within_the_scatter_of_the_probes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draft that costs most of the target: slightly slower by the median, and not by every pair of times."""
    costs = {"large": Cost(0.01, 0.0, 0.01), "small": Cost(0.0078, 0.0, 0.0)}
    world = World(costs, Noise(0.1))
    monkeypatch.setattr(module, "engine_of", lambda project, study, name: ScriptedEngine(world, 1, 100))
    found = planned(prepare(tmp_path, STUDY, [claim()]))
    for cell in found.cells:
        if cell.range is not None and cell.speedup is not None:
            assert cell.range[0] < cell.speedup < cell.range[1]
            assert cell.bound is not None and cell.bound > cell.range[1]
    assert "It is not clear yet whether SpecPrefill can help here: predicted speed-up" in text(STUDY, found)


def test_a_study_that_has_run_here_is_planned_by_its_own_dense_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, _ = run_chain(tmp_path, STUDY, World(COSTS, Noise(0.01)), [*controls(), claim()])
    slow = ScriptedEngine(World({name: Cost(1.0, 0.0, 1.0) for name in COSTS}), 1, 100)
    for place in (module, staleness):
        monkeypatch.setattr(place, "engine_of", lambda project, study, name: slow)
    # There is no file of a model to hash.
    monkeypatch.setattr(staleness, "model_parts", lambda project, study, model: {})
    assert not planned(project).timed_by_study, "nothing tells what the estimates were made from"
    for step in steps_of(project, STUDY):
        if all(file.is_file() for file in step.outputs):
            with remembered(project, STUDY.name, step.id):
                pass
    done, found = slow.done, planned(project)
    said = text(STUDY, found)
    assert slow.done == done and found.timed_by_study == ("large", "small")
    assert "The dense times of large, small are those that scripted itself measured here" in said
    assert "SpecPrefill can help here: predicted speed-up 2." in said and "; measured here 2." in said
    assert found.least_seconds is not None
    assert "SpecPrefill can help here" in text(STUDY, dataclasses.replace(found, busy={"small": 9.0}))
    measured = {cell.cell: cell for cell in estimates_of(project).cells}
    for cell in found.cells:
        assert cell.dense_seconds == pytest.approx(measured[cell.cell.id].dense_median_seconds, rel=0.1)
    write_text(project.gate(STUDY.name, "pair"), "changed")
    assert not planned(project).timed_by_study


def test_a_model_that_is_not_here_is_named_and_nothing_is_guessed(tmp_path: Path, engine: ScriptedEngine) -> None:
    project = prepare(tmp_path, STUDY, [claim()])
    shutil.rmtree(project.model_folder("large"))
    found = planned(project)
    said = text(STUDY, found)
    assert found.missing == ("large",) and "not here yet: large" in said and "./reproduce scripted" in said
    assert found.least_seconds is None and "time: not known; 4 of 6 cells" in said
    assert {cell.cell.pair for cell in found.cells if cell.speedup is not None} == {"self"}
    assert "Of the cells whose models are here, the best: predicted speed-up" in said and "help here" not in said


ROOT = Path(__file__).parents[2]
CARDS = load_claims(Project(ROOT)).values()
LARGE = ModelFacts("mlx-community/Qwen3.5-122B-A10B-5bit", "5-bit")
DRAFT = ModelFacts("mlx-community/Qwen3.5-2B-6bit", "6-bit")


@pytest.fixture
def shipped(tmp_path: Path) -> Project:
    """The project's configuration alone: no model is here, and none is locked but the demo's."""
    shutil.copytree(ROOT / "config", tmp_path / "config")
    write_text(tmp_path / "envs" / "pipeline.lock", "")
    return Project(tmp_path)


def on(monkeypatch: pytest.MonkeyPatch, chip: str, memory_gib: int) -> None:
    monkeypatch.setattr(module, "machine_facts", lambda: {"chip": chip, "memory_gib": str(memory_gib)})


def test_an_unlocked_study_of_the_hub_is_planned_without_any_of_its_models(
    shipped: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(monkeypatch, "Apple M2 Ultra", 128)
    monkeypatch.setattr(module, "probe_model", lambda *given: pytest.fail("there is nothing to probe"))
    study = load_study(shipped, "issue-qwen-122b")
    found = planned(shipped, study)
    said = text(study, found)
    assert found.needs.download_bytes == found.needs.disk_bytes > 84 * 10**9
    assert re.search(r"download: 8[78]\.\d GB", said)
    assert re.search(r"memory: 2b-6bit: about 94\.\d GB dense, 9[67]\.\d GB speculative; ", said)
    # Nobody published a time of the smaller drafts on that machine.
    assert "~: as on Apple M1 Ultra, Apple M2 Ultra, by the published figures i179-122b-dense-8K" in said
    assert re.search(r"time: about [\d.]+ (min|h) to [\d.]+ h, at 1 trial", said)
    assert all(cell.speedup is None for cell in found.cells), "a published speed-up is what the study is to test"
    assert "no speed-up of a cell that needs them is predicted" in said
    assert "without the models it can't be said whether there can be a gain here" in said
    tight = text(study, dataclasses.replace(found, room=Room(20 * 10**9, 10**12)))
    assert "needs about 97 GB of memory, and 20 GB can be used" in tight and "--scale tiny" in tight


def test_a_treated_time_that_nobody_published_is_not_shown_as_the_dense_one(
    shipped: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(monkeypatch, "Apple M2 Ultra", 128)
    study = load_study(shipped, "green2026-122b")
    found = planned(shipped, study)
    rows = dict(line.split("\t", 1) for line in text(study, found).splitlines() if "\t" in line)
    for cell in found.cells:
        dense, treated = rows[cell.cell.id].split("\t")[1:3]
        reads_all, cards = cell.cell.treatment.reads_all, {time.card for time in cell.published}
        assert dense.startswith("~")
        assert (treated == dense) if reads_all else (treated == "?") if len(cards) == 1 else treated.startswith("~")
    unknown = sum(row.split("\t")[2] == "?" for row in rows.values())
    assert unknown and f"?: of {unknown} of {len(found.cells)} cells nobody published" in text(study, found)


def test_the_plan_says_which_claims_will_be_judged_and_by_what_the_others_fail(
    shipped: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = load_study(shipped, "green2026-122b")
    lines = {}
    for chip in ("Apple M2 Ultra", "Apple M4 Max"):
        on(monkeypatch, chip, 128)
        lines[chip] = text(study, planned(shipped, study)).splitlines()
    judged = {chip: next(line for line in said if line.startswith("claims that get")) for chip, said in lines.items()}
    assert "green-122b-2b-8K" in judged["Apple M2 Ultra"]
    assert "green-122b-2b-8K" not in judged["Apple M4 Max"]
    (why,) = (line for line in lines["Apple M4 Max"] if re.search(r"\bgreen-122b-2b-8K\b", line))
    assert "no verdict" in why and "hardware (Apple M4 Max here)" in why


def test_what_is_foreseen_is_what_becomes_of_the_claims(
    tmp_path: Path, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(monkeypatch, MACHINE["chip"], int(MACHINE["memory_gib"]))
    cards = [*controls(), claim()]
    project, verdicts = run_chain(tmp_path, STUDY, World(COSTS, Noise(0.01)), cards)
    foreseen = {item.claim.id: item.judged for item in planned(project).foreseen}
    unjudged = ("not comparable", "not run")
    assert foreseen == {verdict.claim.id: verdict.word not in unjudged for verdict in verdicts.verdicts}


@pytest.mark.parametrize(
    ("hardware", "tokens", "draft", "keep", "card", "seconds"),
    [
        ("Apple M2 Ultra", 8192, None, 1.0, "i179-122b-dense-8K", 46.0),
        ("Apple M2 Ultra", 16000, None, 1.0, "i179-122b-dense-16K", 92.0 * 16000 / 16384),
        ("Apple M1 Ultra", 8035, None, 1.0, "omlx-issue-122b-dense-ttft", 41.48),
        ("Apple M1 Ultra", 8035, DRAFT, 0.2, "omlx-issue-122b-2b-ttft", 47.98 * 8035 / 8046),
        (None, 65536, None, 1.0, "green-abs-64k-dense", 7 * 60.0),
    ],
)
def test_a_published_time_is_that_of_the_nearest_machine_and_length(
    hardware: str | None, tokens: int, draft: ModelFacts | None, keep: float, card: str, seconds: float
) -> None:
    found = published_time(CARDS, tokens, hardware, LARGE, draft, keep)
    assert found is not None and found.card == card and found.seconds == pytest.approx(seconds)


def test_where_nobody_published_a_time_none_is_made_up() -> None:
    assert published_time(CARDS, 8192, "Apple M2 Ultra", ModelFacts("mlx-community/Qwen3.5-9B-4bit", "4-bit")) is None
    assert published_time(CARDS, 8192, "Apple M2 Ultra", LARGE, ModelFacts("x/Other-3B", "4-bit"), 0.2) is None
    assert published_time(CARDS, 8192, "Apple M2 Ultra", LARGE, DRAFT, 0.9) is None
