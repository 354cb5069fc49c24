"""Why a cell shows no gain, or less than was expected: one sentence and a table, from evidence alone."""

from collections.abc import Iterator

from specprefill_repro.estimates.schema import CellEstimate
from specprefill_repro.estimates.statistics import MIN_PAIRS
from specprefill_repro.study.schema import Study, Treatment
from specprefill_repro.verdicts.schema import Attribution, Cause
from specprefill_repro.wording import counted

KEPT_MORE = 1.1
"""The target reads this many times the tokens that the nominal keep rate suggests."""
SLOW_DRAFT = 0.5
"""The draft takes this share of the time that the shorter target prefill saves."""
COSTLY_SCORING = 0.15
"""Look-ahead, scoring and selection take this share of the whole."""
EQUAL_MODELS = 0.8
"""Draft seconds / dense seconds from which on the draft costs as much as the target."""

NOT_RUN, CACHE, BASELINE = "did not run", "cache hit", "weak baseline"
KEPT, DRAFT, SCORING = "kept more than asked", "draft too slow", "scoring share"
BREAK_EVEN, NOISE = "below break-even", "noise too large"
NO_GAIN, NOTHING = "no gain", "nothing counts"
VOID = (NOT_RUN, CACHE, BASELINE)
"""These make whatever was measured meaningless."""


def attribute(study: Study, cell: CellEstimate, margin: float, expected: float | None) -> Attribution | None:
    """The reasons for one speculative cell; None when there is nothing to explain: over a sound baseline it shows a
    gain that is not short of `expected`, or has too few pairs to show anything.

    Args:
        margin: the tie margin as a share.
        expected: the least speed-up that would not be short; None when only a gain was expected.
    """
    if cell.treatment is not Treatment.SPECULATIVE or not (cell.outcomes or cell.pairs):
        return None
    causes = tuple(_causes(study, cell, margin, expected))
    if not any(cause.applies for cause in causes if cause.name in VOID) and _needs_no_reason(cell, margin, expected):
        return None
    applying = [cause for cause in causes if cause.applies]
    if not applying:
        applying = [_otherwise(cell)]
        causes += tuple(applying)
    # What makes the others meaningless comes first: what did not run as asked, or an interval so wide that it holds the
    # predicted gain too. Among the costs, the one of the draft decides.
    ranked = sorted(applying, key=lambda cause: (cause.name == KEPT, _rank(cause, cell, margin)))
    main = ranked[0]
    return Attribution(cell=cell.cell, sentence=f"{main.name}: {main.evidence}", causes=causes)


def _needs_no_reason(cell: CellEstimate, margin: float, expected: float | None) -> bool:
    seen = cell.interval95
    if not cell.pairs or cell.speedup is None:
        return False
    if seen is None or len(cell.pairs) < MIN_PAIRS:
        return True
    short = expected is not None and seen.high < expected
    # A gain that noise does not put in doubt: measured, and a loss is ruled out.
    return cell.speedup > 1 + margin and seen.low > 1 and not short


def _rank(cause: Cause, cell: CellEstimate, margin: float) -> int:
    """0 for what voids or blurs the measurement, 1 for what it costs; equal ones keep the order of the table."""
    if cause.name != NOISE:
        return 0 if cause.name in VOID else 1
    predicted, seen = cell.predicted_speedup, cell.interval95
    return 0 if predicted is not None and seen is not None and 1 + margin < predicted <= seen.high else 1


def _otherwise(cell: CellEstimate) -> Cause:
    if not cell.pairs:
        return Cause(name=NOTHING, applies=True, evidence=cell.problems[0] if cell.problems else "no pair counts")
    text = "the evidence is complete and none of the usual reasons applies: truly no gain here"
    return Cause(name=NO_GAIN, applies=True, evidence=text)


