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
