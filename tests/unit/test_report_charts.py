"""Charts: what they draw, and what they must leave out so that the rest can be read."""

import itertools
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from report_inputs import report_data
from specprefill_repro.report import charts, figures
from specprefill_repro.report.charts import Point


@pytest.mark.parametrize(("blocks", "drawn"), [(1, False), (2, False), (3, True)])
def test_an_interval_is_drawn_only_of_as_many_pairs_as_a_verdict_needs(
    blocks: int, drawn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Point] = []
    monkeypatch.setattr(charts, "speedups", lambda points, title: seen.extend(points) or "")
    monkeypatch.setattr(charts, "strips", lambda pairs, means, title: seen.extend(means) or "")
    data = report_data("gain", blocks=blocks)
    assert figures.speed_figures(data) and figures.control_figures(data)
    assert seen and {point.low is not None for point in seen} == {drawn}
    assert "<svg" in charts.intervals(seen, "x", "ratio")


def test_every_shortened_bar_stands_below_the_dense_bar_of_its_own_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    bars: list[charts.Bar] = []
    monkeypatch.setattr(charts, "phases", lambda some: bars.extend(some) or "")
    data = report_data("gain")
    figures.phase_figures(data)
    dense, treated = bars[::2], bars[1::2]
    assert [bar.label for bar in dense] == [f"{bar.label}, dense" for bar in treated]
    cells = {tuple(sorted(c.treated_phases.items())): c.dense_phases for c in data.estimates.cells}
    assert all(cells[tuple(sorted(low.phases.items()))] == up.phases for up, low in zip(dense, treated, strict=True))


@given(st.floats(1e-3, 0.99), st.floats(1.01, 1e3))
def test_the_ticks_of_a_ratio_axis_are_even_hold_one_and_lie_on_it(low: float, high: float) -> None:
    scale, axis = charts._ratio_axis([Point("", "", low), Point("", "", high)], steps=6)
    ticks, domain = axis["values"], scale["domain"]
    assert 1.0 in ticks and all(domain[0] <= tick <= domain[1] for tick in ticks) and len(ticks) <= 8
    apart = [math.log2(b / a) for a, b in itertools.pairwise(ticks)]
    steps = [b - a for a, b in itertools.pairwise(ticks)]
    assert len(ticks) < 3 or max(apart) < 1.001 * min(apart) or max(steps) < 1.001 * min(steps)


def test_a_trial_far_slower_than_the_others_does_not_make_the_drift_axis_impossible() -> None:
    svg = charts.drift([(0.0, 1.0, "a"), (1.0, 16.0, "a"), (2.0, 0.9, "a")])
    labels = re.findall(r">([^<>]+)</text>", svg)
    assert not any(label.startswith(("-", "\u2212")) or "%" in label for label in labels)


@given(st.floats(0.3, 0.97), st.floats(1.03, 3))
def test_scatter_around_one_can_be_read_off_more_than_one_tick(low: float, high: float) -> None:
    """Between two doublings there would be but the tick at 1, as in the drift of a busy machine."""
    scale, axis = charts._ratio_axis([Point("", "", low), Point("", "", high)], steps=6)
    assert len(axis["values"]) >= 2 and any(tick != 1 for tick in axis["values"])
    wide = math.log2(scale["domain"][1] / scale["domain"][0])
    assert len(axis["values"]) >= 3 or wide < 1.2


@given(st.floats(1e-6, 1e4))
def test_no_mark_of_an_amount_lies_beyond_the_last_tick(top: float) -> None:
    scale, axis = charts._amount_axis(top)
    ticks = axis["values"]
    assert ticks[0] == 0 and scale["domain"] == [0, ticks[-1]] and 2 <= len(ticks) <= 6
    assert ticks[-2] < top <= ticks[-1] * (1 + 1e-9)


def test_the_distance_of_the_furthest_cell_is_drawn_inside_the_axis() -> None:
    svg = charts.intervals([Point("a", "s", 0.02), Point("b", "s", 2.4)], "nats", "amount")
    labels = [float(text) for text in re.findall(r">([0-9.]+)</text>", svg)]
    assert max(labels) >= 2.4
