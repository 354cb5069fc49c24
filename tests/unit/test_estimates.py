"""Records to estimates: what is counted, what is dropped and why, and numbers against NumPy and closed forms."""

import json
import math
import time
from statistics import median

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy import stats

from specprefill_repro.errors import ReproError
from specprefill_repro.estimates.build import build_estimates
from specprefill_repro.estimates.prediction import PrefillCost, baseline_problem, fit_cost
from specprefill_repro.estimates.schema import CellEstimate, Estimates, Interval, estimates_json
from specprefill_repro.files import content_id
from specprefill_repro.study.schema import Treatment
from synthetic_records import FAULTS, Fault, SyntheticStudy, World, demo_study, synthetic_study_records

STUDY = demo_study()


def estimates(world: World | None = None, seed: int = 1) -> Estimates:
    return build_estimates(STUDY, *synthetic_study_records(STUDY, seed, world))


def cell(found: Estimates, name: str) -> CellEstimate:
    return next(cell for cell in found.cells if cell.cell == name)


@given(st.floats(-1e300, 1e300))
def test_a_number_is_rounded_to_ten_digits_once(value: float) -> None:
    number = Interval(low=value, high=value, level=0.95).low
    assert number == float(np.format_float_scientific(value, precision=9, unique=False))
    assert Interval(low=number, high=number, level=0.95).low == number


@pytest.mark.parametrize("text", ["NaN", "Infinity", '"1"', "true", "null"])
def test_what_is_no_number_is_refused_from_python_and_from_a_file(text: str) -> None:
    with pytest.raises(ValidationError):
        Interval(low=json.loads(text), high=2.0, level=0.95)
    with pytest.raises(ValidationError):
        Interval.model_validate_json(f'{{"low": {text}, "high": 2.0, "level": 0.95}}')


def test_estimates_that_are_read_back_are_those_that_were_written() -> None:
    found = estimates()
    read = Estimates.model_validate_json(estimates_json(found))
    assert read == found
    assert estimates_json(read) == estimates_json(found)


def test_numbers_of_a_cell_agree_with_numpy_on_the_records() -> None:
    made = synthetic_study_records(STUDY, 2)
    name = "padded-1024-speculative-keep0.2"
    found = cell(build_estimates(STUDY, *made), name)
    records = {content_id(record): record for record in made.records}
    dense = np.array([records[pair.dense_record].seconds for pair in found.pairs])
    treated = np.array([records[pair.treated_record].seconds for pair in found.pairs])
    assert all(not records[pair.dense_record].treated for pair in found.pairs)
    assert [records[p.dense_record].prompt.id for p in found.pairs] == [
        records[p.treated_record].prompt.id for p in found.pairs
    ]
    d = np.log(dense / treated)
    exact = stats.ttest_1samp(d, 0).confidence_interval(0.95)
    assert found.speedup == pytest.approx(math.exp(d.mean()))
    assert found.interval95 is not None
    assert (found.interval95.low, found.interval95.high) == pytest.approx((math.exp(exact.low), math.exp(exact.high)))
    assert found.dense_median_seconds == pytest.approx(np.median(dense))
    assert found.actual_keep == pytest.approx(288 / 1024)
    assert sum(found.treated_phases.values()) == pytest.approx(np.median(treated), rel=0.05)


def test_every_cell_of_the_study_gets_an_estimate_even_without_records() -> None:
    made = synthetic_study_records(STUDY, 1)
    empty = build_estimates(STUDY, [], [], made.gates, made.log_probabilities)
    assert [c.cell for c in empty.cells] == [c.cell for c in estimates().cells]
    assert all(c.speedup is None and c.interval95 is None and not c.problems for c in empty.cells)
    assert empty.placebo_margin is None


def test_the_order_of_the_records_does_not_matter() -> None:
    made = synthetic_study_records(STUDY, 1)
    backwards = build_estimates(STUDY, made.records[::-1], made.receipts[::-1], made.gates, made.log_probabilities)
    assert backwards == build_estimates(STUDY, *made)


@pytest.mark.parametrize("kind", [kind for kind in FAULTS if kind not in ("keeps-all", "crash")])
def test_a_fault_in_one_trial_voids_its_pair_alone_and_is_listed(kind: str) -> None:
    name = "padded-512-speculative-keep0.2"
    sound = cell(estimates(), name)
    found = estimates(World(faults=(Fault(kind, name, block=1, position=None),)))
    one = World(faults=(Fault(kind, name, block=1),))
    assert len(cell(estimates(one), name).pairs) == len(sound.pairs) - 2
    assert all(pair.block != 1 for pair in cell(found, name).pairs)
    assert all(void.startswith(f"{name}: block 1") for void in found.voids) and len(found.voids) == 2
    others = [c for c in found.cells if c.cell != name]
    assert all(len(c.pairs) == 6 for c in others)


