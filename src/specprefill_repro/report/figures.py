"""From the data to the page's figures: a chart, how to read it, and the table that says the same."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from specprefill_repro.estimates.schema import CellEstimate, Drift
from specprefill_repro.estimates.statistics import MIN_PAIRS
from specprefill_repro.report import charts, numbers
from specprefill_repro.report.answer import Role, role
from specprefill_repro.report.charts import Bar, Point
from specprefill_repro.report.data import ReportData
from specprefill_repro.report.groups import cell_label, engine_name, groups, outermost, spread
from specprefill_repro.report.rows import chart_label, dense_over_time, place_label
from specprefill_repro.study.schema import Treatment
from specprefill_repro.trials.schema import PHASES
from specprefill_repro.verdicts.schema import ClaimKind, Verdict, Word

DRAWN_TRIALS = 200
"""More marks than this say nothing more; the drift chart then draws every nth trial."""
DRAWN_CELLS = 40
"""Rows of a chart; the table under it has them all."""
DRAWN_LENGTHS = 8
"""Of more prompt lengths the speed charts draw so many, evenly spaced."""
LISTED_DRIFTS = 30
DRAWN_CLAIMS = 40
DETAILED_CLAIMS = 16
"""So many claims get a table of conditions; the others get a line, and their conditions are in verdicts.json."""


@dataclass(frozen=True)
class Figure:
    title: str
    svg: str
    read: str
    """How to read it, in one or two sentences."""
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """Of text; the first cell of a row is its heading."""


READS_ALL = {Treatment.PLACEBO: "placebo: dense against dense", Treatment.PLAIN: "dense against plain mlx_lm"}
PLAIN_READ = (
    " Plain mlx_lm reads the whole prompt too, by mlx_lm's own loop. Were it clearly right of the line, the dense arm "
    "would be a weak baseline."
)
PHASE_NAMES = {name: name.replace("_", " ").replace("look ahead", "look-ahead") for name in PHASES}


def _speculative(data: ReportData, pair: str) -> list[CellEstimate]:
    """Measured cells of SpecPrefill on one pair."""
    cells = [c for c in data.estimates.cells if c.pair == pair and c.treatment is Treatment.SPECULATIVE]
    return [cell for cell in cells if cell.speedup is not None]


def _point(cell: CellEstimate, label: str, series: str) -> Point:
    # Of fewer pairs than a verdict needs the interval is so wide that it would crush all the others.
    interval = cell.interval95 if len(cell.pairs) >= MIN_PAIRS else None
    return Point(
        label,
        series,
        cell.speedup or 1.0,
        interval.low if interval else None,
        interval.high if interval else None,
        cell.predicted_speedup,
    )


def _series(name: str, cell: CellEstimate) -> str:
    return name if cell.rule is None else f"{name}, {cell.rule}"


def speed_figures(data: ReportData) -> list[Figure]:
    """Speed-up of SpecPrefill on each pair by prompt length and, where there are several, by keep rate."""
    figures: list[Figure] = []
    columns = (
        "cell",
        "speed-up",
        "95 % interval",
        "predicted",
        "bound",
        "break-even",
        "dense",
        "speculative",
        "tokens read",
        "pairs",
    )
    for pair in data.pairs:
        cells = _speculative(data, pair)
        if not cells:
            continue
        rows = tuple(
            (
                group.label,
                group.speedup,
                group.interval,
                group.predicted,
                spread(numbers.ratio, [cell.bound_speedup for cell in group.cells]),
                _break_even(group.cells),
                spread(numbers.seconds, [cell.dense_median_seconds for cell in group.cells]),
                spread(numbers.seconds, [cell.treated_median_seconds for cell in group.cells]),
                group.tokens_read,
                numbers.count(group.pairs),
            )
            for group in groups(data, cells)
        )
        drawn, not_all = _drawn_lengths(cells)
        kind = role(data, pair)
        name = f"{pair} ({kind})" if kind is not Role.NATURAL else pair
        read = (
            "Each mark is the mean of all pairs of one cell, its line the 95 % interval (none is drawn of fewer than "
            f"{MIN_PAIRS} pairs). Above the dashed line at 1 "
            "SpecPrefill is faster, below it slower. The open diamond is what the separately measured parts predict. "
            "In the table, the bound is what no implementation of this pair at this keep rate exceeds, and break-even "
            "is the prompt length from which on the parts predict a gain, also at all longer ones that were looked at. "
            "Doubling the ratio takes the same distance everywhere on the axis."
        )
        if figures:
            read = "As above: the mean of each cell, its 95 % interval, and the prediction as an open diamond."
        read += not_all
        by_length = [
            _point(c, numbers.count(c.length), _series(f"keep {numbers.keep(c.nominal_keep)}", c))
            for c in sorted(drawn, key=lambda c: (c.length, c.nominal_keep))
        ]
        figures.append(
            Figure(
                f"{name}: by prompt length", charts.speedups(by_length, "prompt length, tokens"), read, columns, rows
            )
        )
        if len({cell.nominal_keep for cell in cells}) > 1:
            by_keep = [
                _point(c, numbers.keep(c.nominal_keep), _series(f"{numbers.count(c.length)} tokens", c))
                for c in sorted(drawn, key=lambda c: (c.nominal_keep, c.length))
            ]
            read = "The same cells, keep rate by keep rate: further to the right the target reads more of the prompt."
            read += not_all
            figures.append(
                Figure(
                    f"{name}: by keep rate",
                    charts.speedups(by_keep, "keep rate asked for"),
                    read,
                    columns[:3],
                    tuple(row[:3] for row in rows),
                )
            )
    return figures


def _drawn_lengths(cells: Sequence[CellEstimate]) -> tuple[list[CellEstimate], str]:
    """The cells of at most DRAWN_LENGTHS evenly spaced prompt lengths, and words on those that are not drawn."""
    lengths = sorted({cell.length for cell in cells})
    if len(lengths) <= DRAWN_LENGTHS:
        return [*cells], ""
    last = len(lengths) - 1
    drawn = {lengths[round(number * last / (DRAWN_LENGTHS - 1))] for number in range(DRAWN_LENGTHS)}
    return [cell for cell in cells if cell.length in drawn], f" Of {len(lengths)} lengths {len(drawn)} are drawn."


def _break_even(cells: Sequence[CellEstimate]) -> str:
    """A length, none up to a length, or why it is not known; of several cells in one row all that occur."""
    return "; ".join(dict.fromkeys(_break_even_of(cell) for cell in cells))


def _break_even_of(cell: CellEstimate) -> str:
    if cell.break_even_tokens is not None:
        return f"{numbers.count(cell.break_even_tokens)} tokens"
    if cell.break_even_limit is None:
        return f"not known: {cell.break_even_problem}" if cell.break_even_problem else "not known"
    limit = f"{numbers.count(cell.break_even_limit)} tokens"
    if (cell.predicted_speedup or 0) > 1:
        return f"none: a gain here, but no more at {limit}"
    return f"none up to {limit}"


def phase_figures(data: ReportData) -> list[Figure]:
    """Median seconds by phase, dense beside speculative, one chart a pair."""
    figures = []
    for pair in data.pairs:
        bars: list[Bar] = []
        rows: list[tuple[str, ...]] = []
        timed = [cell for cell in _speculative(data, pair) if cell.dense_phases and cell.treated_phases]
        for cell in sorted(timed, key=lambda c: (c.length, c.nominal_keep)):
            name = _series(f"{numbers.count(cell.length)} keep {numbers.keep(cell.nominal_keep)}", cell)
            bars += [Bar(f"{name}, dense", cell.dense_phases), Bar(name, cell.treated_phases)]
        for group in groups(data, sorted(timed, key=lambda c: (c.length, c.nominal_keep))):
            rows.append(_phase_row(f"{group.label}, dense", [cell.dense_phases for cell in group.cells]))
            rows.append(_phase_row(f"{group.label}, speculative", [cell.treated_phases for cell in group.cells]))
        if bars:
            read = (
                "Each bar is the time to the first token, cut into its phases (medians). SpecPrefill gains where its "
                "whole bar is shorter than the dense bar above it, which is that of the same pairs of trials."
            )
            if len(bars) > DRAWN_CELLS:
                read += f" Of {len(bars)} bars the first {DRAWN_CELLS} are drawn."
            columns = ("cell and arm, seconds", *PHASE_NAMES.values(), "sum of medians")
            figures.append(Figure(f"Pair {pair}", charts.phases(bars[:DRAWN_CELLS]), read, columns, tuple(rows)))
    return figures


def _phase_row(label: str, cells: Sequence[Mapping[str, float]]) -> tuple[str, ...]:
    """Phases that did not run are left out of the range."""
    seconds = [spread(numbers.significant, [phases.get(name) or None for phases in cells]) for name in PHASES]
    sums = [sum(phases.get(name, 0.0) for name in PHASES) for phases in cells]
    return label, *seconds, spread(numbers.significant, sums)


def quality_figures(data: ReportData) -> list[Figure]:
    """Answers kept, the price of a speed-up, and the distance from dense prefill."""
    cells = [c for c in data.estimates.cells if c.pairs and not c.treatment.reads_all]
    answered = [cell for cell in cells if cell.answers_dense]
    listed = groups(data, cells)
    figures = []
    if answered:
        kept = [_kept_point(cell) for cell in answered[:DRAWN_CELLS]]
        figures.append(
            Figure(
                "Answers kept",
                charts.intervals(kept, "share of dense prefill's answers", "share"),
                "Of the answers that dense prefill found, the share that survives when the target reads only part of "
                "the prompt. The line is the 95 % interval; with few prompts it is wide, and a mark at 100 % does not "
                "prove that nothing is ever lost." + _not_drawn(answered),
                ("cell", "dense found", "treated found", "lost", "share lost, 95 %", "tokens read"),
                tuple(
                    (
                        group.label,
                        f"{sum(cell.answers_dense for cell in group.cells)} of {group.pairs}",
                        f"{sum(cell.answers_treated for cell in group.cells)} of {group.pairs}",
                        f"{sum(cell.answers_lost for cell in group.cells)}",
                        numbers.share_bounds(outermost([cell.answers_lost_interval for cell in group.cells])),
                        group.tokens_read,
                    )
                    for group in listed
                ),
            )
        )
        shown = {pair: _price_length(answered, pair) for pair in data.pairs}
        sold = [cell for cell in answered if cell.length == shown[cell.pair] and cell.speedup is not None]
        bought = [
            Point(
                numbers.keep(cell.nominal_keep),
                f"{cell.pair}, {_selection(cell)}",
                cell.speedup or 1.0,
                1 - cell.answers_lost / cell.answers_dense,
            )
            for cell in sold
        ]
        compared = any(cell.treatment is Treatment.RANDOM for cell in sold)
        figures.append(
            Figure(
                "The price: answers kept against speed-up",
                charts.price(bought, "speed-up", "answers kept"),
                "Each pair at one prompt length, the longest"
                + (" at which a random selection was measured as well" if compared else "")
                + ". Up and to the right is better; the number at a mark is its keep rate."
                + (
                    " Where random selection stands as high as scored selection, the scoring bought nothing."
                    if compared
                    else ""
                ),
                ("cell", "speed-up", "answers kept"),
                tuple(
                    (
                        cell_label(cell),
                        numbers.ratio(cell.speedup),
                        numbers.percent(1 - cell.answers_lost / cell.answers_dense),
                    )
                    for cell in sold
                ),
            )
        )
    distances = [
        Point(_row_label(cell), _selection(cell), cell.median_kl_nats)
        for cell in cells
        if cell.median_kl_nats is not None
    ][:DRAWN_CELLS]
    if distances:
        figures.append(
            Figure(
                "Distance from dense prefill",
                charts.intervals(distances, "median KL divergence, nats", "amount"),
                "How far the first token's probabilities move away from those of dense prefill: 0 is the same, above "
                "about 1 the model says something else. The axis is a square root, so that small distances show."
                + _not_drawn(cells),
                ("cell", "median KL, nats", "same first token"),
                tuple(
                    (
                        group.label,
                        spread(numbers.two_digits, [cell.median_kl_nats for cell in group.cells]),
                        spread(numbers.percent, [cell.first_token_agreement for cell in group.cells]),
                    )
                    for group in listed
                ),
            )
        )
    return figures


def _price_length(cells: Sequence[CellEstimate], pair: str) -> int:
    """The prompt length at which scored and random selection stand side by side; without a random one the longest."""
    own = [cell for cell in cells if cell.pair == pair]
    both = [cell for cell in own if cell.treatment is Treatment.RANDOM] or own
    return max((cell.length for cell in both), default=0)


def _selection(cell: CellEstimate) -> str:
    return cell.rule or "scored" if cell.treatment is Treatment.SPECULATIVE else cell.treatment.value


def _row_label(cell: CellEstimate) -> str:
    """Scored and other selections share a row."""
    return place_label(cell, f"keep {numbers.keep(cell.nominal_keep)}")


def _not_drawn(cells: Sequence[CellEstimate]) -> str:
    if len(cells) <= DRAWN_CELLS:
        return ""
    return f" Of {len(cells)} cells the first {DRAWN_CELLS} are drawn; the table is about all of them."


def _kept_point(cell: CellEstimate) -> Point:
    lost = cell.answers_lost_interval
    return Point(
        _row_label(cell),
        _selection(cell),
        1 - cell.answers_lost / cell.answers_dense,
        1 - lost.high if lost else None,
        1 - lost.low if lost else None,
    )


def control_figures(data: ReportData) -> list[Figure]:
    """Every pair of the controls, and their means."""
    cells = [c for c in data.estimates.cells if c.speedup is not None and _control_name(data, c)]
    if not cells:
        return []
    pairs = []
    for cell in cells[:DRAWN_CELLS]:
        step = max(1, len(cell.pairs) // 20)
        pairs += [
            Point(chart_label(cell), "", pair.dense_seconds / pair.treated_seconds) for pair in cell.pairs[::step]
        ]
    means = [_point(cell, chart_label(cell), "") for cell in cells[:DRAWN_CELLS]]
    rows = tuple(
        (
            group.label,
            _control_name(data, group.first),
            group.speedup,
            group.interval,
            group.predicted,
            f"{sum(cell.answers_lost for cell in group.cells)} of {sum(cell.answers_dense for cell in group.cells)}",
            numbers.count(group.pairs),
        )
        for group in groups(data, cells)
    )
    columns = ("cell", "control", "speed-up", "95 % interval", "predicted", "answers lost", "pairs")
    read = (
        "Thin ticks are single pairs, the dot and its line their mean and 95 % interval. The placebo must straddle "
        "the dashed line at 1: it is dense against dense. The target as its own draft must lie left of it."
        + (PLAIN_READ if any(cell.treatment is Treatment.PLAIN for cell in cells) else "")
        + _not_drawn(cells)
    )
    return [Figure("Controls", charts.strips(pairs, means, "speed-up"), read, columns, rows)]


def _control_name(data: ReportData, cell: CellEstimate) -> str:
    if cell.treatment is not Treatment.SPECULATIVE:
        return READS_ALL.get(cell.treatment, f"{cell.treatment} selection")
    kind = role(data, cell.pair)
    return "" if kind is Role.NATURAL else f"{kind}"


def drift_figures(data: ReportData, trials: pd.DataFrame) -> list[Figure]:
    """Dense seconds in the order of time."""
    points = dense_over_time(data, trials)
    if len(points) < 2:
        return []
    step = -(-len(points) // DRAWN_TRIALS)
    found, not_all = data.estimates.drift, ""
    if len(found) > LISTED_DRIFTS:
        found = tuple(sorted(found, key=lambda drift: -abs(drift.change))[:LISTED_DRIFTS])
        not_all = (
            f" Of {len(data.estimates.drift)} pairs and lengths the table lists the {LISTED_DRIFTS} that changed most; "
            "all are in estimates.json beside this page."
        )
    rows = tuple(
        (
            f"{' '.join([drift.pair, *engine_name(drift)])}, {numbers.count(drift.length)} tokens",
            numbers.count(drift.trials),
            f"{100 * drift.change:+.1f} %",
            _drift_bounds(drift),
            "yes" if drift.found else "no",
        )
        for drift in found
    )
    return [
        Figure(
            "Dense prefill over time",
            charts.drift(points[::step]),
            "Each mark is one dense trial: its seconds, divided by the median of all dense trials of the same pair, "
            "engine and length. Doubling takes the same distance everywhere on the axis. A cloud that climbs means "
            "that the machine became slower; the A B B A order cancels a steady climb." + not_all,
            ("pair and length", "trials", "change over the study", "95 % interval", "drift found"),
            rows,
        )
    ]


def _drift_bounds(drift: Drift) -> str:
    """Seconds can't fall by more than all of them: where the interval says so, the scatter hides any drift."""
    if drift.interval95.low <= -1:
        return "not known: the trials scatter too much"
    return f"{100 * drift.interval95.low:+.1f} to {100 * drift.interval95.high:+.1f} %"


