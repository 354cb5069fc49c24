"""The answer to the study's question in one sentence, computed from estimates, verdicts and gates.

Which cell speaks for a pair is fixed without looking at its result: the longest prompt, and there the keep rate
nearest to 0.2, the one that published figures use. Pairs of natural models speak before controls.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

from specprefill_repro.estimates.schema import CellEstimate
from specprefill_repro.estimates.statistics import MIN_PAIRS, TIE_MARGIN
from specprefill_repro.report import numbers
from specprefill_repro.report.data import ReportData
from specprefill_repro.study.schema import Treatment
from specprefill_repro.verdicts.matching import USUAL_KEEP
from specprefill_repro.verdicts.rules import MET, UNDECIDED
from specprefill_repro.verdicts.schema import Rule, Verdict, Word
from specprefill_repro.wording import counted

WIDEST_TIE = 0.1
"""On a machine whose own noise is larger than this, "no difference" would hide one: it is then not settled."""


class Role(StrEnum):
    """What a pair of models is in the study."""

    NATURAL = "natural pair"
    POSITIVE = "positive control"
    """The target is padded with identity layers: a gain must be found."""
    NEGATIVE = "negative control"
    """The target is its own draft: a loss must be found."""


class Outcome(StrEnum):
    GAIN = "gain"
    TIE = "tie"
    LOSS = "loss"
    INCONCLUSIVE = "inconclusive"
    INVALID = "invalid"
    NOT_RUN = "not run"


HEADLINES = {
    Outcome.GAIN: "Yes",
    Outcome.TIE: "No difference",
    Outcome.LOSS: "No, it is slower",
    Outcome.INCONCLUSIVE: "Not settled",
    Outcome.INVALID: "No answer: a check failed",
    Outcome.NOT_RUN: "Not run",
}


@dataclass(frozen=True)
class Answer:
    outcome: Outcome
    headline: str
    """A few words."""
    sentence: str
    cells: tuple[CellEstimate, ...]
    """The cells that it rests on, one a pair."""


def role(data: ReportData, pair: str) -> Role:
    """What a pair is, from the study and the source of its target."""
    models = data.study.pairs[pair]
    if models.target == models.draft:
        return Role.NEGATIVE
    target = data.models.get(models.target)
    return Role.POSITIVE if target is not None and target.source.kind == "padded" else Role.NATURAL


def margin(data: ReportData) -> float:
    """The tie margin as |ln ratio|: 3 %, or what the placebo's interval allows when that is more."""
    return max(math.log(1 + TIE_MARGIN), data.estimates.placebo_margin or 0.0)


def noise(data: ReportData) -> float | None:
    """This machine's noise as a share of the speed-up; None where too few pairs of a placebo count to tell it."""
    pairs = sum(len(cell.pairs) for cell in data.estimates.cells if cell.treatment is Treatment.PLACEBO)
    if data.estimates.placebo_margin is None or pairs < MIN_PAIRS:
        return None
    return math.expm1(data.estimates.placebo_margin)


def headline_cell(data: ReportData, pair: str) -> CellEstimate | None:
    """The cell that speaks for a pair, on the study's own engine; None when that never runs SpecPrefill on it."""
    own = [cell for cell in data.estimates.cells if cell.engine == data.study.engine]
    cells = [c for c in own if c.pair == pair and c.treatment is Treatment.SPECULATIVE]
    return min(cells, key=lambda c: (-c.length, abs(c.nominal_keep - USUAL_KEEP), c.nominal_keep), default=None)