def test_a_crashed_block_is_listed_and_its_pairs_are_missing() -> None:
    found = estimates(World(faults=(Fault("crash", "self-512-*", block=0),)))
    assert len(cell(found, "self-512-speculative-keep0.2").pairs) == 4
    assert found.voids == ("self-512-speculative-keep0.2: block 0: the worker of trial 2 ended with signal 9",)


def test_a_block_with_a_missing_record_does_not_count() -> None:
    made = synthetic_study_records(STUDY, 1)
    found = build_estimates(STUDY, made.records[1:], made.receipts, made.gates, made.log_probabilities)
    assert found.voids == (f"{made.records[0].cell}: block 0: 3 of its 4 trials have a record",)


def test_two_records_for_one_trial_are_refused() -> None:
    made = synthetic_study_records(STUDY, 1)
    with pytest.raises(ReproError, match="two records for one trial"):
        build_estimates(STUDY, [*made.records, made.records[0]], made.receipts, made.gates, made.log_probabilities)


@pytest.mark.parametrize("model", ["target", "draft"])
def test_no_pair_counts_whose_weights_the_gate_never_saw(model: str) -> None:
    made = synthetic_study_records(STUDY, 1, World())
    others = {f"{model}_weights_sha256": content_id("other weights")}
    gates = {name: gate.model_copy(update=others) for name, gate in made.gates.items()}
    found = build_estimates(STUDY, made.records, made.receipts, gates, made.log_probabilities)
    for cell in found.cells:
        counts = model == "draft" and cell.treatment is not Treatment.SPECULATIVE  # Nobody reads the draft there.
        assert bool(cell.pairs) == counts
        assert counts or f"the gate checked other weights of the {model}" in str(cell.problems)


def test_no_trial_counts_when_the_gate_failed_or_never_ran() -> None:
    failed = estimates(World(gate_fails=("self",)))
    assert not cell(failed, "self-512-speculative-keep0.2").pairs
    assert "largest difference 4.5" in cell(failed, "self-512-speculative-keep0.2").problems[0]
    assert len(cell(failed, "padded-512-placebo").pairs) == 6
    made = synthetic_study_records(STUDY, 1)
    never = build_estimates(STUDY, made.records, made.receipts, {}, made.log_probabilities)
    assert all(not c.pairs and "has not run" in c.problems[0] for c in never.cells)


def test_an_outlier_is_flagged_and_still_counts() -> None:
    quiet = estimates(World(noise=0.005), seed=5)
    noisy = [c for c in estimates(World(noise=0.005, outliers=0.1), seed=5).cells if any(p.outlier for p in c.pairs)]
    assert noisy
    assert all(len(c.pairs) == len(cell(quiet, c.cell).pairs) for c in noisy)


def test_lost_answers_are_counted_against_those_that_dense_found() -> None:
    found = estimates(World(answers_lost={"padded-512-speculative-keep0.2": 1.0}))
    lost = cell(found, "padded-512-speculative-keep0.2")
    assert (lost.answers_dense, lost.answers_treated, lost.answers_lost) == (6, 0, 6)
    assert lost.median_kl_nats is not None and lost.median_kl_nats > 0.1
    placebo = cell(found, "padded-512-placebo")
    assert (placebo.answers_lost, placebo.first_token_agreement, placebo.median_kl_nats) == (0, 1.0, 0.0)


def test_placebo_margin_is_the_far_end_of_the_pooled_interval() -> None:
    found = estimates(World(noise=0.02), seed=3)
    d = np.array([pair.log_ratio for pair in cell(found, "padded-512-placebo").pairs])
    exact = stats.ttest_1samp(d, 0).confidence_interval(0.95)
    assert found.placebo_margin == pytest.approx(max(abs(exact.low), abs(exact.high)))


def test_mirrored_order_cancels_a_linear_drift_and_the_drift_is_reported() -> None:
    found = estimates(World(noise=0.0, drift=0.0005))
    assert abs(math.log(cell(found, "padded-512-placebo").speedup or 0)) < 1e-3
    slow = next(drift for drift in found.drift if drift.pair == "padded" and drift.length == 512)
    assert slow.found and slow.change > 0.01
    assert not any(drift.found for drift in estimates(World(noise=0.0)).drift)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1000))
def test_the_prediction_from_the_parts_is_near_the_truth_of_the_scripted_machine(seed: int) -> None:
    found = estimates(World(noise=0.01), seed=seed)
    for one in found.cells:
        if one.predicted_speedup is not None:
            assert one.predicted_speedup == pytest.approx(one.speedup, rel=0.05)
    assert {c.treatment for c in found.cells if c.predicted_speedup is None} == {"placebo"}


def test_the_prediction_never_sees_the_arm_it_predicts() -> None:
    plain = cell(estimates(World(noise=0.0)), "padded-1024-speculative-keep0.2")
    slowed = World(noise=0.0, true_ratio={"padded-1024-speculative-keep0.2": 0.3})
    other = cell(estimates(slowed), "padded-1024-speculative-keep0.2")
    assert other.speedup == pytest.approx(0.3)
    assert other.predicted_speedup == pytest.approx(plain.predicted_speedup)


