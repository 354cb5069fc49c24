"""Estimates and claim cards to verdicts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import expm1

from specprefill_repro.estimates.schema import CellEstimate, Estimates, Interval
from specprefill_repro.estimates.statistics import TIE_MARGIN, Summary, holm, more_pairs_needed, share_interval, summary
from specprefill_repro.study.schema import Study, Treatment
from specprefill_repro.verdicts.attribution import attribute
from specprefill_repro.verdicts.matching import Facts, closest_cell, is_full_match, match_conditions
from specprefill_repro.verdicts.rules import ANSWER_RULES, MET, Judged, judge_answers, judge_speed, word_for
from specprefill_repro.verdicts.schema import (
    Attribution,
    Claim,
    ClaimKind,
    ConditionMatch,
    Contradiction,
    Rule,
    Verdict,
    Verdicts,
    Word,
)
from specprefill_repro.wording import counted

LEVEL = 0.05
TOLERANCE = 0.15
"""Of the prediction, before a cell that no card is about counts as short of it."""


@dataclass(frozen=True)
class Found:
    """A verdict, and what is needed to correct it for the number of primary claims."""

    verdict: Verdict
    p_value: float | None = None
    """The smallest level at which the same word would still be given; None when nothing was tested."""
    seen: Summary | None = None
    """What was tested."""


def build_verdicts(
    study: Study,
    estimates: Estimates,
    claims: Sequence[Claim],
    facts: Facts,
    contradictions: Sequence[Contradiction] = (),
) -> Verdicts:
    """Judge every claim, expectations first, since the rulers among them decide whether the rest may be judged."""
    own = [_expectation(claim, study, estimates) for claim in claims if claim.kind is ClaimKind.EXPECTATION]
    missed = [found.verdict for found in own if found.verdict.claim.ruler and found.verdict.word not in MET]
    broken = "; ".join(f"the control {v.claim.id} came out as {v.word.value!r}" for v in missed) or None
    published = [
        _published(claim, study, estimates, facts, broken)
        for claim in claims
        if claim.kind is not ClaimKind.EXPECTATION
    ]
    verdicts = {found.verdict.claim.id: found.verdict for found in _corrected([*own, *published])}
    named = {claim.id for claim in claims}
    return Verdicts(
        study=study.name,
        verdicts=tuple(verdicts[claim.id] for claim in claims),
        attributions=tuple(_attributions(study, estimates)),
        contradictions=tuple(item for item in contradictions if named & set(item.claims)),
    )


def _attributions(study: Study, estimates: Estimates) -> list[Attribution]:
    margin = max(TIE_MARGIN, _placebo_share(estimates))
    found = []
    for cell in estimates.cells:
        least = None if cell.predicted_speedup is None else cell.predicted_speedup * (1 - TOLERANCE)
        found.append(attribute(study, cell, margin, least))
    return [attribution for attribution in found if attribution is not None]


def _placebo_share(estimates: Estimates) -> float:
    """The placebo's noise as a share of the speed-up; 0 without a placebo."""
    return expm1(estimates.placebo_margin) if estimates.placebo_margin is not None else 0.0


def expectation_cells(claim: Claim, study: Study, estimates: Estimates) -> list[CellEstimate]:
    """The cells that an expectation is about."""
    said = claim.conditions
    return [
        cell
        for cell in estimates.cells
        # An expectation is about the study's own engine, unless it names another one of the study's.
        if cell.engine == (said.engine or study.engine)
        and cell.pair == said.pair
        and cell.treatment is said.treatment
        and said.keep in (None, cell.nominal_keep)
        and said.prompt_tokens in (None, cell.length)
    ]


