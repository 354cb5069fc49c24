"""Which cells get another block: the width of their interval decides, never what it says."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specprefill_repro.estimates.build import build_estimates
from specprefill_repro.estimates.schema import Look
from specprefill_repro.estimates.statistics import degrees_of_freedom
from specprefill_repro.estimates.stopping import blocks_to_run, look, too_few_blocks
from specprefill_repro.project import Project
from specprefill_repro.study.load import load_study
from specprefill_repro.study.plan import plan_cells, prompts_needed
from specprefill_repro.study.schema import Comparison, Study, Treatment
from synthetic_records import Fault, World, demo_study, synthetic_study_records

CELL = "padded-512-speculative-keep0.2"


def study(blocks: int, most: int = 8) -> Study:
    comparison = Comparison(
        pair="padded",
        treatment=Treatment.SPECULATIVE,
        lengths=(512,),
        keep=(0.2,),
        blocks=blocks,
        most_blocks=most,
    )
    return demo_study(comparisons=(comparison,))


def look_after(blocks: int, world: World, most: int = 8) -> Look:
    made = synthetic_study_records(study(blocks), 1, world)
    cell = plan_cells(study(1, most))[0]
    return look(cell, made.records, made.receipts, made.gates["padded"])


def test_a_quiet_machine_stops_early_and_a_noisy_one_gets_more() -> None:
    assert look_after(3, World(noise=0.003)).stop
    noisy = look_after(3, World(noise=0.1))
    assert not noisy.stop and "not below the 1.48% that are wanted" in noisy.reason
    assert look_after(4, World(noise=0.1), most=4).reason == "the cap of 8 pairs is reached"


def test_two_blocks_are_too_few_however_quiet() -> None:
    assert look_after(2, World(noise=0.0)).reason == "4 of at least 5 pairs"


def test_void_pairs_do_not_count() -> None:
    assert look_after(3, World(noise=0.0, faults=(Fault("cache", block=0),))).pairs == 4


def test_a_failed_gate_asks_for_no_further_block() -> None:
    assert look_after(1, World(gate_fails=("padded",))).stop


@pytest.mark.parametrize("ratio", [0.5, 1.0, 3.0])
def test_the_effect_does_not_matter(ratio: float) -> None:
    assert look_after(3, World(noise=0.02, true_ratio={"*": ratio})).stop == look_after(3, World(noise=0.02)).stop


@given(st.integers(1, 20), st.integers(0, 20), st.integers(1, 60))
def test_a_cell_runs_until_a_look_stops_it_or_the_cap_does(least: int, more: int, stops_at: int) -> None:
    cell = plan_cells(study(least, least + more))[0]
    assert blocks_to_run(cell, lambda blocks: blocks >= stops_at) == min(max(stops_at, least), least + more)


def test_a_cell_that_stopped_between_first_look_and_cap_keeps_the_first_look_s_degrees_of_freedom() -> None:
    assert [degrees_of_freedom(pairs, 6, 16) for pairs in (5, 6, 8, 14, 16)] == [4, 5, 5, 5, 10]
    assert degrees_of_freedom(9, 9, 9) == 8
    made = synthetic_study_records(study(5), 1, World(noise=0.02))
    fixed = build_estimates(study(5, 5), *made).cells[0]
    looked = build_estimates(study(3), *made).cells[0]
    assert (fixed.degrees, looked.degrees) == (9, 5)
    assert fixed.interval95 and looked.interval95 and looked.interval95.high > fixed.interval95.high


def test_a_cell_that_may_get_more_blocks_has_prompts_for_all_of_them() -> None:
    assert prompts_needed(study(3, 13), "padded", 512) == 48


def test_a_cap_below_the_fewest_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="most_blocks is 2, fewer than the 3 blocks"):
        study(3, 2)


@pytest.mark.parametrize(("blocks", "said"), [(1, "no cell reaches the 5 pairs"), (2, "no cell reaches"), (3, None)])
def test_a_study_whose_blocks_can_give_no_verdict_says_so_before_it_runs(blocks: int, said: str | None) -> None:
    lines = too_few_blocks(demo_study(blocks))
    assert bool(lines) == (said is not None)
    assert said is None or (said in lines[0] and "`blocks: 3` or more" in lines[0])


def test_cells_that_others_of_their_kind_make_up_for_are_no_cause_for_a_note() -> None:
    few = Comparison(pair="self", treatment=Treatment.SPECULATIVE, lengths=(2048,), keep=(0.2,), blocks=1)
    enough = demo_study(3)
    shown_beside = enough.model_copy(update={"comparisons": (*enough.comparisons, few)})
    assert too_few_blocks(shown_beside) == []
    alone = enough.model_copy(update={"comparisons": (enough.comparisons[0], few)})
    (line,) = too_few_blocks(alone)
    assert "self-2048-speculative-keep0.2: too few" in line and "padded" not in line
    assert too_few_blocks(load_study(Project(Path(__file__).parents[2]), "demo")) == []
    (tiny,) = too_few_blocks(load_study(Project(Path(__file__).parents[2]), "demo.tiny"))
    assert "at tiny scale each cell gets one block" in tiny and "`blocks:" not in tiny
