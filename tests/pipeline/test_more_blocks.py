"""On the real workflow: a cell gets further blocks as its looks decide, each a block like any other."""

import json
from pathlib import Path

import pytest

from small_project import command, make_small_project, planned_outputs

PLACEBO = "blocks: 1}\nclaims"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study whose placebo may have one to two blocks; two pairs never end it, so it gets both."""
    root = make_small_project(tmp_path_factory.mktemp("more blocks"))
    study = root / "config/studies/tiny.yaml"
    assert PLACEBO in study.read_text()
    study.write_text(study.read_text().replace(PLACEBO, PLACEBO.replace("1}", "1, most_blocks: 2}")))
    done = command(root, "run", "tiny")
    assert done.returncode == 0, done.stderr + (root / "results/studies/tiny/logs/snakemake.log").read_text()
    return root


def test_the_look_asked_for_a_second_block_and_it_counts(finished: Path) -> None:
    results = finished / "results/studies/tiny"
    look = json.loads((results / "stopping/pair-400-placebo/1.json").read_text())
    assert (look["stop"], look["pairs"]) == (False, 2) and look["reason"] == "2 of at least 5 pairs"
    cells = json.loads((results / "estimates.json").read_text())["cells"]
    assert {cell["cell"]: len(cell["pairs"]) for cell in cells} == {
        "pair-400-speculative-keep0.5": 2,
        "pair-400-placebo": 4,
    }


def test_a_finished_study_has_nothing_to_do(finished: Path) -> None:
    assert planned_outputs(finished) == set()


def test_a_higher_cap_asks_for_a_further_look_and_measures_nothing_anew(finished: Path) -> None:
    study = finished / "config/studies/tiny.yaml"
    before = study.read_text()
    try:
        study.write_text(before.replace("most_blocks: 2", "most_blocks: 3"))
        planned = planned_outputs(finished)
    finally:
        study.write_text(before)
    assert "stopping/pair-400-placebo/1.json" in planned
    assert not [path for path in planned if path.startswith("blocks/")]