def _expectation(claim: Claim, study: Study, estimates: Estimates) -> Found:
    cells = expectation_cells(claim, study, estimates)
    if not cells:
        return Found(_plain(claim, Word.NOT_RUN, "The study has no cell that this expectation is about."))
    if claim.rule in ANSWER_RULES:
        return Found(_judge_answers(claim, cells))
    if claim.rule is Rule.SHOWN:
        return Found(_plain(claim, Word.NOT_COMPARABLE, "Shown only, never judged.", tuple(c.cell for c in cells)))
    return _judge_cell(claim, study, estimates, max(cells, key=lambda cell: cell.length), broken=None)


def _published(claim: Claim, study: Study, estimates: Estimates, facts: Facts, broken: str | None) -> Found:
    cell = closest_cell(claim.conditions, best_matching(claim, study, estimates.cells, facts))
    if broken is not None:
        return Found(_plain(claim, Word.INVALID, f"No verdict: {broken}."))
    if cell is None:
        return Found(_plain(claim, Word.NOT_RUN, "The study has no speculative cell to hold against it."))
    rows = match_conditions(claim, cell, study, facts)
    if not is_full_match(rows) or claim.rule is Rule.SHOWN:
        return Found(_beside(claim, cell, rows))
    return _judge_cell(claim, study, estimates, cell, broken, rows)


def best_matching(claim: Claim, study: Study, cells: Sequence[CellEstimate], facts: Facts) -> list[CellEstimate]:
    """The speculative cells that differ from the claim in the fewest conditions, whether their trials count or not.

    Otherwise a claim whose own cell is void would be held against a cell of other models that is not.
    """
    speculative = [cell for cell in cells if cell.treatment is Treatment.SPECULATIVE]
    differ = [sum(row.matches is False for row in match_conditions(claim, cell, study, facts)) for cell in speculative]
    return [cell for cell, count in zip(speculative, differ, strict=True) if count == min(differ)]


def _beside(claim: Claim, cell: CellEstimate, rows: tuple[ConditionMatch, ...]) -> Verdict:
    """A claim that this measurement does not speak to, with the closest cell shown beside it."""
    differ = [row.condition for row in rows if row.matches is False]
    unstated = [row.condition for row in rows if row.matches is None]
    parts = [f"different here: {', '.join(differ)}"] if differ else []
    parts += [f"not stated or not known: {', '.join(unstated)}"] if unstated else []
    reason = "; ".join(parts) if not is_full_match(rows) else "the card's figure is shown, not judged"
    measured = f"measured here: {cell.speedup:.3g} at {cell.cell}" if cell.speedup else f"not measured: {cell.cell}"
    speed = claim.unit == "x"
    return Verdict(
        claim=claim,
        word=Word.NOT_COMPARABLE,
        sentence=f"No verdict: {reason}. For comparison, {measured}.",
        cells=(cell.cell,),
        measured=cell.speedup if speed else None,
        interval95=cell.interval95 if speed else None,
        expected=claim.value,
        pairs=len(cell.pairs),
        conditions=rows,
    )