def test_nothing_is_predicted_when_the_draft_was_not_measured_as_a_target() -> None:
    study = demo_study(comparisons=tuple(c for c in STUDY.comparisons if c.pair != "self"))
    found = build_estimates(study, *synthetic_study_records(study, 1))
    assert all(c.predicted_speedup is None for c in found.cells if c.treatment == "speculative")
    assert any(c.predicted_speedup is not None for c in found.cells if c.treatment == "random")


@settings(deadline=None)
@given(st.floats(1e-5, 1e-1), st.floats(0, 1e-4), st.lists(st.integers(100, 100_000), min_size=2, unique=True))
def test_the_cost_fit_finds_the_coefficients_it_was_made_from(a: float, b: float, lengths: list[int]) -> None:
    fitted = fit_cost({n: a * n + b * n**2 for n in lengths})
    for n in lengths:
        assert fitted.seconds(n) == pytest.approx(a * n + b * n**2, rel=1e-6)


@settings(deadline=None)
@given(st.dictionaries(st.integers(100, 100_000), st.floats(1e-2, 1e4), min_size=1, max_size=6))
def test_a_fitted_cost_is_never_negative_and_grows_with_length(seconds: dict[int, float]) -> None:
    fitted = fit_cost(seconds)
    assert fitted.linear >= 0 and fitted.quadratic >= 0
    assert 0 < fitted.seconds(100) < fitted.seconds(200)


def test_one_length_gives_a_proportional_cost_and_none_an_error() -> None:
    assert fit_cost({100: 2.0}) == PrefillCost(0.02, 0.0)
    with pytest.raises(ValueError, match="at least one"):
        fit_cost({})


def test_the_weak_baseline_of_the_published_gemma_run_is_named() -> None:
    """55.27 tokens/s for 8,954 tokens, though 105.5 for 5,060: slower than any quadratic cost allows."""
    seconds = {5060: 5060 / 105.53, 8954: 8954 / 55.27}
    assert "the dense arm took" in (baseline_problem(8954, seconds[8954], seconds) or "")
    assert baseline_problem(5060, seconds[5060], seconds) is None


@settings(deadline=None)
@given(st.floats(1e-4, 1e-1), st.floats(0, 1e-4), st.lists(st.integers(128, 65536), min_size=1, max_size=6))
def test_no_honest_baseline_is_called_weak(a: float, b: float, lengths: list[int]) -> None:
    known = {n: a * n + b * n**2 for n in lengths}
    assert all(baseline_problem(n, 1.04 * seconds, known) is None for n, seconds in known.items())


def test_a_baseline_slower_than_in_the_other_cells_is_named() -> None:
    found = estimates(World(dense_factor={"padded-512-speculative-keep0.2": 1.9}))
    assert "the dense arm took" in (cell(found, "padded-512-speculative-keep0.2").baseline_problem or "")
    assert sum(c.baseline_problem is not None for c in found.cells) == 1


def test_a_large_study_is_analysed_in_a_time_that_grows_no_faster_than_its_size() -> None:
    def seconds(blocks: int) -> float:
        study = demo_study(blocks=blocks)
        made: SyntheticStudy = synthetic_study_records(study, 1)
        times = []
        for _ in range(3):
            start = time.perf_counter()
            build_estimates(study, *made)
            times.append(time.perf_counter() - start)
        return median(times)

    assert seconds(20) < 25 * seconds(2)


def test_a_weak_baseline_predicts_nothing() -> None:
    """The draft's dense trials at 1,024 tokens ran on a busy machine: what they cost is not what the draft costs."""
    found = estimates(World(dense_factor={"self-1024-*": 6.0}, true_ratio={"self-1024-*": 1.0}))
    for one in found.cells:
        if one.treatment == "speculative":
            assert one.prediction_problem is not None and "the dense arm took" in one.prediction_problem
            assert (one.predicted_speedup, one.bound_speedup, one.break_even_tokens) == (None, None, None)
    assert cell(found, "padded-512-random-keep0.2").predicted_speedup is not None  # it needs no draft
    assert all(one.prediction_problem is None for one in estimates().cells)


@pytest.mark.parametrize("treated", [True, False])
def test_a_trial_that_was_asked_for_something_else_than_its_cell_does_not_count(treated: bool) -> None:
    """Whole and consistent in itself, such as one at another keep rate, and yet no trial of this cell."""
    name = "padded-1024-speculative-keep0.2"
    made = synthetic_study_records(STUDY, 1)
    asked = next(r.requested for r in made.records if r.cell == "padded-1024-speculative-keep0.3" and r.treated)
    records = [
        record.model_copy(update={"requested": asked})
        if (record.cell, record.block, record.treated) == (name, 0, treated)
        else record
        for record in made.records
    ]
    found = cell(build_estimates(STUDY, records, made.receipts, made.gates, made.log_probabilities), name)
    assert len(found.pairs) == 4
    assert all("was asked for another arm than its cell" in problem for problem in found.problems)
