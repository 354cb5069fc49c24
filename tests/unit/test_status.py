"""What `status` prints: a line a receipt, and what it comes to. Which are stale is held against Snakemake elsewhere."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from specprefill_repro.project import Project
from specprefill_repro.status import Standing, State, print_status
from specprefill_repro.steps import Step, find_step, steps_of
from specprefill_repro.study.load import load_study

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