def claim_figures(data: ReportData) -> list[Figure]:
    """Published speed-ups on one axis with what was measured here."""
    published = [v for v in data.verdicts.verdicts if v.claim.kind is not ClaimKind.EXPECTATION and _is_ratio(v)]
    shown = published[:DRAWN_CLAIMS]
    points = [Point(v.claim.id, "published", v.claim.value) for v in shown if v.claim.value is not None]
    judged = [v for v in shown if v.word is not Word.NOT_COMPARABLE]
    points += [_here(v.claim.id, v) for v in judged if v.measured is not None and v.interval95 is not None]
    if not points:
        return []
    rows = tuple(
        (
            verdict.claim.id,
            numbers.with_unit(verdict.claim.value, "x"),
            numbers.ratio(verdict.measured),
            numbers.bounds_of(verdict.interval95, verdict.pairs),
            verdict.word.value,
        )
        for verdict in shown
    )
    read = (
        "Published figures by the id of their card; the statement and source of each stand below. What was measured "
        "here is drawn only beside those whose conditions it meets. Where hardware, models or engine differ, the table "
        "gives our closest cell, and the distance between the two proves nothing about either."
    )
    columns = ("claim", "published", "measured here", "95 % interval", "verdict")
    return [Figure("Published speed-ups", charts.intervals(points, "speed-up", "ratio", 1.0), read, columns, rows)]


def _is_ratio(verdict: Verdict) -> bool:
    return verdict.claim.unit == "x" and (verdict.claim.value or 0) > 0


def _here(label: str, verdict: Verdict) -> Point:
    interval = verdict.interval95
    return Point(
        label,
        "measured here",
        verdict.measured or 1.0,
        interval.low if interval else None,
        interval.high if interval else None,
    )


def legend(figures: Sequence[Figure]) -> list[tuple[str, str]]:
    """(colour variable, phase) of the phase charts; none without a chart."""
    return [(f"--p{number}", name) for number, name in enumerate(PHASE_NAMES.values(), 1)] if figures else []
