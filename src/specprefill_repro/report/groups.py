"""The rows of tables about cells: one a cell, or in a large study one for all cells that differ in length alone.

What stands in the row of several cells is the range of their values. Each cell by itself is in estimates.json.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from specprefill_repro.estimates.schema import CellEstimate, Drift, Interval
from specprefill_repro.estimates.statistics import MIN_PAIRS
from specprefill_repro.report import numbers
from specprefill_repro.report.data import ReportData
from specprefill_repro.study.engines import IN_PROCESS
from specprefill_repro.study.schema import Treatment

CONTROLS = {Treatment.PLACEBO: "placebo", Treatment.PLAIN: "plain mlx_lm"}
"""What a cell is called in which both arms read everything."""
LISTED_CELLS = 60
"""A study of more cells than this has one row for the cells that differ in length alone."""


@dataclass(frozen=True)
class Group:
    """The cells of one row; more than one only in a large study."""

    cells: tuple[CellEstimate, ...]

    @property
    def first(self) -> CellEstimate:
        """The one that speaks for what all have in common."""
        return self.cells[0]

    @property
    def lengths(self) -> str:
        """Such as `1,024 tokens`, or `512 to 904 tokens`."""
        return f"{spread(numbers.count, [cell.length for cell in self.cells])} tokens"

    @property
    def label(self) -> str:
        """Such as `main · 1,024 tokens · keep 0.2`; controls say what they are, other engines than ours their name."""
        lengths = self.lengths if len(self.cells) == 1 else f"{self.lengths} ({len(self.cells)} cells)"
        parts = [self.first.pair, *engine_name(self.first), lengths]
        if self.first.treatment.reads_all:
            return " · ".join([*parts, CONTROLS[self.first.treatment]])
        return " · ".join([*parts, f"keep {numbers.keep(self.first.nominal_keep)}", *_control(self.first)])

    @property
    def speedup(self) -> str:
        return spread(numbers.ratio, [cell.speedup for cell in self.cells])

    @property
    def interval(self) -> str:
        """95 % interval of the speed-up; of several cells from the lowest end to the highest.

        Cells with fewer pairs than a verdict needs are left out.
        """
        return self.bounds(lambda cell: cell.interval95)

    def bounds(self, of: Callable[[CellEstimate], Interval | None]) -> str:
        """Some interval of a ratio, as `interval`."""
        enough = [cell for cell in self.cells if len(cell.pairs) >= MIN_PAIRS]
        if not enough and self.pairs:
            return numbers.TOO_FEW
        return numbers.bounds(outermost([of(cell) for cell in enough]))

    @property
    def predicted(self) -> str:
        return spread(numbers.ratio, [cell.predicted_speedup for cell in self.cells])

    @property
    def tokens_read(self) -> str:
        return spread(numbers.percent, [cell.actual_keep for cell in self.cells])

    @property
    def pairs(self) -> int:
        """Pairs of trials that count."""
        return sum(len(cell.pairs) for cell in self.cells)


def groups(data: ReportData, cells: Iterable[CellEstimate]) -> list[Group]:
    """The rows of a table about some cells of a study."""
    if len(data.estimates.cells) <= LISTED_CELLS:
        return [Group((cell,)) for cell in cells]
    alike: dict[tuple[object, ...], list[CellEstimate]] = {}
    for cell in cells:
        alike.setdefault((cell.pair, cell.engine, cell.treatment, cell.nominal_keep, cell.rule), []).append(cell)
    return [Group(tuple(some)) for some in alike.values()]


def cell_label(cell: CellEstimate) -> str:
    """The label of the row of one cell."""
    return Group((cell,)).label


def engine_name(measured: CellEstimate | Drift) -> list[str]:
    """None for this package's own engine."""
    return [] if measured.engine == IN_PROCESS else [measured.engine]


def _control(cell: CellEstimate) -> list[str]:
    rule = [] if cell.rule is None else [cell.rule]
    return rule if cell.treatment is Treatment.SPECULATIVE else [cell.treatment.value, *rule]


def spread(form: Callable[[Any], str], values: Sequence[float | None]) -> str:
    """One value as `form` shows it, or the smallest and the largest; those that are missing are left out."""
    known = [value for value in values if value is not None]
    if not known:
        return form(None)
    least, most = form(min(known)), form(max(known))
    return least if least == most else f"{least} to {most}"


def outermost(intervals: Sequence[Interval | None]) -> Interval | None:
    """The interval that holds all of them."""
    known = [interval for interval in intervals if interval is not None]
    if not known:
        return None
    low, high = min(interval.low for interval in known), max(interval.high for interval in known)
    return Interval(low=low, high=high, level=known[0].level)
