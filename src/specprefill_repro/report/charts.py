"""Charts as SVG text, made when the page is built: the same values give the same bytes.

Colours are CSS variables of the page and the text is `currentColor`, so that one drawing serves light, dark and print.
Each chart is narrow enough to be read on a phone; wide screens put several side by side. No chart says anything that
the table under it does not.

A chart is written down in Vega-Lite, as its specification has it (vega.github.io/vega-lite), and drawn by vl-convert.
"""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

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
FINE_STEPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.5)
"""Between the ticks of a ratio axis that spans little more than a doubling."""

Spec = dict[str, Any]
"""A part of a Vega-Lite specification."""

ROWS: Spec = {"labelLimit": 190, "grid": False, "ticks": False, "domain": False}
"""The axis of a chart with one row a label."""
DOT: Spec = {"type": "point", "filled": True, "size": 70, "opacity": 1}
CONFIG: Spec = {
    "font": "Liberation Sans",
    "background": "transparent",
    "aria": False,
    "axis": {
        "labelColor": "currentColor",
        "titleColor": "currentColor",
        "labelFontSize": 11,
        "titleFontSize": 11,
        "titleFontWeight": "normal",
        "titlePadding": 8,
        "gridColor": "var(--line)",
        "domainColor": "var(--line)",
        "tickColor": "var(--line)",
    },
    "legend": {"labelColor": "currentColor", "labelFontSize": 11},
    "view": {"stroke": None, "continuousWidth": 300, "continuousHeight": 300},
}


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
    names = _names(points)
    scale, axis = _ratio_axis(points, steps=7)
    place = {
        "x": {**_nominal("label", _labels(points)), "type": "ordinal", "title": x_title, "axis": {"labelAngle": 0}},
        "xOffset": {**_nominal("series", names), "scale": {"paddingInner": 0.6, "paddingOuter": 0.9}},
    }
    hollow = {"type": "point", "shape": PREDICTED, "filled": False, "size": 110, "strokeWidth": 1.5, "opacity": 1}
    intervals = {"y": _number("low", scale=scale), "y2": {"field": "high"}, "color": _colour(names)}
    values = {"y": _number("value", scale=scale, axis=axis, title="speed-up")}
    layers = [
        _reference("y", 1.0),
        _layer(_with("low", points), {"type": "rule", "strokeWidth": 2}, {**intervals, **place}),
        _layer(_values(points), DOT, {**values, "color": _colour(names), "shape": _shape(names), **place}),
        _layer(
            _with("predicted", points),
            {**hollow, "color": "currentColor"},
            {"y": _number("predicted", scale=scale), **place},
        ),
    ]
    return _svg({"layer": layers}, height=230)


def intervals(points: Sequence[Point], x_title: str, kind: str, reference: float | None = None) -> str:
    """One row a label: value and interval across. `kind`: "ratio" (logarithm), "share" or "amount"."""
    labels, names = _labels(points), _names(points)
    scale: Spec
    axis: Spec
    if kind == "ratio":
        scale, axis = _ratio_axis(points, steps=6)
    elif kind == "share":
        scale, axis = {"domain": [0, 1]}, {"values": [0, 0.25, 0.5, 0.75, 1], "format": "%"}
    else:
        top = max([point.high or point.value for point in points], default=1.0)
        scale, axis = _amount_axis(top or 1.0)
    place = {
        "y": {**_nominal("label", labels), "title": None, "axis": ROWS},
        "yOffset": {**_nominal("series", names), "scale": {"paddingInner": 0.4, "paddingOuter": 0.6}},
    }
    span = {"x": _number("low", scale=scale, axis=axis), "x2": {"field": "high"}, "color": _colour(names)}
    value = {"x": _number("value", scale=scale, axis=axis, title=x_title)}
    layers = [_reference("x", reference)] if reference is not None else []
    layers += [
        _layer(_with("low", points), {"type": "rule", "strokeWidth": 2}, {**place, **span}),
        _layer(_values(points), DOT, {**place, **value, "color": _colour(names), "shape": _shape(names)}),
    ]
    return _svg({"layer": layers}, height=max(60, (18 + 6 * len(names)) * len(labels)))


