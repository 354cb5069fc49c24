"""The cost model against closed forms and laws."""

import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from specprefill_repro.estimates.build import build_estimates
from specprefill_repro.estimates.cost_model import (
    ModelCost,
    bound,
    break_even,
    kept_tokens,
    model_cost,
    speedup,
    treated_seconds,
)
from specprefill_repro.estimates.prediction import CUT_OFF, DenseTimes, PrefillCost, dense_trial
from specprefill_repro.prefill.selection import best_chunks
from specprefill_repro.study.schema import Selection
from synthetic_records import World, demo_study, synthetic_study_records

BARE = Selection(head=0, tail=1, look_ahead=1, chunk=1)
costs = st.builds(PrefillCost, st.floats(1e-6, 1e-1), st.floats(0, 1e-5))
keeps, lengths = st.floats(0.05, 0.9), st.integers(128, 100_000)


def cost(linear: float, quadratic: float = 0.0, step: float = 0.0) -> ModelCost:
    return ModelCost(PrefillCost(linear, quadratic), step)


def test_a_fit_finds_the_cost_it_was_made_from() -> None:
    truth = cost(0.01, 2e-6, 0.05)
    fitted = model_cost({n: DenseTimes(truth.dense(n), truth.step) for n in (256, 512, 1024)})
    assert fitted.prefill.linear == pytest.approx(0.01) and fitted.prefill.quadratic == pytest.approx(2e-6)
    assert fitted.step == pytest.approx(0.05)


@settings(deadline=None)
@given(st.floats(0.01, 0.5), keeps, lengths)
def test_without_attention_s_square_the_bound_is_the_paper_s_formula(share: float, keep: float, length: int) -> None:
    """arXiv 2502.02789: 1 / (keep + draft cost / target cost)."""
    assert bound(PrefillCost(1, 0), PrefillCost(share, 0), length, keep) == pytest.approx(1 / (keep + share))


@settings(deadline=None)
@given(costs, keeps, lengths)
def test_for_attention_alone_the_bound_is_the_inverse_square_of_the_keep_rate(
    target: PrefillCost, keep: float, length: int
) -> None:
    assert bound(PrefillCost(0, 1), None, length, keep) == pytest.approx(keep**-2)
    assert 1 / keep - 1e-9 <= bound(target, None, length, keep) <= keep**-2 + 1e-9


@settings(deadline=None)
@given(costs, costs, st.floats(0, 1), st.floats(0, 1), keeps, lengths, st.integers(1, 64))
def test_nothing_is_predicted_beyond_the_bound(
    target: PrefillCost, draft: PrefillCost, step: float, draft_step: float, keep: float, length: int, ahead: int
) -> None:
    rule = Selection(look_ahead=ahead)
    predicted = speedup(ModelCost(target, step), ModelCost(draft, draft_step), length, keep, rule)
    assert predicted <= bound(target, draft, length, keep) * (1 + 1e-9)


@settings(deadline=None)
@given(costs, keeps, lengths)
def test_a_draft_like_the_target_never_wins(target: PrefillCost, keep: float, length: int) -> None:
    model = ModelCost(target, 0.01)
    assert speedup(model, model, length, keep, Selection()) < 1


@settings(deadline=None)
@given(costs, costs, keeps, keeps, lengths)
def test_keeping_more_is_never_predicted_to_be_faster(
    target: PrefillCost, draft: PrefillCost, one: float, other: float, length: int
) -> None:
    less, more = sorted((one, other))
    models = ModelCost(target, 0.0), ModelCost(draft, 0.0)
    assert speedup(*models, length, more, Selection()) <= speedup(*models, length, less, Selection()) + 1e-12


@settings(deadline=None)
@given(st.integers(128, 3000), keeps, st.integers(0, 64), st.integers(1, 64), st.integers(1, 64))
def test_kept_tokens_are_those_of_the_selection_rule(
    length: int, keep: float, head: int, tail: int, chunk: int
) -> None:
    assume(head + tail < length)
    rule = Selection(head=head, tail=tail, chunk=chunk)
    real = len(best_chunks([float(n) for n in range(length)], keep, rule))
    assert real <= kept_tokens(length, keep, rule) < real + chunk


