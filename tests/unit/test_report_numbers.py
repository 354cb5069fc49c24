"""Digits: enough to tell, never more than the measurement warrants."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specprefill_repro.estimates.schema import Interval
from specprefill_repro.report import numbers


def interval(low: float, high: float) -> Interval:
    return Interval(low=low, high=high, level=0.95)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (12.345, "12.3"), (0.0123456, "0.0123"), (1234.5, "1,230"), (9.9999, "10.0"), (None, numbers.NONE)],
)
def test_three_significant_digits(value: float | None, text: str) -> None:
    assert numbers.significant(value) == text


@given(st.floats(min_value=1e-9, max_value=1e9))
def test_significant_digits_stay_within_half_a_unit_of_the_last(value: float) -> None:
    shown = float(numbers.significant(value).replace(",", ""))
    assert math.isclose(shown, value, rel_tol=0.0051)


def test_a_ratio_has_as_many_decimals_as_its_interval_warrants() -> None:
    assert numbers.ratio(1.91734, interval(1.83, 2.01)) == "1.92" + numbers.TIMES
    assert numbers.ratio(1.91734, interval(1.5, 2.3)) == "1.9" + numbers.TIMES
    assert numbers.ratio(11.8, interval(9, 15)) == "12" + numbers.TIMES


def test_a_bound_is_never_rounded_onto_no_difference() -> None:
    assert numbers.bounds(interval(0.97, 1.8)) == "0.97 to 1.80"


@given(st.floats(0.05, 0.999), st.floats(1.001, 20))
def test_the_shown_bounds_lie_on_the_same_side_of_one(low: float, high: float) -> None:
    shown_low, shown_high = numbers.bounds(interval(low, high)).split(" to ")
    assert float(shown_low) < 1 < float(shown_high)
