"""The method on machines whose truth is known: published bounds hold, and the published numbers can be recomputed."""

from pathlib import Path

import pytest

from specprefill_repro.calibration import results
from specprefill_repro.calibration.chain import estimates_of, prepare, render_page, run_chain, usual_study
from specprefill_repro.calibration.results import BORDER_NOISES, Calibration, method_section, run_case, world_result
from specprefill_repro.calibration.worlds import (
    COSTS,
    FAULTS,
    GAIN_WORDS,
    NOISES,
    PUBLISHED_WORLDS,
    TREATED,
    TRUE_WORLDS,
    TRUTHS,
    Case,
    claim,
    controls,
)
from specprefill_repro.engines.scripted import Fault, Noise, ScriptedEngine, World
from specprefill_repro.errors import ReproError
from specprefill_repro.project import Project
from specprefill_repro.report.data import read_embedded
from specprefill_repro.study.plan import plan_cells
from specprefill_repro.trials.block import run_block
from specprefill_repro.trials.store import Store
from specprefill_repro.verdicts.schema import Word

SAMPLE = [("very quiet", "as claimed"), ("noisy", "no effect"), ("with outliers", "half the claimed gain")]


@pytest.fixture(scope="module")
def published() -> Calibration:
    return results.published()


def test_every_world_was_calibrated(published: Calibration) -> None:
    assert {(world.noise, world.truth) for world in published.worlds} == {(n, t) for n in NOISES for t in TRUTHS}
    assert all(world.studies >= 20_000 for world in published.worlds)


def test_intervals_hold_the_truth_as_often_as_they_say(published: Calibration) -> None:
    assert published.lowest_coverage >= 0.94 and published.highest_coverage <= 0.97


def test_a_verdict_is_wrong_in_at_most_one_study_of_a_hundred(published: Calibration) -> None:
    assert published.worst_false_reproduced <= 0.01
    assert published.worst_false_not_reproduced <= 0.01


def test_the_border_is_shown_as_a_curve_and_errs_there_as_often_as_its_level_says(published: Calibration) -> None:
    for noise in BORDER_NOISES:
        curve = [point for point in published.border if point.noise == noise]
        assert [point.truth for point in curve] == list(results.BORDER)
        shares = [point.reproduced for point in curve]
        assert shares == sorted(shares) and shares[0] <= 0.01
        at_border = next(point for point in curve if point.truth == 1.0)
        assert at_border.reproduced <= 0.04


@pytest.mark.parametrize("noise, truth", SAMPLE)
def test_published_numbers_are_what_the_code_gives_today(published: Calibration, noise: str, truth: str) -> None:
    theirs = next(world for world in published.worlds if (world.noise, world.truth) == (noise, truth))
    assert world_result(noise, truth, theirs.studies, published.seed) == theirs


def test_the_method_page_shows_the_published_numbers(published: Calibration, real_project: Project) -> None:
    assert method_section(published) in (real_project.root / "docs" / "method.md").read_text()


@pytest.mark.parametrize("case", [*TRUE_WORLDS, *PUBLISHED_WORLDS, *FAULTS], ids=lambda case: case.name)
def test_a_whole_study_finds_the_truth_or_names_the_fault(case: Case, published: Calibration, tmp_path: Path) -> None:
    _, verdict = run_case(case, tmp_path)
    assert verdict.word in case.words, verdict.sentence
    assert case.says in f"{verdict.sentence} {verdict.attribution or ''}"
    theirs = next(found for found in published.cases if found.name == case.name)
    assert (theirs.word, theirs.sentence) == (verdict.word, verdict.sentence)


@pytest.mark.parametrize("case", PUBLISHED_WORLDS, ids=lambda case: case.name)
def test_published_numbers_without_a_gain_never_come_out_as_a_win(case: Case, tmp_path: Path) -> None:
    """Not on one lucky seed alone."""
    for seed in (2, 3):
        _, verdicts = run_chain(tmp_path / str(seed), case.study, case.world, [*controls(), case.claim], seed)
        word = next(v.word for v in verdicts.verdicts if v.claim.id == case.claim.id)
        assert word not in (*GAIN_WORDS, Word.SMALLER)


def test_the_page_of_a_scripted_study_holds_its_records_and_its_verdict(tmp_path: Path) -> None:
    project, verdict = run_case(FAULTS[1], tmp_path)
    page = render_page(project).read_text()
    data = read_embedded(page)
    assert len(data.records) == 72 and {record.engine for record in data.records} == {"scripted"}
    assert verdict in data.verdicts.verdicts
    assert "SpecPrefill did not run" in page


def test_a_crash_ends_the_run_and_leaves_no_part_of_the_block(tmp_path: Path) -> None:
    study, cards = usual_study(), [*controls(), claim()]
    world = World(COSTS, Noise(0.01), faults={TREATED: Fault.CRASH})
    with pytest.raises(ReproError, match="killed"):
        run_chain(tmp_path, study, world, cards)
    project = Project(tmp_path)
    stored = list((project.store / "records").rglob("*.json"))
    receipts = list((project.store / "blocks").glob("*.json"))
    assert len(stored) == 4 * len(receipts) == 12  # The cell before it, whole.
    assert not list(project.store.glob("block-*"))
    # The same command goes on from there.
    _, verdicts = run_chain(tmp_path, study, World(COSTS, Noise(0.01)), cards)
    assert {verdict.word for verdict in verdicts.verdicts} <= {Word.REPRODUCED, Word.EXCEEDED}


def test_a_noisy_machine_gets_more_blocks_and_a_quiet_one_stops_early(tmp_path: Path) -> None:
    study = usual_study(blocks=3, most_blocks=6, lengths=(1024,))
    for name, noise, expected in (("quiet", 0.003, {6}), ("noisy", 0.2, {12})):
        project, _ = run_chain(tmp_path / name, study, World(COSTS, Noise(noise)), [*controls(), claim()])
        assert {len(cell.pairs) for cell in estimates_of(project).cells} == expected


def test_a_block_that_was_measured_is_found_again_and_one_of_another_engine_is_not(tmp_path: Path) -> None:
    study = usual_study(lengths=(512,))
    project = prepare(tmp_path, study, [claim()])
    cell, engine = plan_cells(study)[0], ScriptedEngine(World(COSTS), 1, 100)
    first = run_block(project, study, cell, 0, engine)
    assert run_block(project, study, cell, 0, engine) == first and engine.done == 4
    assert first.parts["engine"] == "scripted"
    assert all(Store(project.store).get_record(record).engine == "scripted" for record in first.records)
