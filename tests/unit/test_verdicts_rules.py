"""The table of verdicts: every interval gets one word, the words are monotone and never contradict each other."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from specprefill_repro.estimates.schema import Interval
from specprefill_repro.estimates.statistics import Summary
from specprefill_repro.verdicts.rules import ANSWER_RULES, SPEED_RULES, judge_answers, judge_speed
from specprefill_repro.verdicts.schema import Rule, Word

MARGIN, TOLERANCE = 0.03, 0.15
RATIO_RULES = (Rule.AT_LEAST, Rule.EQUAL, Rule.PREDICTED)
ASCENDING = (Word.SLOWER, Word.TIED, Word.SMALLER, Word.REPRODUCED, Word.EXCEEDED)
"""Order of the words of a claimed gain as the measured speed-up grows."""

centres, widths = st.floats(-1.5, 2.5), st.floats(1e-4, 1.0)
ratios = st.floats(0.3, 8)
margins, tolerances = st.floats(0.005, 0.3), st.floats(0.02, 0.5)


def intervals(centre: float, width: float) -> tuple[Interval, Interval]:
    """A 95 % interval of the given half-width (log scale) and the 90 % interval inside it, as six pairs give them."""
    narrow = width * 2.015 / 2.571
    return (
        Interval(low=math.exp(centre - width), high=math.exp(centre + width), level=0.95),
        Interval(low=math.exp(centre - narrow), high=math.exp(centre + narrow), level=0.90),
    )


def word(rule: Rule, centre: float, width: float, ratio: float | None = None, **more: Any) -> Word:
    wide, narrow = intervals(centre, width)
    values: dict[str, Any] = {"pairs": 6, "ratio": ratio, "tolerance": TOLERANCE, "margin": MARGIN} | more
    return judge_speed(rule, wide, narrow, **values).word


@pytest.mark.parametrize(
    "rule, low, high, ratio, expected",
    [
        (Rule.AT_LEAST, 1.70, 1.90, 1.8, Word.REPRODUCED),
        (Rule.AT_LEAST, 1.54, 1.60, 1.8, Word.REPRODUCED),
        (Rule.AT_LEAST, 5.00, 6.00, 1.8, Word.REPRODUCED),
        (Rule.AT_LEAST, 1.30, 1.40, 1.8, Word.SMALLER),
        (Rule.AT_LEAST, 1.40, 1.80, 1.8, Word.INCONCLUSIVE),
        (Rule.AT_LEAST, 0.99, 1.01, 1.8, Word.TIED),
        (Rule.AT_LEAST, 0.80, 0.90, 1.8, Word.SLOWER),
        (Rule.AT_LEAST, 0.90, 1.20, 1.8, Word.INCONCLUSIVE),
        (Rule.EQUAL, 1.70, 1.90, 1.8, Word.REPRODUCED),
        (Rule.EQUAL, 1.90, 2.20, 1.8, Word.INCONCLUSIVE),
        (Rule.EQUAL, 2.20, 2.40, 1.8, Word.EXCEEDED),
        (Rule.EQUAL, 1.30, 1.50, 1.8, Word.SMALLER),
        (Rule.EQUAL, 0.95, 1.05, 1.0, Word.REPRODUCED),
        (Rule.EQUAL, 0.80, 0.90, 0.85, Word.REPRODUCED),
        (Rule.EQUAL, 0.50, 0.60, 0.85, Word.SLOWER),
        (Rule.EQUAL, 0.99, 1.01, 0.85, Word.EXCEEDED),
        (Rule.PREDICTED, 1.70, 1.90, 1.8, Word.REPRODUCED),
        (Rule.SLOWER, 0.70, 0.90, None, Word.REPRODUCED),
        (Rule.SLOWER, 0.99, 1.01, None, Word.NOT_REPRODUCED),
        (Rule.SLOWER, 1.20, 1.30, None, Word.NOT_REPRODUCED),
        (Rule.SLOWER, 0.90, 1.10, None, Word.INCONCLUSIVE),
        (Rule.TIED, 0.99, 1.01, None, Word.REPRODUCED),
        (Rule.TIED, 0.90, 1.10, None, Word.INCONCLUSIVE),
        (Rule.TIED, 0.80, 0.90, None, Word.NOT_REPRODUCED),
        (Rule.TIED, 1.10, 1.20, None, Word.NOT_REPRODUCED),
    ],
)
def test_the_table(rule: Rule, low: float, high: float, ratio: float | None, expected: Word) -> None:
    assert word(rule, (math.log(low) + math.log(high)) / 2, math.log(high / low) / 2, ratio) is expected


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(RATIO_RULES), centres, widths, ratios, margins, tolerances)
def test_words_mean_what_the_table_says(
    rule: Rule, centre: float, width: float, ratio: float, margin: float, tolerance: float
) -> None:
    """For every interval: exactly one word, and the word's own condition holds."""
    wide, narrow = intervals(centre, width)
    found = word(rule, centre, width, ratio, margin=margin, tolerance=tolerance)
    floor = ratio * (1 - tolerance) if rule is Rule.AT_LEAST else ratio / (1 + tolerance)
    ceiling = ratio * (1 + tolerance)
    inside = narrow.low > 1 / (1 + margin) and narrow.high < 1 + margin
    conditions = {
        Word.TIED: inside,
        Word.SLOWER: wide.high < 1 / (1 + margin),
        Word.REPRODUCED: wide.low >= floor and (rule is Rule.AT_LEAST or wide.high <= ceiling),
        Word.EXCEEDED: wide.low > ceiling,
        Word.SMALLER: wide.low > 1 + margin and wide.high < floor,
    }
    holding = {word for word, holds in conditions.items() if holds}
    if found is Word.INCONCLUSIVE:
        # Only a gain that can't be told from a tie may be held back from "reproduced".
        assert not holding or (holding == {Word.REPRODUCED} and ratio > 1 + margin and wide.low <= 1 + margin)
    else:
        assert found in holding
    if ratio > 1 + margin:
        assert not (found is Word.REPRODUCED and (inside or wide.low <= 1 + margin))
    if floor >= 1 + margin and rule is not Rule.AT_LEAST:
        assert len(holding) <= 1
    if Word.TIED in holding and Word.REPRODUCED in holding:
        # The two overlap only for a ratio whose tolerance reaches into the tie margin.
        assert floor < 1 + margin