def _causes(study: Study, cell: CellEstimate, margin: float, expected: float | None) -> Iterator[Cause]:
    trials = sum(cell.outcomes.values())
    others = {outcome: count for outcome, count in cell.outcomes.items() if outcome != "sparse"}
    # At keep 1 the whole prompt is read, and `dense` is what was asked for.
    failed = {outcome: count for outcome, count in others.items() if outcome != "dense" or cell.nominal_keep < 1}
    listed = "; ".join(f"{count} of {trials} ended as `{outcome}`" for outcome, count in sorted(failed.items()))
    yield Cause(
        name=NOT_RUN,
        applies=bool(failed),
        evidence=listed or f"all {counted(trials, 'treated trial')} ran as asked"
        if trials > 1
        else "the one treated trial ran as asked",
    )
    yield Cause(
        name=CACHE,
        applies=cell.cached_trials > 0,
        evidence=f"{counted(cell.cached_trials, 'trial')} began with tokens in the KV cache"
        if cell.cached_trials
        else "the KV cache was empty at the start of every trial",
    )
    yield Cause(
        name=BASELINE,
        applies=cell.baseline_problem is not None,
        evidence=cell.baseline_problem or "the dense arm is as fast as elsewhere in this study",
    )
    if not cell.pairs or cell.actual_keep is None:
        return
    predicted = cell.predicted_speedup
    # The prediction holds the draft's cost and the tokens really kept. Where it promises what is missing, neither of
    # them is the reason.
    promised = predicted is not None and predicted > max(1 + margin, expected or 0.0)
    for cause in _costs(study, cell):
        yield cause.model_copy(update={"applies": False}) if promised and cause.name in (KEPT, DRAFT) else cause
    if predicted is not None:
        yield Cause(
            name=BREAK_EVEN,
            applies=predicted < 1,
            evidence=f"the parts predict a speed-up of {predicted:.2f} at {cell.length:,} tokens"
            + (f", so nothing can be won at this length; {_where_it_wins(cell)}" if predicted < 1 else ""),
        )
    if cell.interval95 is not None:
        low, high = cell.interval95.low, cell.interval95.high
        yield Cause(
            name=NOISE,
            applies=low <= 1 + margin and high >= 1 / (1 + margin) and high / low > (1 + margin) ** 2,
            evidence=f"the 95 % interval of {len(cell.pairs)} pairs is {low:.3g} to {high:.3g}",
        )


def _where_it_wins(cell: CellEstimate) -> str:
    if cell.break_even_tokens is not None:
        return f"it wins from about {cell.break_even_tokens:,} tokens on"
    if cell.break_even_limit is not None:
        return f"up to {cell.break_even_limit:,} tokens there is no length from which on it wins"
    return "no length is known at which it wins"


def _costs(study: Study, cell: CellEstimate) -> Iterator[Cause]:
    assert cell.actual_keep is not None
    yield Cause(
        name=KEPT,
        applies=cell.actual_keep > KEPT_MORE * cell.nominal_keep,
        evidence=f"the target read {cell.actual_keep:.0%} of the prompt, {cell.nominal_keep:.0%} was asked for "
        "(head and tail are kept besides)",
    )
    dense = sum(cell.dense_phases.values())
    treated = sum(cell.treated_phases.values())
    draft = cell.treated_phases.get("draft_prefill", 0.0)
    scoring = sum(cell.treated_phases.get(phase, 0.0) for phase in ("look_ahead", "scoring", "selection"))
    saved = dense - cell.treated_phases.get("target_prefill", 0.0) - cell.treated_phases.get("first_token", 0.0)
    if draft > 0 and dense > 0:
        pair = study.pairs[cell.pair]
        same = pair.draft == pair.target or draft >= EQUAL_MODELS * dense
        rates = f"the draft reads {cell.length / draft:,.0f} tokens/s, the target {cell.length / dense:,.0f} tokens/s"
        spent = f"{draft:.3g} s to save {max(saved, 0):.3g} s"
        if pair.draft == pair.target:
            # Two speeds of one model would look like two models.
            text = f"it costs as much as the target, which is its own draft: it takes {spent}"
        else:
            text = f"{'it costs as much as the target: ' if same else ''}{rates}, so the draft takes {spent}"
        yield Cause(name=DRAFT, applies=same or draft > SLOW_DRAFT * saved, evidence=text)
    if treated > 0:
        yield Cause(
            name=SCORING,
            applies=scoring > COSTLY_SCORING * treated,
            evidence=f"look-ahead, scoring and selection take {scoring / treated:.0%} of the time to first token",
        )