def strips(points: Sequence[Point], means: Sequence[Point], x_title: str) -> str:
    """One row a label: every pair as a thin tick, the mean and its interval on top; ratio axis, line at 1."""
    labels = _labels(means)
    scale, axis = _ratio_axis([*points, *means], steps=6)
    y = {**_nominal("label", labels), "title": None, "axis": ROWS}
    value = {"x": _number("value", scale=scale, axis=axis, title=x_title), "y": y}
    span = {"x": _number("low", scale=scale, axis=axis), "x2": {"field": "high"}, "y": y}
    tick = {"type": "tick", "color": "var(--s2)", "thickness": 1.5, "size": 14, "opacity": 0.8}
    layers = [
        _reference("x", 1.0),
        _layer(_values(points), tick, value),
        _layer(_with("low", means), {"type": "rule", "strokeWidth": 3, "color": "var(--s1)"}, span),
        _layer(_values(means), {**DOT, "color": "var(--s1)"}, value),
    ]
    return _svg({"layer": layers}, height=max(60, 26 * len(labels)))


def phases(bars: Sequence[Bar]) -> str:
    """Stacked horizontal bars of seconds by phase, in the order in which the phases run."""
    values = [
        {"label": bar.label, "phase": name, "order": order, "seconds": bar.phases.get(name, 0.0)}
        for bar in bars
        for order, name in enumerate(PHASES)
    ]
    colours = {"domain": list(PHASES), "range": PHASE_COLOURS}
    encoding = {
        "x": _number("seconds", title="seconds to the first token", stack=True, axis={"tickCount": 5}),
        "y": {**_nominal("label", [bar.label for bar in bars]), "title": None, "axis": ROWS},
        "color": {"field": "phase", "type": "nominal", "scale": colours, "legend": None},
        "order": _number("order"),
    }
    bar = {"type": "bar", "stroke": "var(--bg)", "strokeWidth": 0.7, "height": {"band": 0.72}}
    return _svg(_layer(values, bar, encoding), height=max(60, 24 * len(bars)))


def price(points: Sequence[Point], x_title: str, y_title: str) -> str:
    """Share of answers kept (up) against speed-up (across, line at 1): `value` is the speed-up, `low` the share."""
    names = _names(points)
    scale, axis = _ratio_axis([Point("", "", point.value) for point in points], steps=6)
    values = [{"x": point.value, "y": point.low, "series": point.series, "label": point.label} for point in points]
    shares = {"format": "%", "values": [0, 0.25, 0.5, 0.75, 1]}
    place = {
        "x": _number("x", scale=scale, axis=axis, title=x_title),
        "y": _number("y", scale={"domain": [-0.08, 1.08], "nice": False}, axis=shares, title=y_title),
    }
    text = {"type": "text", "dy": 15, "fontSize": 10, "color": "currentColor"}
    layers = [
        _reference("x", 1.0),
        _layer(values, {**DOT, "size": 80}, {**place, "color": _colour(names), "shape": _shape(names)}),
        _layer(values, text, {**place, "text": {"field": "label", "type": "nominal"}}),
    ]
    return _svg({"layer": layers}, height=210)


def drift(points: Sequence[tuple[float, float, str]]) -> str:
    """Seconds / the series' median (up, base-2 logarithm, line at 1) against minutes (across), for each series."""
    names = list(dict.fromkeys(series for _, _, series in points))
    values = [{"x": x, "y": y, "series": series} for x, y, series in points]
    scale, axis = _ratio_axis([Point("", "", y) for _, y, _ in points], steps=6)
    encoding = {
        "x": _number("x", title="minutes since the first trial", axis={"tickCount": 6, "grid": False}),
        "y": _number("y", scale=scale, axis=axis, title="seconds / median"),
        "color": _colour(names),
        "shape": _shape(names),
    }
    marks = {"type": "point", "filled": True, "size": 30, "opacity": 0.9}
    return _svg({"layer": [_layer(values, marks, encoding), _reference("y", 1.0)]}, height=190)


