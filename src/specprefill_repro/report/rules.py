"""Selection rules side by side: what each bought and what it cost, on the same prompts."""

from dataclasses import dataclass

from specprefill_repro.estimates.schema import CellEstimate
from specprefill_repro.report import numbers
from specprefill_repro.report.data import ReportData
from specprefill_repro.study.engines import IN_PROCESS
from specprefill_repro.study.presets import PRESETS
from specprefill_repro.study.schema import Treatment


@dataclass(frozen=True)
class RuleRow:
    """One cell, named by its rule."""

    rule: str
    keep: str
    tokens_read: str
    speedup: str
    interval: str
    needles: str
    answers: str
    lost: str
    agreement: str
    divergence: str
    last_token: str
    """In how many prompts the last token was dropped."""


@dataclass(frozen=True)
class RuleTable:
    """The rules that one pair was measured with at one length."""

    title: str
    rows: tuple[RuleRow, ...]


def rule_tables(data: ReportData) -> list[RuleTable]:
    """One table for each pair and length that was measured with more than one rule or control."""
    groups: dict[tuple[str, int], list[CellEstimate]] = {}
    for cell in data.estimates.cells:
        if cell.pairs and not cell.treatment.reads_all:
            groups.setdefault((cell.pair, cell.length), []).append(cell)
    return [
        RuleTable(f"{pair}, {numbers.count(length)} tokens", tuple(_row(cell) for cell in cells))
        for (pair, length), cells in groups.items()
        if len({rule_name(cell) for cell in cells}) > 1
    ]


def rule_name(cell: CellEstimate) -> str:
    """The rule that scored and chose, or the control that took its place."""
    if cell.treatment is Treatment.SPECULATIVE:
        return cell.rule or ("the study's own" if cell.engine == IN_PROCESS else cell.engine)
    return cell.treatment.value if cell.rule is None else f"{cell.treatment} ({cell.rule})"


def _lost(cell: CellEstimate) -> str:
    """Such as `1 of 6: 17 % (0 to 64 %)`: a count and its share."""
    if not cell.answers_dense:
        return numbers.NONE
    share = f"{cell.answers_lost} of {cell.answers_dense}: {numbers.percent(cell.answers_lost / cell.answers_dense)}"
    return f"{share} ({numbers.share_bounds(cell.answers_lost_interval)})"


def rule_sources(data: ReportData) -> list[tuple[str, str, str]]:
    """(name, what it does, where it is from) of each named rule of the study, in the order of the presets."""
    used = {rule.preset for rule in data.study.selections}
    return [(name, preset.note, "; ".join(preset.sources)) for name, preset in PRESETS.items() if name in used]


def _row(cell: CellEstimate) -> RuleRow:
    known = [pair.needle_kept for pair in cell.pairs if pair.needle_kept is not None]
    ends = [pair.last_token_kept for pair in cell.pairs if pair.last_token_kept is not None]
    return RuleRow(
        rule=rule_name(cell),
        keep=numbers.keep(cell.nominal_keep),
        tokens_read=numbers.percent(cell.actual_keep),
        speedup=numbers.ratio(cell.speedup),
        interval=numbers.bounds_of(cell.interval95, len(cell.pairs)),
        needles=f"{sum(share == 1 for share in known)} of {len(known)}" if known else numbers.NONE,
        answers=f"{cell.answers_treated} of {cell.answers_dense}",
        lost=_lost(cell),
        agreement=numbers.percent(cell.first_token_agreement),
        divergence=numbers.significant(cell.median_kl_nats, 2),
        last_token=f"{ends.count(False)} of {len(ends)}" if ends else numbers.NONE,
    )