def _judge_cell(
    claim: Claim,
    study: Study,
    estimates: Estimates,
    cell: CellEstimate,
    broken: str | None,
    rows: tuple[ConditionMatch, ...] = (),
) -> Found:
    ratio = cell.predicted_speedup if claim.rule is Rule.PREDICTED else claim.value
    ratio = None if claim.rule in (Rule.SLOWER, Rule.TIED) else ratio
    invalid = broken or _invalid(cell) or _without_prediction(claim, cell)
    # The placebo is held to the margin of its card alone: its own noise must not excuse it.
    noise = 0.0 if cell.treatment is Treatment.PLACEBO else _placebo_share(estimates)
    margin = max(claim.tie_margin, noise)
    missing = _missing(claim, cell)
    if missing is not None and invalid is None:
        return Found(_plain(claim, Word.NOT_RUN, missing, (cell.cell,), rows))

    def judge(seen: Summary, level: float = LEVEL) -> Judged:
        return judge_speed(
            claim.rule,
            seen.interval(1 - level),
            seen.interval(1 - 2 * level),
            pairs=seen.pairs,
            ratio=ratio,
            tolerance=claim.tolerance,
            margin=claim.tie_margin,
            noise=noise,
        )

    ratios = [pair.log_ratio for pair in cell.pairs]
    judged = Judged(Word.INVALID, f"No verdict: {invalid}.") if invalid else judge(_summary(ratios, cell.degrees))
    listed = "it is" if len(cell.problems) == 1 else "they are"
    dropped = f" {len(cell.problems)} more did not count; {listed} listed." if cell.problems and not invalid else ""
    more = None
    if judged.word is Word.INCONCLUSIVE and ratios:
        more = more_pairs_needed(ratios, lambda seen: judge(seen).word is not Word.INCONCLUSIVE)
    attribution = attribute(study, cell, margin, _least(claim, ratio))
    verdict = Verdict(
        claim=claim,
        word=judged.word,
        sentence=judged.sentence + dropped + _remarks(cell, estimates, margin) + _settled_by(judged, more, ratios),
        cells=(cell.cell,),
        measured=cell.speedup,
        interval95=cell.interval95,
        expected=ratio,
        pairs=len(cell.pairs),
        conditions=rows,
        attribution=attribution.sentence if attribution else None,
        more_pairs=more,
    )
    seen = _summary(ratios, cell.degrees)
    return Found(verdict, _p_value(judged.word, lambda level: judge(seen, level).word), seen)


def _remarks(cell: CellEstimate, estimates: Estimates, margin: float) -> str:
    """What a reader must know of the measurement besides: outliers, and a machine that changed meanwhile."""
    outliers = sum(pair.outlier for pair in cell.pairs)
    these = "is an outlier; it counts" if outliers == 1 else "are outliers; they count"
    marked = f" {outliers} of {len(cell.pairs)} pairs {these} all the same." if outliers else ""
    for change in estimates.drift:
        same = (change.pair, change.engine, change.length) == (cell.pair, cell.engine, cell.length)
        if same and change.found and abs(change.change) > margin:
            slower = "slower" if change.change > 0 else "faster"
            marked += f" Over the study the dense trials became {abs(change.change):.0%} {slower}."
    return marked


def _summary(ratios: Sequence[float], degrees: int | None) -> Summary:
    return summary(ratios, degrees) if ratios else Summary(0.0, 0.0, 0)


def _invalid(cell: CellEstimate) -> str | None:
    """The gate or evidence that failed, so that nothing may be said; None when pairs are left, or none was run."""
    if cell.baseline_problem is not None and cell.pairs:
        return f"weak baseline: {cell.baseline_problem}"
    if cell.problems and not cell.pairs:
        more = f" (and {len(cell.problems) - 1} more)" if len(cell.problems) > 1 else ""
        return cell.problems[0] + more
    return None


def _without_prediction(claim: Claim, cell: CellEstimate) -> str | None:
    if claim.rule is not Rule.PREDICTED or cell.prediction_problem is None or not cell.pairs:
        return None
    return f"nothing can be predicted, because a measured part is weak: {cell.prediction_problem}"


def _missing(claim: Claim, cell: CellEstimate) -> str | None:
    if not cell.pairs:
        return f"No block of {cell.cell} was run."
    if claim.rule is Rule.PREDICTED and cell.predicted_speedup is None:
        return f"Nothing is predicted for {cell.cell}: the study does not measure the draft densely at that length."
    return None


def _least(claim: Claim, ratio: float | None) -> float | None:
    """The speed-up below which the result is short of the claim."""
    return None if ratio is None else ratio * (1 - claim.tolerance)


def _settled_by(judged: Judged, more: int | None, ratios: Sequence[float]) -> str:
    if judged.word is not Word.INCONCLUSIVE or len(ratios) < 2:
        return ""
    if more is None and judged.by_noise:
        return " Run it again on a quiet machine, or with more blocks of the placebo."
    if more is None:
        return " No number of pairs within reason would settle it: the truth lies too near a border."
    return f" About {counted(more, 'more pair')} would settle it."


