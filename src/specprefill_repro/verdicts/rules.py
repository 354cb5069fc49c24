"""The table of verdicts as pure functions of intervals. docs/method.md shows the same table.

R0 is the claimed ratio, tau the tolerance, [L, U] the 95 % interval of the speed-up. delta is the tie margin of the
card, or the placebo's noise where that is larger. The first line that holds gives the word, on the left for a claim of
a gain (R0 above 1 plus the card's own margin, so whatever the noise), on the right for any other:

    tied        90 % interval inside the margin        reproduced  floor <= L, and U <= ceiling
    slower      U < 1 / (1 + delta)                    exceeded    L > ceiling
    reproduced  L >= floor, L > 1 + delta, U<=ceiling  tied        90 % interval inside the margin
    exceeded    L > ceiling, L > 1 + delta             slower      U < 1 / (1 + delta)
    smaller     L > 1 + delta and U < floor            smaller     L > 1 + delta and U < floor

The margin is [1/(1 + delta), 1 + delta]. For a claim of "at least" the floor is R0 (1 - tau), and U is not looked at;
for a value, claimed or predicted, the floor is R0 / (1 + tau). The ceiling is R0 (1 + tau).
Otherwise the verdict is inconclusive. Precedence matters only where a claimed gain is so small that its tolerance
reaches the tie margin: there a tie is a tie, and what can't be told from a tie reproduces no gain. A gain that lies
inside delta itself (R0 <= 1 + delta) can't be refuted by a tie either: then a tie is inconclusive.
"""

from dataclasses import dataclass

from specprefill_repro.estimates.schema import Interval
from specprefill_repro.estimates.statistics import MIN_PAIRS
from specprefill_repro.verdicts.schema import Claim, ClaimKind, Rule, Word

SPEED_RULES = (Rule.AT_LEAST, Rule.EQUAL, Rule.PREDICTED, Rule.SLOWER, Rule.TIED)
ANSWER_RULES = (Rule.ANSWERS_KEPT, Rule.ANSWERS_LOST)


MET = (Word.REPRODUCED, Word.EXCEEDED)
"""A control with one of these words came out as it must. *Exceeded* too: the gain that it had to find was found."""
EXPECTATION_WORDS = {Word.REPRODUCED: "as expected", Word.NOT_REPRODUCED: "not as expected"}
"""An expectation of ours is not "reproduced"; the other words fit either kind of claim."""
UNDECIDED = (Word.INCONCLUSIVE, Word.NOT_RUN)
"""Neither met nor failed: no published claim is judged then either, but what was measured stands."""


@dataclass(frozen=True)
class Judged:
    word: Word
    sentence: str
    by_noise: bool = False
    """Nothing but the placebo's noise keeps it from a conclusion."""


def word_for(claim: Claim, word: Word) -> str:
    """A verdict's word as a reader sees it."""
    return EXPECTATION_WORDS.get(word, word.value) if claim.kind is ClaimKind.EXPECTATION else word.value


def judge_speed(
    rule: Rule,
    interval95: Interval | None,
    interval90: Interval | None,
    *,
    pairs: int,
    ratio: float | None,
    tolerance: float,
    margin: float,
    noise: float = 0.0,
) -> Judged:
    """The verdict on a claim about speed.

    Args:
        interval95, interval90: of the speed-up; None below two pairs.
        ratio: R0; None for the rules SLOWER and TIED.
        margin: the card's tie margin, as a share.
        noise: the placebo's, as a share of the speed-up; delta is the larger of the two.

    Raises:
        ValueError: the rule is not about speed, or it needs a ratio and there is none.
    """
    if rule not in SPEED_RULES or (ratio is None) == (rule not in (Rule.SLOWER, Rule.TIED)):
        raise ValueError(f"the rule {rule} can't be applied to a speed-up with the ratio {ratio}")
    if interval95 is None or interval90 is None or pairs < MIN_PAIRS:
        return Judged(Word.INCONCLUSIVE, f"{pairs} of at least {MIN_PAIRS} pairs of trials count.")
    delta = max(margin, noise)
    if rule is Rule.SLOWER:
        word = _slower(interval95, interval90, delta)
    elif rule is Rule.TIED:
        word = _tied(interval95, interval90, delta)
    else:
        assert ratio is not None
        gain = ratio > 1 + margin
        word = _ratio(rule, interval95, interval90, ratio, tolerance, delta, gain=gain)
        quiet = _ratio(rule, interval95, interval90, ratio, tolerance, margin, gain=gain)
        if word is Word.INCONCLUSIVE and quiet is not word:
            return Judged(word, _noise_sentence(interval95, ratio, delta), by_noise=True)
    return Judged(word, _sentence(rule, word, interval95, interval90, ratio, tolerance, delta))


