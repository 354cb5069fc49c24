"""The statistics, held against a second library, closed forms, laws and a simulation."""

import math

import numpy as np
import pingouin
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.weightstats import ttost_paired

from specprefill_repro.estimates import statistics

positive = st.floats(1e-3, 1e4)
log_ratios = st.lists(st.floats(-2, 2), min_size=2, max_size=40)


def spread(values: list[float]) -> float:
    return float(np.std(values))


def test_speedup_above_one_means_that_the_treated_arm_is_faster() -> None:
    assert statistics.speedup(20.0, 10.0) == 2.0
    assert statistics.log_ratio(10.0, 20.0) == pytest.approx(-math.log(2))


@settings(deadline=None)
@given(positive, positive)
def test_swapping_the_arms_inverts_the_speedup(dense: float, treated: float) -> None:
    assert statistics.speedup(dense, treated) * statistics.speedup(treated, dense) == pytest.approx(1)


@settings(deadline=None)
@given(st.lists(st.tuples(positive, positive), min_size=2, max_size=20), st.floats(1e-3, 1e3))
def test_the_unit_of_time_does_not_matter(times: list[tuple[float, float]], unit: float) -> None:
    plain = statistics.summary([statistics.log_ratio(a, b) for a, b in times])
    scaled = statistics.summary([statistics.log_ratio(unit * a, unit * b) for a, b in times])
    assert scaled.mean == pytest.approx(plain.mean, abs=1e-9)
    assert scaled.deviation == pytest.approx(plain.deviation, abs=1e-9)


