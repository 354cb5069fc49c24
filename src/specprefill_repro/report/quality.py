"""Tables of the price in quality: by kind of prompt, by depth and length, and how far the words moved."""

from dataclasses import dataclass

from specprefill_repro.estimates.schema import CellEstimate, Interval
from specprefill_repro.report import numbers
from specprefill_repro.report.data import ReportData
from specprefill_repro.report.rows import cell_label
from specprefill_repro.report.rules import rule_name
from specprefill_repro.study.schema import NeedleKind, Treatment

KINDS = {
    NeedleKind.NUMBER: "one number",
    NeedleKind.CITY: "one city",
    NeedleKind.SEVERAL: "several facts",
    NeedleKind.CODE: "code, word for word",
    NeedleKind.JSON: "JSON",
}


@dataclass(frozen=True)
class Table:
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """Of text; the first of a row is its heading."""


def quality_tables(data: ReportData) -> list[Table]:
    """Those that have something to show."""
    cells = [c for c in data.estimates.cells if c.pairs and c.treatment is not Treatment.PLACEBO]
    found = [_by_kind(cells), *_grids(cells), _words(cells)]
    return [table for table in found if table is not None and table.rows]


def _by_kind(cells: list[CellEstimate]) -> Table | None:
    """Where there is more to say than the one answer of each prompt."""
    kinds = {part.kind for cell in cells for part in cell.quality.kinds}
    if not kinds - {NeedleKind.NUMBER} and not kinds - {NeedleKind.CITY}:
        return None
    rows = tuple(
        (
            f"{cell_label(cell)}: {KINDS[part.kind]}",
            f"{part.dense} of {part.pairs}",
            f"{part.treated} of {part.pairs}",
            f"{part.lost}",
            f"{part.gained}",
            _points(part.difference_interval95),
            f"{part.dense_parts} of {part.parts}" if part.parts else numbers.NONE,
            f"{part.treated_parts} of {part.parts}" if part.parts else numbers.NONE,
        )
        for cell in cells
        for part in cell.quality.kinds
    )
    columns = (
        "cell and kind",
        "dense",
        "treated",
        "lost",
        "gained",
        "difference, 95 %",
        "dense parts",
        "treated parts",
    )
    return Table("Answers in full by kind of prompt", columns, rows)


def _grids(cells: list[CellEstimate]) -> list[Table]:
    """Answers by depth and length, one grid for each pair, rule and keep rate."""
    groups: dict[tuple[str, str, str], list[CellEstimate]] = {}
    for cell in cells:
        groups.setdefault((cell.pair, rule_name(cell), numbers.keep(cell.nominal_keep)), []).append(cell)
    tables = []
    for (pair, rule, keep), members in groups.items():
        depths = sorted({p.depth for cell in members for p in cell.pairs if p.depth is not None})
        if len(depths) < 2:
            continue
        rows = tuple(
            (f"{numbers.count(cell.length)} tokens", *(_at(cell, depth) for depth in depths))
            for cell in sorted(members, key=lambda cell: cell.length)
        )
        columns = ("length", *(f"depth {numbers.percent(depth)}" for depth in depths))
        tables.append(Table(f"Answers by depth, treated / dense: {pair}, {rule}, keep {keep}", columns, rows))
    return tables


def _at(cell: CellEstimate, depth: float) -> str:
    pairs = [pair for pair in cell.pairs if pair.depth == depth]
    if not pairs:
        return numbers.NONE
    return f"{sum(p.treated_answer_found for p in pairs)} / {sum(p.dense_answer_found for p in pairs)}"


def _words(cells: list[CellEstimate]) -> Table:
    rows = tuple(
        (
            cell_label(cell),
            numbers.percent(cell.first_token_agreement),
            numbers.share_bounds(cell.quality.agreement_interval95),
            numbers.significant(cell.median_kl_nats, 2),
            _amounts(cell.quality.kl_interval95),
            numbers.significant(cell.quality.dense_perplexity),
            numbers.significant(cell.quality.treated_perplexity),
            numbers.ratio(cell.quality.perplexity_ratio),
            numbers.bounds(cell.quality.perplexity_interval95),
        )
        for cell in cells
    )
    columns = (
        "cell",
        "same first token",
        "95 %",
        "median KL, nats",
        "95 %",
        "perplexity, dense",
        "treated",
        "ratio",
        "95 %",
    )
    return Table("How far the words moved from those of dense prefill", columns, rows)


def _points(interval: Interval | None) -> str:
    if interval is None:
        return numbers.NONE
    return f"{100 * interval.low:+.0f} to {100 * interval.high:+.0f} points"


def _amounts(interval: Interval | None) -> str:
    if interval is None:
        return numbers.NONE
    return f"{numbers.significant(interval.low, 2)} to {numbers.significant(interval.high, 2)}"
