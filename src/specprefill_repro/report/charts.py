"""Charts as SVG text, made when the page is built: the same values give the same bytes.

Colours are CSS variables of the page and the text is `currentColor`, so that one drawing serves light, dark and print.
Each chart is narrow enough to be read on a phone; wide screens put several side by side. No chart says anything that
the table under it does not.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

import altair as alt
import vl_convert

from specprefill_repro.report.numbers import TIMES
from specprefill_repro.trials.schema import PHASES

VEGA_LITE = "6.4"
WIDTH = 370
"""Pixels, axis labels included; type of 11 px stays readable on a phone of 390."""
SVG = "http://www.w3.org/2000/svg"
SERIES = ["var(--s1)", "var(--s2)", "var(--s3)", "var(--s4)", "var(--s5)"]
SHAPES = ["circle", "square", "triangle-up", "cross", "triangle-down"]
INHERITED = ("fill", "stroke", "stroke-width", "stroke-dasharray", "text-anchor", "font-size", "font-weight")
"""Attributes that a group in SVG hands down to what it holds."""
PREDICTED = "diamond"
PHASE_COLOURS = [f"var(--p{number})" for number in range(1, 1 + len(PHASES))]
FINE_STEPS = (0.01, 0.02, 0.05, 0.1, 0.25, 0.5)
"""Between the ticks of a ratio axis that spans little more than a doubling."""


@dataclass(frozen=True)
class Point:
    """A value with its interval; `series` gives colour and shape, `label` the place on the other axis."""

    label: str
    series: str
    value: float
    low: float | None = None
    high: float | None = None
    predicted: float | None = None


@dataclass(frozen=True)
class Bar:
    """One stacked bar of seconds by phase."""

    label: str
    phases: dict[str, float]


def speedups(points: Sequence[Point], x_title: str) -> str:
    """Speed-up with its interval (up, base-2 logarithm, line at 1) by label (across), one mark and colour a series."""
    labels = list(dict.fromkeys(point.label for point in points))
    names = list(dict.fromkeys(point.series for point in points))
    values = [_plain(point) for point in points]
    y_scale, y_axis = _ratio_axis(points, steps=7)
    place = {
        "x": alt.X("label:O", sort=labels, title=x_title, axis=alt.Axis(labelAngle=0)),
        "xOffset": alt.XOffset("series:N", sort=names, scale=alt.Scale(paddingInner=0.6, paddingOuter=0.9)),
    }
    y = alt.Y("value:Q", scale=y_scale, axis=y_axis, title="speed-up")
    colour = alt.Color("series:N", sort=names, scale=alt.Scale(domain=names, range=SERIES), legend=_legend(names))
    shape = alt.Shape("series:N", sort=names, scale=alt.Scale(domain=names, range=SHAPES), legend=_legend(names))
    base = alt.Chart(_data(values))
    layers = [
        _reference("y", 1.0),
        alt.Chart(_data([value for value in values if "low" in value]))
        .mark_rule(strokeWidth=2)
        .encode(y=alt.Y("low:Q", scale=y_scale), y2="high:Q", color=colour, **place),
        base.mark_point(filled=True, size=70, opacity=1).encode(y=y, color=colour, shape=shape, **place),
        alt.Chart(_data([value for value in values if "predicted" in value]))
        .mark_point(shape=PREDICTED, filled=False, size=110, strokeWidth=1.5, opacity=1, color="currentColor")
        .encode(y=alt.Y("predicted:Q", scale=y_scale), **place),
    ]
    return _svg(alt.layer(*layers), height=230)


def intervals(points: Sequence[Point], x_title: str, kind: str, reference: float | None = None) -> str:
    """One row a label: value and interval across. `kind`: "ratio" (logarithm), "share" or "amount"."""
    labels = list(dict.fromkeys(point.label for point in points))
    names = list(dict.fromkeys(point.series for point in points))
    values = [_plain(point) for point in points]
    if kind == "ratio":
        scale, axis = _ratio_axis(points, steps=6)
    elif kind == "share":
        scale, axis = alt.Scale(domain=[0, 1]), alt.Axis(values=[0, 0.25, 0.5, 0.75, 1], format="%")
    else:
        top = max([point.high or point.value for point in points], default=1.0)
        scale, axis = alt.Scale(type="sqrt", domain=[0, top or 1.0]), alt.Axis(tickCount=4)
    y = alt.Y("label:N", sort=labels, title=None, axis=alt.Axis(labelLimit=190, grid=False, ticks=False, domain=False))
    colour = alt.Color("series:N", sort=names, scale=alt.Scale(domain=names, range=SERIES), legend=_legend(names))
    shape = alt.Shape("series:N", sort=names, scale=alt.Scale(domain=names, range=SHAPES), legend=_legend(names))
    offset = alt.YOffset("series:N", sort=names, scale=alt.Scale(paddingInner=0.4, paddingOuter=0.6))
    base = alt.Chart(_data(values)).encode(y=y, yOffset=offset)
    layers: list[Any] = [_reference("x", reference)] if reference is not None else []
    with_interval = [value for value in values if "low" in value]
    layers += [
        alt.Chart(_data(with_interval))
        .mark_rule(strokeWidth=2)
        .encode(y=y, yOffset=offset, x=alt.X("low:Q", scale=scale, axis=axis), x2="high:Q", color=colour),
        base.mark_point(filled=True, size=70, opacity=1).encode(
            x=alt.X("value:Q", scale=scale, axis=axis, title=x_title), color=colour, shape=shape
        ),
    ]
    return _svg(alt.layer(*layers), height=max(60, (18 + 6 * len(names)) * len(labels)))


def strips(points: Sequence[Point], means: Sequence[Point], x_title: str) -> str:
    """One row a label: every pair as a thin tick, the mean and its interval on top; ratio axis, line at 1."""
    labels = list(dict.fromkeys(point.label for point in means))
    scale, axis = _ratio_axis([*points, *means], steps=6)
    x = alt.X("value:Q", scale=scale, axis=axis, title=x_title)
    y = alt.Y("label:N", sort=labels, title=None, axis=alt.Axis(labelLimit=190, grid=False, ticks=False, domain=False))
    mean = alt.Chart(_data([_plain(point) for point in means])).encode(y=y)
    spread = alt.Chart(_data([_plain(point) for point in means if point.low is not None])).encode(y=y)
    layers = [
        _reference("x", 1.0),
        alt.Chart(_data([_plain(point) for point in points]))
        .mark_tick(color="var(--s2)", thickness=1.5, size=14, opacity=0.8)
        .encode(x=x, y=y),
        spread.mark_rule(strokeWidth=3, color="var(--s1)").encode(
            x=alt.X("low:Q", scale=scale, axis=axis), x2=alt.X2("high:Q")
        ),
        mean.mark_point(filled=True, size=70, opacity=1, color="var(--s1)").encode(x=x),
    ]
    return _svg(alt.layer(*layers), height=max(60, 26 * len(labels)))


def phases(bars: Sequence[Bar]) -> str:
    """Stacked horizontal bars of seconds by phase, in the order in which the phases run."""
    values = [
        {"label": bar.label, "phase": name, "order": order, "seconds": bar.phases.get(name, 0.0)}
        for bar in bars
        for order, name in enumerate(PHASES)
    ]
    chart = (
        alt.Chart(_data(values))
        .mark_bar(stroke="var(--bg)", strokeWidth=0.7, height=alt.RelativeBandSize(0.72))
        .encode(
            x=alt.X("seconds:Q", title="seconds to the first token", stack=True, axis=alt.Axis(tickCount=5)),
            y=alt.Y(
                "label:N",
                sort=[bar.label for bar in bars],
                title=None,
                axis=alt.Axis(labelLimit=190, grid=False, ticks=False, domain=False),
            ),
            color=alt.Color("phase:N", scale=alt.Scale(domain=list(PHASES), range=PHASE_COLOURS), legend=None),
            order=alt.Order("order:Q"),
        )
    )
    return _svg(chart, height=max(60, 24 * len(bars)))


def price(points: Sequence[Point], x_title: str, y_title: str) -> str:
    """Share of answers kept (up) against speed-up (across, line at 1): `value` is the speed-up, `low` the share."""
    names = list(dict.fromkeys(point.series for point in points))
    scale, axis = _ratio_axis([Point("", "", point.value) for point in points], steps=6)
    values = [{"x": point.value, "y": point.low, "series": point.series, "label": point.label} for point in points]
    share = alt.Y(
        "y:Q",
        scale=alt.Scale(domain=[-0.08, 1.08], nice=False),
        axis=alt.Axis(format="%", values=[0, 0.25, 0.5, 0.75, 1]),
        title=y_title,
    )
    colour = alt.Color("series:N", sort=names, scale=alt.Scale(domain=names, range=SERIES), legend=_legend(names))
    shape = alt.Shape("series:N", sort=names, scale=alt.Scale(domain=names, range=SHAPES), legend=_legend(names))
    base = alt.Chart(_data(values)).encode(x=alt.X("x:Q", scale=scale, axis=axis, title=x_title), y=share)
    marks = base.mark_point(filled=True, size=80, opacity=1).encode(color=colour, shape=shape)
    text = base.mark_text(dy=15, fontSize=10, color="currentColor").encode(text="label:N")
    return _svg(alt.layer(_reference("x", 1.0), marks, text), height=210)


def drift(points: Sequence[tuple[float, float, str]]) -> str:
    """Seconds / the series' median (up, base-2 logarithm, line at 1) against minutes (across), for each series."""
    names = list(dict.fromkeys(series for _, _, series in points))
    values = [{"x": x, "y": y, "series": series} for x, y, series in points]
    scale, axis = _ratio_axis([Point("", "", y) for _, y, _ in points], steps=6)
    deviation = alt.Y("y:Q", scale=scale, axis=axis, title="seconds / median")
    colour = alt.Color("series:N", sort=names, scale=alt.Scale(domain=names, range=SERIES), legend=_legend(names))
    shape = alt.Shape("series:N", sort=names, scale=alt.Scale(domain=names, range=SHAPES), legend=_legend(names))
    minutes = alt.X("x:Q", title="minutes since the first trial", axis=alt.Axis(tickCount=6, grid=False))
    marks = alt.Chart(_data(values)).mark_point(filled=True, size=30, opacity=0.9)
    return _svg(
        alt.layer(marks.encode(x=minutes, y=deviation, color=colour, shape=shape), _reference("y", 1.0)), height=190
    )