@pytest.mark.parametrize(
    "low, high, expected, by_noise",
    [
        (1.14, 1.53, Word.INCONCLUSIVE, True),  # above 1.1 (1 - tau), but not above the noise
        (1.18, 1.53, Word.REPRODUCED, False),
        (1.09, 1.11, Word.INCONCLUSIVE, True),  # a tie at this noise, and the claimed gain itself
        (0.99, 1.01, Word.INCONCLUSIVE, True),
        (0.70, 0.80, Word.SLOWER, False),
        (0.80, 1.40, Word.INCONCLUSIVE, False),  # no quiet placebo would settle this
    ],
)
def test_a_gain_smaller_than_the_noise_is_neither_found_nor_refuted(
    low: float, high: float, expected: Word, by_noise: bool
) -> None:
    wide, narrow = intervals((math.log(low) + math.log(high)) / 2, math.log(high / low) / 2)
    judged = judge_speed(Rule.AT_LEAST, wide, narrow, pairs=6, ratio=1.1, tolerance=0.05, margin=MARGIN, noise=0.17)
    assert (judged.word, judged.by_noise) == (expected, by_noise)
    assert ("noise here is ±17%, larger than the gain that has to be found (1.1)" in judged.sentence) == by_noise


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(RATIO_RULES), centres, widths, st.floats(1.04, 8), st.floats(0, 0.4), tolerances)
def test_noise_never_makes_a_verdict_on_a_gain_better(
    rule: Rule, centre: float, width: float, ratio: float, noise: float, tolerance: float
) -> None:
    """More noise only takes a conclusion back, or makes a smaller gain or loss a tie; it never invents a gain."""
    quiet = word(rule, centre, width, ratio, tolerance=tolerance)
    loud = word(rule, centre, width, ratio, tolerance=tolerance, noise=noise)
    assert loud in (quiet, Word.INCONCLUSIVE, Word.TIED)
    if loud in (Word.REPRODUCED, Word.EXCEEDED, Word.SMALLER):
        assert intervals(centre, width)[0].low > 1 + noise


@settings(deadline=None)
@given(st.sampled_from(RATIO_RULES), widths, ratios, margins, tolerances)
def test_a_faster_measurement_never_gets_a_worse_word(
    rule: Rule, width: float, ratio: float, margin: float, tolerance: float
) -> None:
    assume(ratio > 1 + margin)
    found = [word(rule, centre, width, ratio, margin=margin, tolerance=tolerance) for centre in np.linspace(-2, 3, 120)]
    ranks = [ASCENDING.index(one) for one in found if one is not Word.INCONCLUSIVE]
    assert ranks == sorted(ranks)


@settings(deadline=None)
@given(st.sampled_from(SPEED_RULES), centres, widths, ratios, st.floats(1.0, 5.0))
def test_less_precision_never_turns_one_conclusion_into_another(
    rule: Rule, centre: float, width: float, ratio: float, factor: float
) -> None:
    claimed = None if rule in (Rule.SLOWER, Rule.TIED) else ratio
    precise, vague = word(rule, centre, width, claimed), word(rule, centre, width * factor, claimed)
    overlap = claimed is not None and claimed * (1 - TOLERANCE) < 1 + MARGIN
    assert vague in (precise, Word.INCONCLUSIVE) or precise is Word.INCONCLUSIVE or overlap