def outcome(data: ReportData, cell: CellEstimate) -> Outcome:
    """What the measurement of one cell says, by the rules of docs/method.md without any claim."""
    gate = data.gates.get(cell.pair)
    if (gate is not None and not gate.passed) or _invalid(data, cell) or (cell.pairs and cell.baseline_problem):
        return Outcome.INVALID
    if not cell.pairs and cell.speedup is None:
        return Outcome.INVALID if cell.problems and gate is not None else Outcome.NOT_RUN
    if cell.interval95 is None or cell.interval90 is None or len(cell.pairs) < MIN_PAIRS:
        return Outcome.INCONCLUSIVE
    tie = math.exp(margin(data))
    if cell.interval95.low > tie:
        return Outcome.GAIN
    if cell.interval95.high < 1 / tie:
        return Outcome.LOSS
    if tie <= 1 + WIDEST_TIE and 1 / tie < cell.interval90.low and cell.interval90.high < tie:
        return Outcome.TIE
    return Outcome.INCONCLUSIVE


def failed_controls(data: ReportData) -> list[Verdict]:
    """The study's rulers that did not come out as they must; they take the answer back, and no claim is judged."""
    return [v for v in data.verdicts.verdicts if v.claim.ruler and v.word not in (*MET, *UNDECIDED)]


def answer(data: ReportData) -> Answer:
    """Answer the study's question."""
    found = [(role(data, pair), headline_cell(data, pair)) for pair in data.pairs]
    for wanted in Role:
        cells = [cell for kind, cell in found if kind is wanted and cell is not None]
        if cells:
            return _answer(data, wanted, cells)
    return Answer(Outcome.NOT_RUN, HEADLINES[Outcome.NOT_RUN], "This study compares no speculative prefill.", ())


def _answer(data: ReportData, kind: Role, cells: list[CellEstimate]) -> Answer:
    outcomes = [outcome(data, cell) for cell in cells]
    one = outcomes[0] if len(set(outcomes)) == 1 else None
    headline = HEADLINES[one] if one else "It depends on the models"
    if one in (Outcome.GAIN, Outcome.LOSS, Outcome.TIE) and kind is not Role.NATURAL:
        headline += f", on the {kind}"
    clauses = [_clause(data, cell, found, len(cells) > 1) for cell, found in zip(cells, outcomes, strict=True)]
    prefix = {
        Role.NATURAL: "",
        Role.POSITIVE: "On a padded target (a control with a known gain, not a natural model): ",
        Role.NEGATIVE: "With the target as its own draft (a control that must lose): ",
    }[kind]
    sentence = prefix + "; ".join(clauses[:3])
    if len(clauses) > 3:
        sentence += f"; and {counted(len(clauses) - 3, 'more pair')}, in the table below"
    sentence = sentence[0].upper() + sentence[1:] + "."
    sentence += _causes(data, cells, outcomes) + _advice(data, cells, outcomes)
    if kind is Role.POSITIVE:
        sentence += _negative_control(data)
    failed = failed_controls(data)
    overall = one or Outcome.INCONCLUSIVE
    if failed and overall not in (Outcome.INVALID, Outcome.NOT_RUN):
        names = ", ".join(verdict.claim.id for verdict in failed)
        sentence += f" But this does not count, because a control did not come out as it must: {names}."
        return Answer(Outcome.INVALID, "No answer: a control failed", sentence, tuple(cells))
    return Answer(overall, headline, sentence, tuple(cells))


def _clause(data: ReportData, cell: CellEstimate, found: Outcome, several: bool) -> str:
    where = f"{numbers.count(cell.length)} prompt tokens and keep {numbers.keep(cell.nominal_keep)}"
    where += f" on pair {cell.pair}" if several else ""
    if found is Outcome.NOT_RUN:
        return f"nothing has been measured yet at {where}"
    if found is Outcome.INVALID:
        return f"the measurement at {where} does not count: {_reason(data, cell)}"
    if cell.speedup is None or len(cell.pairs) < MIN_PAIRS:
        seen = "" if cell.speedup is None else f" (speed-up so far {numbers.ratio(cell.speedup)})"
        return f"at {where}, only {_pairs(cell)} of trials count{seen}; a verdict needs {MIN_PAIRS}"
    spread = f"95{numbers.SPACE}% interval {numbers.bounds(cell.interval95)}, {_pairs(cell)}"
    speedup = numbers.ratio(cell.speedup)
    if found is Outcome.GAIN:
        text = f"at {where}, SpecPrefill reached the first token {speedup} as fast as dense prefill ({spread})"
    elif found is Outcome.LOSS:
        slower = numbers.ratio(1 / cell.speedup)
        text = f"at {where}, SpecPrefill took {slower} as long as dense prefill (speed-up {speedup}, {spread})"
    elif found is Outcome.TIE:
        text = f"at {where}, SpecPrefill was as fast as dense prefill within the tie margin ({speedup}, {spread})"
    else:
        text = f"at {where}, the speed-up of {speedup} ({spread}) cannot be told from no difference: {_margin(data)}"
        return f"{text}; {_price(cell)}"
    return f"{text}, and {_price(cell)}"