def _data(values: list[dict[str, Any]]) -> Any:
    return alt.Data(values=values)  # type: ignore[no-untyped-call]


def _plain(point: Point) -> dict[str, str | float]:
    pairs = vars(point).items()
    return {name: value for name, value in pairs if value is not None}


def _ratio_axis(points: Sequence[Point], steps: int) -> tuple[alt.Scale, alt.Axis]:
    """A base-2 logarithmic scale around all values and around 1; about `steps` even ticks at most, one of them 1."""
    seen = [x for p in points for x in (p.value, p.low, p.high, p.predicted) if x is not None and x > 0]
    low, high = min([*seen, 0.95]) / 1.04, max([*seen, 1.05]) * 1.04
    octaves = math.log2(high / low)
    if octaves > 1.2:
        # Every doubling, every other one, ...: the same distance between all of them.
        every = max(1, math.ceil(octaves / steps))
        ticks = [2.0**n for n in range(-60, 61, 1) if n % every == 0 and low <= 2.0**n <= high]
    else:
        step = next((s for s in FINE_STEPS if (high - low) / s <= steps), FINE_STEPS[-1])
        ticks = [round(n * step, 2) for n in range(math.ceil(low / step), math.floor(high / step) + 1)]
    axis = alt.Axis(values=ticks, labelExpr=f"format(datum.value, '~g') + '{TIMES}'")
    return alt.Scale(type="log", base=2, domain=[low, high], nice=False), axis


