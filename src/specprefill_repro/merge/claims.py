"""The same claim on many machines: which measurements can be laid side by side, and what they say together."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import stats

from specprefill_repro.bundles.schema import machine_of
from specprefill_repro.estimates.schema import CellEstimate
from specprefill_repro.files import content_id
from specprefill_repro.merge.random_effects import Effects, random_effects
from specprefill_repro.merge.sources import Source
from specprefill_repro.verdicts.matching import is_full_match
from specprefill_repro.verdicts.schema import Claim, Rule, Verdict, Word

SPEED_RULES = (Rule.AT_LEAST, Rule.EQUAL, Rule.PREDICTED, Rule.SLOWER, Rule.TIED, Rule.SHOWN)
OF_THE_MACHINE = frozenset({"hardware", "memory"})
"""A claim may differ in these and still be about the same thing, on another machine."""


@dataclass(frozen=True)
class Row:
    """What one report says about one claim."""

    source: str
    machine: str
    verdict: Verdict
    effect: float | None
    """ln of the speed-up; None where it does not count."""
    error: float | None
    """Its standard error."""
    left_out: str | None
    """Why it does not count."""
    again: bool = False
    """Whether that is because its trials count already in another report."""


@dataclass(frozen=True)
class MergedClaim:
    claim: Claim
    rows: tuple[Row, ...]
    machines: int
    """Kinds of machine that count."""
    effects: Effects | None
    """Over machines; None below two."""


def merge_claims(sources: Sequence[Source]) -> list[MergedClaim]:
    """One entry for each claim that any report speaks to; cards that differ in anything are different claims.

    A trial counts once for a claim, in the first report that has it, whatever else the reports say.
    """
    rows: dict[str, list[Row]] = {}
    claims: dict[str, Claim] = {}
    counted: dict[str, dict[str, str]] = {}
    for source in sources:
        for verdict in source.data.verdicts.verdicts:
            key = content_id(verdict.claim)
            claims[key] = verdict.claim
            rows.setdefault(key, []).append(_row(source, verdict, counted.setdefault(key, {})))
    return [_merged(claims[key], tuple(rows[key])) for key in sorted(rows, key=lambda key: (claims[key].id, key))]


def _merged(claim: Claim, rows: tuple[Row, ...]) -> MergedClaim:
    """Reports of machines of one description are summed up first: they count as one machine."""
    by_machine: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row.effect is not None and row.error is not None:
            by_machine.setdefault(row.machine, []).append((row.effect, row.error))
    units = [_one_machine(found) for found in by_machine.values()]
    effects = random_effects(*zip(*units, strict=True)) if len(units) > 1 else None
    return MergedClaim(claim, rows, len(units), effects)


def _one_machine(found: list[tuple[float, float]]) -> tuple[float, float]:
    if len(found) == 1:
        return found[0]
    summed = random_effects(*zip(*found, strict=True))
    return summed.mean, summed.error


def _row(source: Source, verdict: Verdict, counted: dict[str, str]) -> Row:
    """Args: counted: by the hash of a record, the report whose row for this claim it counts in; gets those of this."""
    cell = next((c for c in source.data.estimates.cells if verdict.cells and c.cell == verdict.cells[0]), None)
    left_out = _why_not(verdict, cell)
    effect = error = None
    again: list[str] = []
    if left_out is None and cell is not None:
        records = [record for pair in cell.pairs for record in (pair.dense_record, pair.treated_record)]
        again = [record for record in records if record in counted]
        if again:
            how_many = "its trials" if len(again) == len(records) else f"{len(again)} of its {len(records)} trials"
            left_out = f"{how_many} count already in {counted[again[0]]}"
        else:
            counted.update(dict.fromkeys(records, source.name))
            effect, error = _effect(cell)
    return Row(source.name, machine_of(source.data.estimates), verdict, effect, error, left_out, bool(again))


def _why_not(verdict: Verdict, cell: CellEstimate | None) -> str | None:
    if verdict.claim.rule not in SPEED_RULES or verdict.claim.metric != "ttft_speedup":
        return "not about a speed-up: shown, not summed up"
    if verdict.word in (Word.INVALID, Word.NOT_RUN):
        return verdict.word.value
    if verdict.word is Word.NOT_COMPARABLE:
        # As for a verdict: what a source leaves open counts only where a figure can't be repeated without it.
        differ = {row.condition for row in verdict.conditions if not is_full_match([row])}
        if not verdict.conditions or differ - OF_THE_MACHINE:
            return f"differs in {', '.join(sorted(differ - OF_THE_MACHINE)) or 'more than the machine'}"
    if cell is None or cell.interval95 is None or _effect(cell)[1] <= 0:
        return "fewer than two pairs"
    return None


def _effect(cell: CellEstimate) -> tuple[float, float]:
    """ln of the speed-up and its standard error, from the 95 % interval, which is Student's t."""
    if cell.speedup is None or cell.interval95 is None or cell.degrees is None:
        return 0.0, 0.0
    half = (math.log(cell.interval95.high) - math.log(cell.interval95.low)) / 2
    return math.log(cell.speedup), half / float(stats.t.ppf(0.975, cell.degrees))
