"""Each reason for a missing gain is found on a scripted machine where it is the truth, and named in one sentence."""

import pytest

from specprefill_repro.estimates.build import build_estimates
from specprefill_repro.estimates.schema import CellEstimate
from specprefill_repro.study.schema import Study
from specprefill_repro.verdicts.attribution import attribute
from specprefill_repro.verdicts.schema import Attribution
from synthetic_records import Fault, World, demo_study, synthetic_study_records

STUDY = demo_study()
CELL = "padded-1024-speculative-keep0.2"


def measured(world: World, name: str = CELL, study: Study = STUDY) -> CellEstimate:
    found = build_estimates(study, *synthetic_study_records(study, 1, world))
    return next(cell for cell in found.cells if cell.cell == name)


def reason(world: World, name: str = CELL, study: Study = STUDY, expected: float | None = None) -> Attribution:
    found = attribute(study, measured(world, name, study), 0.03, expected)
    assert found is not None
    return found


def applying(found: Attribution) -> set[str]:
    return {cause.name for cause in found.causes if cause.applies}


def test_a_clear_gain_needs_no_reason() -> None:
    assert attribute(STUDY, measured(World()), 0.03, 2.0) is None
    assert attribute(STUDY, measured(World(), "padded-512-placebo"), 0.03, None) is None


def test_a_cell_that_was_never_run_needs_no_reason() -> None:
    made = synthetic_study_records(STUDY, 1)
    empty = build_estimates(STUDY, [], [], made.gates, made.log_probabilities).cells[0]
    assert attribute(STUDY, empty, 0.03, None) is None


def test_a_fallback_is_named_with_its_reason() -> None:
    found = reason(World(faults=(Fault("fallback"),)))
    assert found.sentence == "did not run: 6 of 6 ended as `fallback: scoring raised AttributeError`"
    assert applying(found) == {"did not run"}


def test_a_fallback_in_some_trials_is_named_when_the_rest_show_no_gain() -> None:
    found = reason(World(faults=(Fault("fallback", block=0),), true_ratio={CELL: 1.0}))
    assert found.sentence.startswith("did not run: 2 of 6")


def test_a_cache_hit_is_named() -> None:
    found = reason(World(faults=(Fault("cache"),)))
    assert found.sentence == "cache hit: 6 trials began with tokens in the KV cache"


def test_a_weak_baseline_is_named() -> None:
    # It looks like a gain of 1.9; the other cells keep their honest baseline.
    assert reason(World(dense_factor={CELL: 1.9}, true_ratio={CELL: 1.0})).sentence.startswith(
        "weak baseline: the dense arm took"
    )


def test_a_draft_that_costs_as_much_as_the_target_is_named() -> None:
    found = reason(World(), "self-1024-speculative-keep0.2")
    assert found.sentence.startswith("draft too slow: it costs as much as the target")
    assert "below break-even" in applying(found)


def test_a_slow_draft_of_another_model_is_named() -> None:
    found = reason(World(draft_share=0.7), expected=2.0)
    assert found.sentence.startswith("draft too slow: the draft reads ")
    assert "did not run" not in applying(found)


def test_scoring_that_takes_a_large_share_is_named() -> None:
    study = demo_study(selection=STUDY.selection.model_copy(update={"look_ahead": 64}))
    world = World(per_token=0.05, per_token_squared=0.0)
    found = reason(world, "padded-512-speculative-keep0.2", study, expected=100.0)
    assert found.sentence.startswith("scoring share: look-ahead, scoring and selection take")


def test_keeping_more_than_asked_is_named_when_nothing_else_explains_a_smaller_gain() -> None:
    found = reason(World(), "padded-512-speculative-keep0.1", expected=100.0)
    assert found.sentence.startswith("kept more than asked: the target read 25% of the prompt, 10% was asked for")


def test_noise_is_named_when_it_hides_the_answer() -> None:
    found = reason(World(noise=0.8, draft_share=0.25))
    assert "noise too large" in applying(found) and found.sentence.startswith("noise too large: the 95 % interval of 6")


def test_noise_is_not_blamed_for_a_loss_that_the_costs_explain() -> None:
    """The prediction lies above the interval: whatever the noise, it is not what hides the gain."""
    found = reason(World(noise=0.05, draft_share=0.9), "padded-512-speculative-keep0.3")
    assert found.sentence.startswith("draft too slow: ")


def test_a_prompt_below_the_break_even_is_named() -> None:
    """Attention's square makes the target dearer with length, so that this draft pays at 1,024 tokens alone."""
    world = World(per_token=0.01, per_token_squared=1e-6, draft_share=0.7)
    found = reason(world, "padded-512-speculative-keep0.2")
    assert "below break-even" in applying(found)
    cause = next(cause for cause in found.causes if cause.name == "below break-even")
    assert (
        "0.90 at 512 tokens, so nothing can be won at this length; it wins from about 984 tokens on" in cause.evidence
    )