def _reference(channel: str, value: float) -> alt.Chart:
    rule = alt.Chart(_data([{"at": value}])).mark_rule(strokeDash=[4, 3], color="currentColor", strokeWidth=1)
    return rule.encode(y="at:Q") if channel == "y" else rule.encode(x="at:Q")


def _legend(names: Sequence[str]) -> alt.Legend | None:
    return alt.Legend(orient="top", title=None, columns=2, labelLimit=180, symbolSize=70) if len(names) > 1 else None


def _svg(chart: Any, height: int) -> str:
    axis = {
        "labelColor": "currentColor",
        "titleColor": "currentColor",
        "labelFontSize": 11,
        "titleFontSize": 11,
        "titleFontWeight": "normal",
        "titlePadding": 8,
        "gridColor": "var(--line)",
        "domainColor": "var(--line)",
        "tickColor": "var(--line)",
    }
    spec = (
        chart.properties(
            width=WIDTH, height=height, autosize=alt.AutoSizeParams(type="fit-x", contains="padding"), padding=4
        )
        .configure(font="Liberation Sans", background="transparent", aria=False)
        .configure_axis(**axis)
        .configure_legend(labelColor="currentColor", labelFontSize=11)
        .configure_view(stroke=None)
    )
    # The renderer checks the specification too; altair's own check takes longer than the drawing.
    return _tidy(vl_convert.vegalite_to_svg(spec.to_json(validate=False), vl_version=VEGA_LITE))


