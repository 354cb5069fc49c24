"""What `status` prints: a line a receipt, and what it comes to. Which are stale is held against Snakemake elsewhere."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from specprefill_repro import staleness
from specprefill_repro.calibration.chain import run_chain, usual_study
from specprefill_repro.calibration.worlds import COSTS, claim, controls
from specprefill_repro.engines.scripted import Noise, ScriptedEngine, World
from specprefill_repro.files import write_json
from specprefill_repro.made_from import remembered
from specprefill_repro.project import Project
from specprefill_repro.status import Standing, State, print_status, study_status, summary_lines
from specprefill_repro.steps import Step, find_step, steps_of
from specprefill_repro.study.load import load_study
from specprefill_repro.study.schema import Study

PROJECT = Project(Path(__file__).resolve().parents[2])


def standing(state: State, seconds: float | None, why: str = "") -> Standing:
    return Standing(Step("gate/pair", (), (), dict), state, (why,) if why else (), seconds)


def printed(*found: Standing, study: str = "demo", terminal: bool = False) -> list[str]:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=200)
    print_status(PROJECT, load_study(PROJECT, study), found, console)
    return file.getvalue().splitlines()


FRESH, STALE = standing(State.FRESH, 0.0), standing(State.STALE, 240.0, "study: seed 7\t-> 8")
UNKNOWN = standing(State.MISSING, None, "not run yet")


def test_tabs_stand_between_columns_and_nowhere_else():
    lines = printed(FRESH, STALE, UNKNOWN)
    assert lines[:4] == [
        "receipt\tstate\tminutes\twhy",
        "gate/pair\tfresh\t\t",
        "gate/pair\tstale\t4.0\tstudy: seed 7 -> 8",
        "gate/pair\tmissing\t?\tnot run yet",
    ]


def test_on_a_terminal_it_is_a_table_with_the_same():
    text = "\n".join(printed(FRESH, STALE, UNKNOWN, terminal=True))
    assert all(word in text for word in ("│", "fresh", "stale", "4.0", "not run yet"))


@pytest.mark.parametrize(
    ("found", "study", "said"),
    [
        ([FRESH, FRESH], "demo", "2 fresh, 0 stale, 0 missing; nothing to do"),
        (
            [FRESH, STALE, STALE],
            "demo",
            "2 stale, 0 missing; about 8 min to bring up to date: ./reproduce demo",
        ),
        ([STALE, UNKNOWN], "demo", "about 4 min, and 1 of unknown length, to bring up to date: ./reproduce demo"),
        (
            [UNKNOWN],
            "demo.tiny",
            "not known how long it takes to bring up to date: ./reproduce demo --scale tiny",
        ),
    ],
)
def test_the_last_lines_say_what_it_comes_to_and_the_command(found, study, said):
    assert any(line.endswith(said) for line in printed(*found, study=study))


@pytest.mark.parametrize("study", ["demo", "issue-gemma4-8bit", "green2026-122b.tiny"])
def test_every_step_of_a_study_is_found_by_its_id_and_reads_only_what_steps_before_it_write(study):
    loaded = load_study(PROJECT, study)
    steps = steps_of(PROJECT, loaded)
    assert len({step.id for step in steps}) == len(steps)
    written: set[Path] = set()
    for step in steps:
        found = find_step(PROJECT, loaded, step.id)
        assert found is not None and (found.inputs, found.outputs) == (step.inputs, step.outputs)
        assert all(file in written or file.suffix == ".yaml" for file in step.inputs)
        written.update(step.outputs)
    assert find_step(PROJECT, loaded, "blocks/nobody/0") is None


def test_a_copy_of_a_study_under_another_name_needs_no_trial_that_is_in_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = usual_study(blocks=2, lengths=(512,))
    project, _ = run_chain(tmp_path, study, World(COSTS, Noise(0.01)), [*controls(), claim()])
    monkeypatch.setattr(staleness, "engine_of", lambda *given: ScriptedEngine(World(COSTS), 1, 100))
    # There is no file of a model to hash.
    monkeypatch.setattr(staleness, "model_parts", lambda project, study, model: {})
    copy = study.model_copy(update={"name": "copied"})
    write_json(project.study_file("copied"), copy)
    assert all(each.seconds is None for each in blocks_of_status(project, copy)), "nothing tells what it was made from"
    for step in steps_of(project, study):
        if all(file.is_file() for file in step.outputs):
            with remembered(project, study.name, step.id):
                pass
    found = blocks_of_status(project, copy)
    assert len(found) == 6 and {each.state for each in found} == {State.MISSING}
    assert all(each.seconds == 0 for each in found)
    said = summary_lines(project, copy, study_status(project, copy))
    assert "6 blocks need no new trial: what was measured under the same fingerprint is in results/store." in said
    assert not any("not known" in line for line in said)
    other_seed = copy.model_copy(update={"seed": 2})
    assert all(each.seconds != 0 for each in blocks_of_status(project, other_seed))
    # A receipt that is gone from the store has to be measured.
    for receipt in (project.store / "blocks").glob("*.json"):
        receipt.unlink()
    assert all(each.seconds != 0 for each in blocks_of_status(project, copy))


def blocks_of_status(project: Project, study: Study) -> list[Standing]:
    return [each for each in study_status(project, study) if each.step.id.startswith("blocks/")]