@settings(deadline=None)
@given(centres, widths)
def test_an_inverted_interval_swaps_slower_for_faster_in_the_rule_for_ties(centre: float, width: float) -> None:
    assert word(Rule.TIED, centre, width) is word(Rule.TIED, -centre, width)


@settings(deadline=None)
@given(st.sampled_from(SPEED_RULES), centres, widths, st.integers(0, 4))
def test_fewer_than_five_pairs_settle_nothing(rule: Rule, centre: float, width: float, pairs: int) -> None:
    ratio = None if rule in (Rule.SLOWER, Rule.TIED) else 1.8
    assert word(rule, centre, width, ratio, pairs=pairs) is Word.INCONCLUSIVE


def test_without_an_interval_nothing_is_concluded() -> None:
    no_interval = judge_speed(Rule.TIED, None, None, pairs=1, ratio=None, tolerance=0.15, margin=0.03)
    assert no_interval.word is Word.INCONCLUSIVE and "1 of at least 5" in no_interval.sentence


@pytest.mark.parametrize("rule, ratio", [(Rule.AT_LEAST, None), (Rule.TIED, 1.5), (Rule.ANSWERS_KEPT, 0.3)])
def test_a_rule_without_what_it_needs_is_refused(rule: Rule, ratio: float | None) -> None:
    with pytest.raises(ValueError):
        word(rule, 0.0, 0.1, ratio)


@pytest.mark.parametrize(
    "rule, low, high, expected",
    [
        (Rule.ANSWERS_KEPT, 0.0, 0.26, Word.REPRODUCED),
        (Rule.ANSWERS_KEPT, 0.1, 0.5, Word.INCONCLUSIVE),
        (Rule.ANSWERS_KEPT, 0.4, 0.9, Word.NOT_REPRODUCED),
        (Rule.ANSWERS_LOST, 0.4, 0.9, Word.REPRODUCED),
        (Rule.ANSWERS_LOST, 0.1, 0.5, Word.INCONCLUSIVE),
        (Rule.ANSWERS_LOST, 0.0, 0.2, Word.NOT_REPRODUCED),
    ],
)
def test_answers(rule: Rule, low: float, high: float, expected: Word) -> None:
    interval = Interval(low=low, high=high, level=0.95)
    assert judge_answers(rule, 3, 12, interval, 0.3, pairs=12).word is expected
    assert judge_answers(rule, 3, 4, interval, 0.3, pairs=4).word is Word.INCONCLUSIVE
    assert judge_answers(rule, 0, 0, None, 0.3, pairs=12).word is Word.INCONCLUSIVE
    assert judge_answers(rule, 3, 12, interval, 0.3, pairs=12, invalid="x").word is Word.INVALID


def test_the_two_rules_for_answers_are_opposites() -> None:
    opposite = {
        Word.REPRODUCED: Word.NOT_REPRODUCED,
        Word.NOT_REPRODUCED: Word.REPRODUCED,
        Word.INCONCLUSIVE: Word.INCONCLUSIVE,
    }
    for low, high in [(0.0, 0.2), (0.1, 0.5), (0.4, 0.9)]:
        interval = Interval(low=low, high=high, level=0.95)
        kept, lost = (judge_answers(rule, 3, 12, interval, 0.3, pairs=12).word for rule in ANSWER_RULES)
        assert opposite[kept] is lost


@pytest.mark.parametrize("noise", [0.005, 0.02, 0.05])
@pytest.mark.parametrize("truth", [1.0, 1.4, 1.8])
def test_false_verdicts_are_rare_where_the_truth_lies_clearly_on_one_side(truth: float, noise: float) -> None:
    """5,000 seeded studies of six pairs about a claim of 1.8, whose truth is: no effect, half the gain, the claim."""
    rng = np.random.default_rng(1)
    d = math.log(truth) + noise * math.sqrt(2) * rng.standard_normal((5_000, 6))
    words: dict[Word, int] = {}
    for mean, deviation in zip(d.mean(axis=1), d.std(axis=1, ddof=1), strict=True):
        seen = Summary(float(mean), float(deviation), 6)
        judged = judge_speed(
            Rule.AT_LEAST, seen.interval(0.95), seen.interval(0.90), pairs=6, ratio=1.8, tolerance=0.15, margin=0.03
        )
        words[judged.word] = words.get(judged.word, 0) + 1
    wrong = {
        1.0: (Word.REPRODUCED, Word.SMALLER),
        1.4: (Word.REPRODUCED, Word.TIED, Word.SLOWER),
        1.8: (Word.TIED, Word.SLOWER, Word.SMALLER),
    }[truth]
    assert sum(words.get(one, 0) for one in wrong) <= 50