def test_a_pair_that_wins_at_no_length_says_up_to_which() -> None:
    cell = measured(World(draft_share=1.5))
    assert cell.break_even_tokens is None and cell.break_even_limit == 8 * 1024
    found = attribute(STUDY, cell, 0.03, None)
    assert found is not None
    cause = next(cause for cause in found.causes if cause.name == "below break-even")
    assert "up to 8,192 tokens there is no length from which on it wins" in cause.evidence


def test_a_draft_timed_at_one_length_leaves_the_break_even_unknown_with_the_reason() -> None:
    kept = [c for c in STUDY.comparisons if c.pair != "self"]
    kept += [c.model_copy(update={"lengths": (1024,)}) for c in STUDY.comparisons if c.pair == "self"]
    cell = measured(World(), study=STUDY.model_copy(update={"comparisons": tuple(kept)}))
    assert (cell.break_even_tokens, cell.break_even_limit) == (None, None)
    assert cell.break_even_problem == "the draft alone was timed at one length"


def test_a_target_that_is_its_own_draft_is_not_told_as_two_models_of_two_speeds() -> None:
    found = reason(World(), "self-1024-speculative-keep0.2")
    assert "draft too slow: it costs as much as the target, which is its own draft: it takes " in found.sentence
    assert "tokens/s" not in found.sentence and " to save " in found.sentence


def test_no_gain_without_any_reason_is_called_that() -> None:
    sound = measured(World(), "padded-1024-speculative-keep0.2")
    interval = sound.interval95
    assert interval is not None
    flat = sound.model_copy(
        update={
            "interval95": interval.model_copy(update={"low": 0.99, "high": 1.01}),
            "actual_keep": 0.2,
            "treated_phases": sound.treated_phases | {"look_ahead": 0.0, "draft_prefill": 0.0},
        }
    )
    found = attribute(STUDY, flat, 0.03, None)
    assert found is not None and found.sentence.startswith("no gain:")


def test_a_failed_gate_is_not_called_a_missing_gain() -> None:
    found = reason(World(gate_fails=("padded",)))
    assert found.sentence.startswith("nothing counts: no trial counts, because the gate failed")


@pytest.mark.parametrize("world", [World(), World(faults=(Fault("fallback"),)), World(noise=0.3)])
def test_the_table_holds_every_cause_that_was_looked_at(world: World) -> None:
    found = reason(world, "self-1024-speculative-keep0.2")
    names = [cause.name for cause in found.causes]
    assert names[:3] == ["did not run", "cache hit", "weak baseline"]
    assert len(set(names)) == len(names) and all(cause.evidence for cause in found.causes)


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("expected", [None, 0.85, 2.0])
@pytest.mark.parametrize("world", [World(draft_share=share, noise=0.05) for share in (0.1, 0.3, 0.6, 0.9)])
def test_a_reason_never_contradicts_the_prediction_or_the_measurement(
    world: World, expected: float | None, blocks: int
) -> None:
    """`expected` 0.85: short of the prediction by more than 15 %."""
    study = demo_study(blocks)
    margin = 0.1
    for cell in build_estimates(study, *synthetic_study_records(study, 1, world)).cells:
        predicted = cell.predicted_speedup
        least = expected if predicted is None or expected != 0.85 else 0.85 * predicted
        found = attribute(study, cell, margin, least)
        if found is None or predicted is None:
            continue
        assert cell.speedup is not None and cell.interval95 is not None and len(cell.pairs) >= 5
        short = least is not None and cell.interval95.high < least
        assert cell.speedup <= 1 + margin or cell.interval95.low <= 1 or short
        said = applying(found)
        assert ("below break-even" in said) == (predicted < 1)
        if predicted > max(1 + margin, least or 0):
            assert not said & {"draft too slow", "kept more than asked"}


def test_a_measured_gain_that_the_parts_predict_needs_no_reason_however_costly_the_draft() -> None:
    """The draft takes half of what it saves, and noise makes the margin wide: a gain it is all the same."""
    cell = measured(World(draft_share=0.33, noise=0.03), "padded-512-speculative-keep0.2")
    assert cell.speedup is not None and cell.interval95 is not None and cell.predicted_speedup is not None
    assert attribute(STUDY, cell, 0.98 * (cell.speedup - 1), 0.85 * cell.predicted_speedup) is None


def test_too_few_pairs_are_not_called_a_missing_gain() -> None:
    study = demo_study(1)
    cell = measured(World(true_ratio={CELL: 1.0}, noise=0.2), CELL, study)
    assert len(cell.pairs) == 2 and attribute(study, cell, 0.03, None) is None
    fallback = measured(World(faults=(Fault("fallback"),)), CELL, study)
    assert attribute(study, fallback, 0.03, None) is not None