def judge_answers(
    rule: Rule,
    lost: int,
    total: int,
    interval95: Interval | None,
    limit: float,
    *,
    pairs: int,
    invalid: str | None = None,
) -> Judged:
    """The verdict on a claim about answers, from the Clopper-Pearson interval of the share lost of `total`.

    Raises:
        ValueError: the rule is not about answers.
    """
    if rule not in ANSWER_RULES:
        raise ValueError(f"the rule {rule} is not about answers")
    if invalid is not None:
        return Judged(Word.INVALID, f"No verdict: {invalid}.")
    if interval95 is None or pairs < MIN_PAIRS:
        return Judged(
            Word.INCONCLUSIVE, f"{pairs} of at least {MIN_PAIRS} pairs count, and dense prefill found {total} answers."
        )
    fewer, more = interval95.high < limit, interval95.low > limit
    holds, fails = (fewer, more) if rule is Rule.ANSWERS_KEPT else (more, fewer)
    word = Word.REPRODUCED if holds else Word.NOT_REPRODUCED if fails else Word.INCONCLUSIVE
    are = "is" if lost == 1 else "are"
    place = "below" if fewer else "above" if more else "on both sides of"
    return Judged(
        word,
        f"{lost} of the {total} answers that dense prefill found {are} lost; the 95 % interval "
        f"of the share, {interval95.low:.0%} to {interval95.high:.0%}, lies {place} {limit:.0%}.",
    )


def _inside(interval: Interval, margin: float) -> bool:
    return interval.low > 1 / (1 + margin) and interval.high < 1 + margin


def _slower(wide: Interval, narrow: Interval, margin: float) -> Word:
    if wide.high < 1 / (1 + margin):
        return Word.REPRODUCED
    if wide.low >= 1 / (1 + margin) or _inside(narrow, margin):
        return Word.NOT_REPRODUCED
    return Word.INCONCLUSIVE


def _tied(wide: Interval, narrow: Interval, margin: float) -> Word:
    if _inside(narrow, margin):
        return Word.REPRODUCED
    if wide.high < 1 / (1 + margin) or wide.low > 1 + margin:
        return Word.NOT_REPRODUCED
    return Word.INCONCLUSIVE


def _ratio(
    rule: Rule, wide: Interval, narrow: Interval, ratio: float, tolerance: float, margin: float, *, gain: bool
) -> Word:
    floor = ratio * (1 - tolerance) if rule is Rule.AT_LEAST else ratio / (1 + tolerance)
    ceiling = ratio * (1 + tolerance)
    shown = not gain or wide.low > 1 + margin
    reproduced = shown and wide.low >= floor and (rule is Rule.AT_LEAST or wide.high <= ceiling)
    tied, slower = _inside(narrow, margin), wide.high < 1 / (1 + margin)
    if gain and tied:
        return Word.TIED if ratio > 1 + margin else Word.INCONCLUSIVE
    if gain and slower:
        return Word.SLOWER
    if reproduced:
        return Word.REPRODUCED
    if shown and wide.low > ceiling:
        return Word.EXCEEDED
    if tied:
        return Word.TIED
    if slower:
        return Word.SLOWER
    if wide.low > 1 + margin and wide.high < floor:
        return Word.SMALLER
    return Word.INCONCLUSIVE


def _noise_sentence(wide: Interval, ratio: float, noise: float) -> str:
    """Why a gain is not settled that would be, were this machine's noise no larger than the card's margin."""
    larger = f", larger than the gain that has to be found ({ratio:.3g})" if ratio <= 1 + noise else ""
    return (
        f"The 95 % interval of the speed-up, {wide.low:.3g} to {wide.high:.3g}, cannot be told from no difference: the "
        f"placebo's noise here is ±{noise:.0%}{larger}, so that only an interval above {1 + noise:.3g} shows a gain."
    )


def _sentence(
    rule: Rule, word: Word, wide: Interval, narrow: Interval, ratio: float | None, tolerance: float, margin: float
) -> str:
    measured = f"The 95 % interval of the speed-up, {wide.low:.3g} to {wide.high:.3g},"
    tie = f"the tie margin of {margin:.2g} around 1"
    inside = f"The 90 % interval of the speed-up, {narrow.low:.3g} to {narrow.high:.3g}, lies within {tie}."
    if rule is Rule.TIED:
        outside = f"{measured} lies outside {tie}."
        return {Word.REPRODUCED: inside, Word.NOT_REPRODUCED: outside}.get(word, f"{measured} crosses {tie}.")
    if rule is Rule.SLOWER:
        faster = (
            inside if _inside(narrow, margin) else f"{measured} lies above {1 / (1 + margin):.3g}: it is not slower."
        )
        return {
            Word.REPRODUCED: f"{measured} lies below {1 / (1 + margin):.3g}: slower than dense.",
            Word.NOT_REPRODUCED: faster,
        }.get(word, f"{measured} holds both slower and not slower.")
    assert ratio is not None
    source = "the predicted" if rule is Rule.PREDICTED else "the claimed"
    held = f"{source} {ratio:.3g} (tolerance {tolerance:.0%})"
    return {
        Word.REPRODUCED: f"{measured} agrees with {'at least ' if rule is Rule.AT_LEAST else ''}{held}.",
        Word.EXCEEDED: f"{measured} lies above {held}.",
        Word.SMALLER: f"{measured} shows a gain, but lies below {held}.",
        Word.TIED: inside,
        Word.SLOWER: f"{measured} lies below {1 / (1 + margin):.3g}: slower than dense.",
        Word.INCONCLUSIVE: f"{measured} is too wide, or lies too near a border, to be held against {held}.",
    }[word]