def test_break_even_is_the_root_of_the_two_parabolas() -> None:
    """a L + b L^2 = c L + d L^2 + a k L + b k^2 L^2, with nothing besides."""
    a, b, c, d, k = 0.01, 2e-6, 0.0095, 1e-8, 0.2
    root = (c + a * k - a) / (b - d - b * k**2)
    assert root == pytest.approx(784.7, rel=0.01)
    found = break_even(cost(a, b), cost(c, d), k, BARE, 100_000)
    assert found is not None and root * 0.97 <= found <= root * 1.03


@settings(deadline=None)
@given(costs, costs, st.floats(0, 0.5), keeps)
def test_at_the_break_even_it_wins_and_just_below_it_does_not(
    target: PrefillCost, draft: PrefillCost, step: float, keep: float
) -> None:
    models = ModelCost(target, step), ModelCost(draft, step)
    found = break_even(*models, keep, Selection(), 20_000)
    if found is None:
        assert speedup(*models, 20_000, keep, Selection()) <= 1.1
    else:
        assert speedup(*models, found, keep, Selection()) > 1


def test_without_a_draft_only_the_kept_tokens_cost() -> None:
    seconds = treated_seconds(cost(0.01, 0.0, 0.5), None, 1000, 0.2, BARE)
    assert seconds == pytest.approx(0.01 * kept_tokens(1000, 0.2, BARE))


def test_estimates_carry_bound_and_break_even_where_the_parts_are_measured() -> None:
    study = demo_study()
    cells = {
        cell.cell: cell for cell in build_estimates(study, *synthetic_study_records(study, 1, World(noise=0.0))).cells
    }
    gain, own = cells["padded-1024-speculative-keep0.2"], cells["self-1024-speculative-keep0.2"]
    assert gain.bound_speedup and gain.speedup and gain.predicted_speedup
    assert gain.bound_speedup > gain.predicted_speedup and gain.bound_speedup > gain.speedup
    compared = [cell for cell in cells.values() if cell.predicted_speedup]
    assert len(compared) == 10
    assert all(cell.predicted_speedup == pytest.approx(cell.speedup, rel=0.1) for cell in compared)
    assert gain.break_even_tokens is not None and gain.break_even_tokens < 512
    assert own.bound_speedup and own.bound_speedup < 1 and own.break_even_tokens is None
    assert cells["padded-512-placebo"].bound_speedup is None
    assert math.isclose(cells["padded-512-random-keep0.2"].bound_speedup or 0, 5, rel_tol=0.5)


@given(st.integers(1, 16), st.lists(st.just(CUT_OFF) | st.integers(1, 40), max_size=5))
def test_the_look_ahead_takes_no_more_passes_than_its_rule_nor_than_the_answers_had_tokens(
    look_ahead: int, said: list[int]
) -> None:
    rule = Selection(look_ahead=look_ahead)
    times = DenseTimes(1.0, 0.1, tuple(said))
    ended = [number if number != CUT_OFF else math.inf for number in said] or [math.inf]
    assert 0 <= times.further_passes(rule) <= look_ahead - 1
    assert times.further_passes(rule) <= max(ended)
    assert times.further_passes(rule) >= min(*ended, look_ahead - 1)
    assert times.further_passes(rule.model_copy(update={"stop_at_end": False})) == look_ahead - 1


def test_only_an_answer_that_ended_says_how_long_it_was() -> None:
    record = next(r for r in synthetic_study_records(demo_study(), 1)[0] if r.phases is not None)
    three = record.model_copy(update={"decode_tokens": 3, "decode_seconds": 0.6})
    assert dense_trial(three, 8).said == 3 and dense_trial(three, 8).step == pytest.approx(0.2)
    assert dense_trial(three, 4).said == CUT_OFF  # it was not let go on
    assert dense_trial(three.model_copy(update={"phases": None}), 8).said == CUT_OFF  # a server's
    assert dense_trial(record.model_copy(update={"decode_tokens": 0}), 8).said == CUT_OFF  # nothing was decoded