def _margin(data: ReportData) -> str:
    """What counts as no difference here, and why so much."""
    if data.estimates.placebo_margin is not None and noise(data) is None:
        return "too few pairs of dense against dense count to tell this machine's noise"
    share = numbers.percent(math.expm1(margin(data)))
    if (data.estimates.placebo_margin or 0.0) > math.log(1 + TIE_MARGIN):
        return f"on this machine dense prefill differs from itself by up to ±{share}, so less than that shows nothing"
    return f"whatever may lie within ±{share} counts as none"


def _pairs(cell: CellEstimate) -> str:
    return counted(len(cell.pairs), "pair")


def _price(cell: CellEstimate) -> str:
    if not cell.answers_dense:
        return "dense prefill itself found no answer, so that the price in quality is unknown"
    lost = "none" if cell.answers_lost == 0 else str(cell.answers_lost)
    return f"SpecPrefill lost {lost} of the {cell.answers_dense} answers that dense prefill found"


def _advice(data: ReportData, cells: list[CellEstimate], outcomes: list[Outcome]) -> str:
    """What to do where it is not settled."""
    unsettled = {cell.cell for cell, found in zip(cells, outcomes, strict=True) if found is Outcome.INCONCLUSIVE}
    if not unsettled:
        return ""
    more = [v.more_pairs for v in data.verdicts.verdicts if v.more_pairs and unsettled & set(v.cells)]
    about = f" (about {counted(max(more), 'more pair')} would settle it)" if more else ""
    return f" To settle it, run the study again on a quiet machine, or with more blocks{about}."


def _causes(data: ReportData, cells: list[CellEstimate], outcomes: list[Outcome]) -> str:
    """Why there is no gain, where there is none."""
    short = [c.cell for c, found in zip(cells, outcomes, strict=True) if found in (Outcome.TIE, Outcome.LOSS)]
    causes = [v.attribution for v in data.verdicts.verdicts if v.attribution and set(short) & set(v.cells)]
    return "".join(f" Cause: {cause.rstrip('.')}." for cause in dict.fromkeys(causes))


def _negative_control(data: ReportData) -> str:
    """One sentence on the target as its own draft, beside the positive control."""
    cells = [headline_cell(data, pair) for pair in data.pairs if role(data, pair) is Role.NEGATIVE]
    for cell in cells:
        if cell is not None and cell.speedup is not None and outcome(data, cell) is Outcome.LOSS:
            slower = numbers.ratio(cell.speedup)
            return f" With the target as its own draft it was slower, as it must be ({slower})."
    return ""


def _reason(data: ReportData, cell: CellEstimate) -> str:
    gate = data.gates.get(cell.pair)
    if gate is not None and not gate.passed:
        return f"the gate of pair {cell.pair} failed ({gate.failures})"
    if cell.problems:
        return cell.problems[0]
    if cell.baseline_problem is not None:
        return f"weak baseline: {cell.baseline_problem}"
    return _invalid(data, cell)[0].sentence.rstrip(".")


def _invalid(data: ReportData, cell: CellEstimate) -> list[Verdict]:
    """Verdicts that say that the measurement of a cell does not count; one without a prediction still does."""
    own = [v for v in data.verdicts.verdicts if v.word is Word.INVALID and cell.cell in v.cells]
    return [v for v in own if v.claim.rule is not Rule.PREDICTED]
