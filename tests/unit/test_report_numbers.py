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


@pytest.mark.parametrize(("value", "text"), [(0.6537, "0.654"), (1.5234, "1.52"), (12.345, "12.3"), (111.2, "111")])
def test_a_ratio_has_three_significant_digits_whatever_its_interval(value: float, text: str) -> None:
    assert numbers.ratio(value) == numbers.with_unit(value, "x") == text + numbers.TIMES


def test_a_bound_is_never_rounded_onto_no_difference() -> None:
    assert numbers.bounds(interval(0.9997, 1.8)) == "0.9997 to 1.80"
    assert numbers.bounds(interval(0.007, 111.4)) == "0.00700 to 111"


@given(st.floats(1e-6, 0.9999), st.floats(1.0001, 1e6))
def test_the_shown_bounds_lie_on_the_same_side_of_one_and_none_is_zero(low: float, high: float) -> None:
    shown_low, shown_high = numbers.bounds(interval(low, high)).replace(",", "").split(" to ")
    assert 0 < float(shown_low) < 1 < float(shown_high)