@pytest.mark.parametrize("dense, treated", [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0), (math.nan, 1.0)])
def test_a_time_that_is_not_positive_is_refused(dense: float, treated: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        statistics.speedup(dense, treated)


@pytest.mark.parametrize("level", [0.90, 0.95])
def test_interval_agrees_with_pingouin(level: float) -> None:
    rng = np.random.default_rng(1)
    dense, treated = np.log(rng.uniform(9, 11, 8)), np.log(rng.uniform(4, 6, 8))
    table = pingouin.ttest(dense, treated, paired=True, confidence=level)
    column = next(name for name in table.columns if name.startswith("CI"))
    low, high = table[column].iloc[0]
    found = statistics.interval(list(dense - treated), level)
    assert found is not None
    # pingouin rounds its interval to two decimals unless told otherwise, so scipy's own is asked as well.
    assert (math.log(found.low), math.log(found.high)) == pytest.approx((low, high), abs=0.006)
    exact = stats.ttest_rel(dense, treated).confidence_interval(level)
    assert (math.log(found.low), math.log(found.high)) == pytest.approx((exact.low, exact.high))


@settings(deadline=None)
@given(log_ratios, st.floats(0.005, 0.5))
def test_a_tie_is_exactly_a_90_percent_interval_inside_the_margin(values: list[float], margin: float) -> None:
    assume(spread(values) > 1e-6)
    inside = statistics.interval(values, 0.90)
    assert inside is not None
    # Two one-sided t tests (Schuirmann 1987).
    limit = math.log1p(margin)
    p = ttost_paired(np.array(values), np.zeros(len(values)), -limit, limit)[0]
    assume(abs(p - 0.05) > 1e-9)
    assert (p < 0.05) == (inside.low > 1 / (1 + margin) and inside.high < 1 + margin)


@settings(deadline=None)
@given(log_ratios)
def test_the_interval_of_swapped_arms_is_the_inverted_one(values: list[float]) -> None:
    there, back = statistics.interval(values, 0.95), statistics.interval([-d for d in values], 0.95)
    assert there is not None and back is not None
    assert (back.low, back.high) == pytest.approx((1 / there.high, 1 / there.low))


@settings(deadline=None)
@given(log_ratios)
def test_a_higher_level_never_gives_a_narrower_interval(values: list[float]) -> None:
    narrow, wide = statistics.interval(values, 0.90), statistics.interval(values, 0.95)
    assert narrow is not None and wide is not None
    assert wide.low <= narrow.low * (1 + 1e-12) and narrow.high <= wide.high * (1 + 1e-12)


def test_one_pair_has_no_interval() -> None:
    assert statistics.interval([0.1], 0.95) is None
    assert statistics.interval([], 0.95) is None


@pytest.mark.parametrize("pairs", range(5, 13))
def test_the_t_interval_covers_the_truth_as_often_as_it_says(pairs: int) -> None:
    """20,000 seeded studies of n pairs: the nominal 95 % interval holds the true speed-up in 94 to 96.5 % of them."""
    studies, truth = 20_000, math.log(1.8)
    d = truth + 0.05 * np.random.default_rng(pairs).standard_normal((studies, pairs))
    # The width is taken from the function under test; the means and deviations come from NumPy.
    unit = statistics.Summary(0.0, 1.0, pairs).half_width(0.95)
    covered = np.abs(d.mean(axis=1) - truth) <= unit * d.std(axis=1, ddof=1)
    assert 0.94 <= covered.mean() <= 0.965
    one = statistics.summary(list(d[0]))
    assert one.half_width(0.95) == pytest.approx(unit * d[0].std(ddof=1))


@settings(deadline=None)
@given(st.lists(st.floats(-2, 2), max_size=40), st.floats(0.005, 0.5), st.integers(1, 60))
def test_the_stopping_rule_cannot_see_the_sign_of_the_effect(values: list[float], margin: float, cap: int) -> None:
    there = statistics.stopping_decision(values, margin, cap)
    assert there == statistics.stopping_decision([-d for d in values], margin, cap)


@settings(deadline=None)
@given(st.lists(st.floats(-0.2, 0.2), min_size=5, max_size=40), st.floats(-3, 3))
def test_the_stopping_rule_cannot_see_the_size_of_the_effect(values: list[float], shift: float) -> None:
    width = statistics.summary(values).half_width(0.9)
    assume(abs(width - math.log(1.03) / 2) > 1e-6)
    there = statistics.stopping_decision(values, 0.03, 100)
    assert there.stop == statistics.stopping_decision([d + shift for d in values], 0.03, 100).stop


def test_stopping_needs_five_pairs_and_a_narrow_interval_or_the_cap() -> None:
    assert not statistics.stopping_decision([0.5] * 4, 0.03, 20).stop
    assert statistics.stopping_decision([0.5] * 5, 0.03, 20).stop
    noisy = [0.3, -0.3, 0.5, -0.2, 0.1, 0.4]
    assert not statistics.stopping_decision(noisy, 0.03, 20).stop
    assert statistics.stopping_decision(noisy, 0.03, 6).stop


def test_an_outlier_is_flagged_and_the_rest_is_not() -> None:
    assert statistics.outliers([0.50, 0.51, 0.49, 0.505, 0.495, 0.9]) == (False,) * 5 + (True,)
    assert statistics.outliers([0.5, 0.5, 0.5, 0.5, 0.9])[-1]
    assert statistics.outliers([0.5] * 5) == (False,) * 5
    assert statistics.outliers([0.1, 0.9]) == (False, False)


@settings(deadline=None)
@given(log_ratios, st.floats(-1, 1))
def test_flags_do_not_depend_on_where_the_values_lie_or_on_the_direction(values: list[float], shift: float) -> None:
    assume(spread(values) > 1e-3)
    rounded = [round(d, 3) for d in values]
    assert statistics.outliers(rounded) == statistics.outliers([-d for d in rounded])


@pytest.mark.parametrize("count, total", [(0, 12), (3, 12), (12, 12)])
def test_share_interval_is_clopper_pearson(count: int, total: int) -> None:
    exact = stats.binomtest(count, total).proportion_ci(0.95, method="exact")
    found = statistics.share_interval(count, total)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((exact.low, exact.high))
    assert statistics.share_interval(0, 0) is None


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_agrees_with_pingouin_and_never_adds_significance(p_values: list[float]) -> None:
    kept = statistics.holm(p_values)
    assert all(p <= 0.05 for p, significant in zip(p_values, kept, strict=True) if significant)
    if p_values:
        reject, corrected = pingouin.multicomp(p_values, alpha=0.05, method="holm")
        clear = np.abs(np.asarray(corrected) - 0.05) > 1e-9
        assert [k for k, c in zip(kept, clear, strict=True) if c] == [bool(r) for r in np.asarray(reject)[clear]]


def test_more_pairs_needed_is_the_first_number_at_which_it_is_settled() -> None:
    values = [0.01, -0.02, 0.03, 0.0, -0.01, 0.05]

    def settled(seen: statistics.Summary) -> bool:
        return seen.half_width(0.90) < math.log(1.03) / 2

    more = statistics.more_pairs_needed(values, settled)
    assert more is not None
    seen, total = statistics.summary(values), len(values) + more
    assert settled(statistics.Summary(seen.mean, seen.deviation, total))
    assert not settled(statistics.Summary(seen.mean, seen.deviation, total - 1))
    assert statistics.more_pairs_needed(values, lambda seen: False) is None


@pytest.mark.parametrize("enough", [6, 700, 1000])
def test_a_number_of_pairs_up_to_the_largest_that_is_promised_is_found(enough: int) -> None:
    values = [0.01, -0.02, 0.03, 0.0, -0.01]
    assert statistics.more_pairs_needed(values, lambda seen: seen.pairs >= enough) == enough - len(values)
    assert statistics.more_pairs_needed(values, lambda seen: seen.pairs > statistics.MAX_PAIRS) is None


def test_drift_finds_a_machine_that_slows_down_and_forgives_one_slow_trial() -> None:
    rng = np.random.default_rng(3)
    number = list(range(40))
    quiet = [10 * (1 + 0.01 * float(rng.standard_normal())) for _ in number]
    slowing = [seconds * (1 + 0.10 * i / 39) for i, seconds in enumerate(quiet)]
    found = statistics.drift(number, slowing)
    assert found is not None and found[1].low > 0 and found[0] == pytest.approx(0.10, abs=0.02)
    steady = statistics.drift(number, [*quiet[:-1], 30.0])
    assert steady is not None and steady[1].low <= 0 <= steady[1].high
    assert statistics.drift([1, 2, 3], [1.0, 1.0, 1.0]) is None


def test_drift_of_very_many_trials_stays_cheap() -> None:
    number = list(range(50_000))
    found = statistics.drift(number, [10 * (1 + 0.05 * i / 50_000) for i in number])
    assert found is not None and found[0] == pytest.approx(0.05, abs=0.005)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_kl_divergence_agrees_with_scipy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    p, q = (np.log(rng.dirichlet(np.ones(50))).astype(np.float32) for _ in range(2))
    expected = stats.entropy(np.exp(p.astype(float)), np.exp(q.astype(float)))
    assert statistics.kl_divergence(p, q) == pytest.approx(expected, abs=1e-5)
    assert statistics.kl_divergence(p, p) == 0


def test_kl_divergence_refuses_what_is_not_two_distributions() -> None:
    even = np.log(np.full(4, 0.25, dtype=np.float32))
    for other in (even[:3], even + 1, np.full(4, np.nan, dtype=np.float32)):
        with pytest.raises(ValueError):
            statistics.kl_divergence(even, other)