def _labels(points: Sequence[Point]) -> list[str]:
    return list(dict.fromkeys(point.label for point in points))


def _names(points: Sequence[Point]) -> list[str]:
    return list(dict.fromkeys(point.series for point in points))


def _values(points: Sequence[Point]) -> list[Spec]:
    return [{name: value for name, value in vars(point).items() if value is not None} for point in points]


def _with(name: str, points: Sequence[Point]) -> list[Spec]:
    return [value for value in _values(points) if name in value]


def _layer(values: Sequence[Spec], mark: Spec, encoding: Spec) -> Spec:
    return {"data": {"values": values}, "mark": mark, "encoding": encoding}


def _number(field: str, **channel: Any) -> Spec:
    return {"field": field, "type": "quantitative", **channel}


def _nominal(field: str, order: Sequence[str]) -> Spec:
    return {"field": field, "type": "nominal", "sort": order}


def _colour(names: Sequence[str]) -> Spec:
    return {**_nominal("series", names), "scale": {"domain": names, "range": SERIES}, "legend": _legend(names)}


def _shape(names: Sequence[str]) -> Spec:
    return {**_nominal("series", names), "scale": {"domain": names, "range": SHAPES}, "legend": _legend(names)}


def _legend(names: Sequence[str]) -> Spec | None:
    if len(names) < 2:
        return None
    return {"orient": "top", "title": None, "columns": 2, "labelLimit": 180, "symbolSize": 70}


def _reference(channel: str, value: float) -> Spec:
    rule = {"type": "rule", "strokeDash": [4, 3], "color": "currentColor", "strokeWidth": 1}
    return _layer([{"at": value}], rule, {channel: _number("at")})


def _amount_axis(top: float) -> tuple[Spec, Spec]:
    """A square-root scale from 0 to the first round tick that is not below `top`; at most six even ticks."""
    decade = 10.0 ** math.floor(math.log10(top))
    step = next(part * decade for part in (0.2, 0.25, 0.5, 1.0, 2.0, 5.0) if top <= 5 * part * decade)
    ticks = [float(f"{n * step:.6g}") for n in range(math.ceil(round(top / step, 9)) + 1)]
    return {"type": "sqrt", "domain": [0, ticks[-1]], "nice": False}, {"values": ticks, "format": "~g"}


def _ratio_axis(points: Sequence[Point], steps: int) -> tuple[Spec, Spec]:
    """A base-2 logarithmic scale around all values and around 1; about `steps` even ticks at most, one of them 1."""
    seen = [x for p in points for x in (p.value, p.low, p.high, p.predicted) if x is not None and x > 0]
    low, high = min([*seen, 0.95]) / 1.04, max([*seen, 1.05]) * 1.04
    octaves = math.log2(high / low)
    # Every doubling, every other one, ...: the same distance between all of them.
    every = max(1, math.ceil(octaves / steps))
    ticks = [2.0**n for n in range(-60, 61, 1) if n % every == 0 and low <= 2.0**n <= high]
    if octaves <= 1.2 or (len(ticks) < 3 and every == 1):
        # Too few of them to read a value off.
        step = next((s for s in FINE_STEPS if (high - low) / s <= steps), FINE_STEPS[-1])
        ticks = [round(n * step, 2) for n in range(math.ceil(low / step), math.floor(high / step) + 1)]
    axis = {"values": ticks, "labelExpr": f"format(datum.value, '~g') + '{TIMES}'"}
    return {"type": "log", "base": 2, "domain": [low, high], "nice": False}, axis


def _svg(chart: Spec, height: int) -> str:
    fit = {"type": "fit-x", "contains": "padding"}
    whole = {"width": WIDTH, "height": height, "autosize": fit, "padding": 4, "config": CONFIG, **chart}
    return _tidy(vl_convert.vegalite_to_svg(json.dumps(whole), vl_version=VEGA_LITE))


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