def _p_value(word: Word, word_at: Callable[[float], Word]) -> float | None:
    """The smallest level at which a word is still given, to 1 in 1000 of itself; 1 for a test that decided nothing."""
    if word is Word.INVALID:
        return None
    if word is Word.INCONCLUSIVE:
        return 1.0
    low, high = 1e-12, LEVEL
    if word_at(low) is word:
        return low
    while high / low > 1.001:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if word_at(middle) is word else (middle, high)
    return high


def _corrected(found: Sequence[Found]) -> list[Found]:
    """Holm over the primary claims: a word that one of many tests gave by luck becomes inconclusive."""
    places = [i for i, item in enumerate(found) if item.verdict.claim.primary and item.p_value is not None]
    kept = holm([p for i in places if (p := found[i].p_value) is not None], LEVEL)
    result = list(found)
    for place, survives in zip(places, kept, strict=True):
        verdict = found[place].verdict
        if not survives and verdict.word is not Word.INCONCLUSIVE:
            # The clearest claim that fails is tested at this level, and no less clear one passes after it.
            why = _taken_back(found[place], len(places), LEVEL / (len(places) - sum(kept)))
            changed = verdict.model_copy(update={"word": Word.INCONCLUSIVE, "sentence": f"{verdict.sentence} {why}"})
            result[place] = Found(changed)
    return result


def _taken_back(found: Found, primary: int, level: float) -> str:
    """Why one of several primary claims gets no word at `level` that it would get at LEVEL alone."""
    verdict = found.verdict
    # A tie is two one-sided tests, so that its interval leaves out twice as much.
    tie = verdict.word is Word.TIED or (verdict.claim.rule is Rule.TIED and verdict.word is Word.REPRODUCED)
    share = 1 - level * (2 if tie else 1)
    wider = found.seen.interval(share) if found.seen is not None else None
    bounds = f" Its {100 * share:.4g}% interval, {wider.low:.3g} to {wider.high:.3g}, is too wide." if wider else ""
    return (
        f"Taken alone this would be {word_for(verdict.claim, verdict.word)!r}. But where several claims are tested, "
        f"one is easily met by luck: the {primary} primary claims of this study are corrected together (Holm), so that "
        f"this one has to hold at {100 * level:.2g}%, not at {100 * LEVEL:.2g}%.{bounds}"
    )


def _judge_answers(claim: Claim, cells: Sequence[CellEstimate]) -> Verdict:
    """Answers lost, counted over all matching cells together."""
    lost, total = sum(cell.answers_lost for cell in cells), sum(cell.answers_dense for cell in cells)
    pairs = sum(len(cell.pairs) for cell in cells)
    names = tuple(cell.cell for cell in cells)
    invalid = next((reason for cell in cells if (reason := _invalid(cell)) and not cell.baseline_problem), None)
    if not pairs and invalid is None:
        return _plain(claim, Word.NOT_RUN, f"No block of {', '.join(names)} was run.", names)
    interval: Interval | None = share_interval(lost, total)
    assert claim.value is not None
    judged = judge_answers(claim.rule, lost, total, interval, claim.value, pairs=pairs, invalid=invalid)
    return Verdict(
        claim=claim,
        word=judged.word,
        sentence=judged.sentence,
        cells=names,
        measured=lost / total if total else None,
        interval95=interval,
        expected=claim.value,
        pairs=pairs,
    )


def _plain(
    claim: Claim, word: Word, sentence: str, cells: tuple[str, ...] = (), rows: tuple[ConditionMatch, ...] = ()
) -> Verdict:
    """A verdict that rests on no measurement."""
    return Verdict(
        claim=claim,
        word=word,
        sentence=sentence,
        cells=cells,
        measured=None,
        interval95=None,
        expected=claim.value,
        pairs=0,
        conditions=rows,
    )