def _tidy(svg: str) -> str:
    """Drop what a page does not need and what changes from run to run (ids); halves the size."""
    ElementTree.register_namespace("", SVG)
    root = ElementTree.fromstring(svg)
    for clip in [*root.iter(f"{{{SVG}}}defs")]:
        clip.clear()
    for parent in [*root.iter()]:
        for child in [*parent]:
            invisible = child.get("display") == "none" or child.get("opacity") == "0"
            empty = child.tag == f"{{{SVG}}}text" and not (child.text or "").strip() and not len(child)
            background = child.get("class") == "background" and child.get("fill") is None
            if invisible or empty or background or child.tag == f"{{{SVG}}}defs":
                parent.remove(child)
    for element in root.iter():
        for name in (
            "class",
            "role",
            "aria-roledescription",
            "aria-hidden",
            "pointer-events",
            "clip-path",
            "font-family",
        ):
            element.attrib.pop(name, None)
        for name, default in (("opacity", "1"), ("transform", "translate(0,0)"), ("y2", "0"), ("x2", "0")):
            if element.get(name) == default:
                del element.attrib[name]
        for name in ("transform", "d"):
            if name in element.attrib:
                element.set(name, re.sub(r"-?\d+\.\d{2,}", _round, element.attrib[name]))
    _unwrap(root)
    _share_style(root)
    box = root.get("viewBox", f"0 0 {WIDTH} 100")
    root.attrib.clear()
    root.set("viewBox", box)
    root.set("width", box.split()[2])
    root.set("height", box.split()[3])
    # Inside HTML the namespace is implied.
    return ElementTree.tostring(root, encoding="unicode").replace(f' xmlns="{SVG}"', "", 1)


def _round(match: re.Match[str]) -> str:
    value = round(float(match.group()), 1)
    return f"{0.0 if math.isclose(value, 0.0) else value:g}"


def _share_style(element: ElementTree.Element) -> None:
    """Say once, in a group around them, what neighbours of one kind look like."""
    for child in [*element]:
        _share_style(child)
    runs: list[list[ElementTree.Element]] = []
    for child in [*element]:
        style = _style(child)
        if runs and style and style == _style(runs[-1][0]) and child.tag == runs[-1][0].tag:
            runs[-1].append(child)
        else:
            runs.append([child])
    for run in runs:
        if len(run) < 2:
            continue
        group = ElementTree.Element(f"{{{SVG}}}g", _style(run[0]))
        element.insert([*element].index(run[0]), group)
        for child in run:
            element.remove(child)
            group.append(child)
            for name in INHERITED:
                child.attrib.pop(name, None)


def _style(element: ElementTree.Element) -> dict[str, str]:
    return {name: element.attrib[name] for name in INHERITED if name in element.attrib}


def _unwrap(element: ElementTree.Element) -> None:
    """Replace groups without attributes by their children."""
    for child in [*element]:
        _unwrap(child)
        if child.tag == f"{{{SVG}}}g" and (not child.attrib or not len(child)):
            place = [*element].index(child)
            element.remove(child)
            for offset, grandchild in enumerate([*child]):
                element.insert(place + offset, grandchild)
