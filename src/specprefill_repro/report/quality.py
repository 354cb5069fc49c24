"""Tables of the price in quality: by kind of prompt, by depth and length, and how far the words moved."""

from collections.abc import Sequence
from dataclasses import dataclass

from specprefill_repro.estimates.schema import CellEstimate, Interval
from specprefill_repro.report import numbers
from specprefill_repro.report.data import ReportData
from specprefill_repro.report.groups import Group, groups, outermost, spread
from specprefill_repro.report.rules import rule_name
from specprefill_repro.study.schema import NeedleKind

KINDS = {
    NeedleKind.NUMBER: "one number",
    NeedleKind.CITY: "one city",
    NeedleKind.SEVERAL: "several facts",
    NeedleKind.CODE: "code, word for word",
    NeedleKind.JSON: "JSON",
}


MOST_DEPTHS, MOST_LENGTHS = 25, 30
"""A grid with more columns or rows than this is no table that anybody reads."""


@dataclass(frozen=True)
class Table:
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """Of text; the first of a row is its heading."""


def quality_tables(data: ReportData) -> list[Table]:
    """Those that have something to show."""
    cells = [c for c in data.estimates.cells if c.pairs and not c.treatment.reads_all]
    listed = groups(data, cells)
    found = [_by_kind(listed), *_grids(cells), _words(listed)]
    return [table for table in found if table is not None and table.rows]


def _by_kind(listed: Sequence[Group]) -> Table | None:
    """Where there is more to say than the one answer of each prompt."""
    kinds = {part.kind for group in listed for cell in group.cells for part in cell.quality.kinds}
    if not kinds - {NeedleKind.NUMBER} and not kinds - {NeedleKind.CITY}:
        return None
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
    rows = tuple(_kind_row(group, kind) for group in listed for kind in _kinds(group))
    return Table("Answers in full by kind of prompt", columns, rows)


def _kinds(group: Group) -> list[NeedleKind]:
    return list(dict.fromkeys(part.kind for cell in group.cells for part in cell.quality.kinds))


def _kind_row(group: Group, kind: NeedleKind) -> tuple[str, ...]:
    found = [part for cell in group.cells for part in cell.quality.kinds if part.kind is kind]
    pairs, parts = sum(part.pairs for part in found), sum(part.parts for part in found)
    return (
        f"{group.label}: {KINDS[kind]}",
        f"{sum(part.dense for part in found)} of {pairs}",
        f"{sum(part.treated for part in found)} of {pairs}",
        f"{sum(part.lost for part in found)}",
        f"{sum(part.gained for part in found)}",
        _points(outermost([part.difference_interval95 for part in found])),
        f"{sum(part.dense_parts for part in found)} of {parts}" if parts else numbers.NONE,
        f"{sum(part.treated_parts for part in found)} of {parts}" if parts else numbers.NONE,
    )


def _grids(cells: list[CellEstimate]) -> list[Table]:
    """Answers by depth and length, one grid for each pair, rule and keep rate that has not too many of either."""
    together: dict[tuple[str, str, str], list[CellEstimate]] = {}
    for cell in cells:
        together.setdefault((cell.pair, rule_name(cell), numbers.keep(cell.nominal_keep)), []).append(cell)
    tables = []
    for (pair, rule, keep), members in together.items():
        depths = sorted({p.depth for cell in members for p in cell.pairs if p.depth is not None})
        if len(depths) < 2 or len(depths) > MOST_DEPTHS or len(members) > MOST_LENGTHS:
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


def _words(listed: Sequence[Group]) -> Table:
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
    return Table("How far the words moved from those of dense prefill", columns, tuple(_word_row(g) for g in listed))


def _word_row(group: Group) -> tuple[str, ...]:
    cells, found = group.cells, [cell.quality for cell in group.cells]
    return (
        group.label,
        spread(numbers.percent, [cell.first_token_agreement for cell in cells]),
        numbers.share_bounds(outermost([quality.agreement_interval95 for quality in found])),
        spread(numbers.two_digits, [cell.median_kl_nats for cell in cells]),
        _amounts(outermost([quality.kl_interval95 for quality in found])),
        spread(numbers.significant, [quality.dense_perplexity for quality in found]),
        spread(numbers.significant, [quality.treated_perplexity for quality in found]),
        spread(numbers.ratio, [quality.perplexity_ratio for quality in found]),
        group.bounds(lambda cell: cell.quality.perplexity_interval95),
    )


def _points(interval: Interval | None) -> str:
    if interval is None:
        return numbers.NONE
    return f"{100 * interval.low:+.0f} to {100 * interval.high:+.0f} points"


def _amounts(interval: Interval | None) -> str:
    if interval is None:
        return numbers.NONE
    return f"{numbers.significant(interval.low, 2)} to {numbers.significant(interval.high, 2)}"
