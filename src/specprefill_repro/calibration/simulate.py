"""Thousands of studies of one cell: how often its interval holds the truth and its verdict errs.

Trials are drawn block by block in the order A B B A or B A A B, with the noise of the scripted machine. The looks, the
interval and the word are the ones that every study gets.
"""

import math
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from specprefill_repro.engines.scripted import Noise
from specprefill_repro.estimates.statistics import TIE_MARGIN, degrees_of_freedom, stopping_decision, summary
from specprefill_repro.verdicts.rules import judge_speed
from specprefill_repro.verdicts.schema import Rule, Word


@dataclass
class Tally:
    """What came of the simulated studies of one world."""

    studies: int = 0
    covered: int = 0
    """The 95 % interval held the true speed-up."""
    words: Counter[Word] = field(default_factory=Counter)
    pairs: list[int] = field(default_factory=list)
    """Of each study when it stopped."""

    def share(self, *words: Word) -> float:
        """Share of studies that ended with one of these words."""
        return sum(self.words[word] for word in words) / self.studies


def simulate(
    noise: Noise,
    truth: float,
    claimed: float,
    tolerance: float,
    *,
    blocks: int,
    most_blocks: int,
    studies: int,
    seed: int,
) -> Tally:
    """Run `studies` studies of one cell whose true speed-up is `truth`, and judge an "at least" claim by each."""
    rng = np.random.default_rng(seed)
    tally = Tally()
    for _ in range(studies):
        ratios = math.log(truth) + _pair_noise(noise, rng, most_blocks)
        pairs = 2 * blocks
        while not stopping_decision(ratios[:pairs].tolist(), TIE_MARGIN, cap=2 * most_blocks).stop:
            pairs += 2
        seen = summary(ratios[:pairs].tolist(), degrees_of_freedom(pairs, 2 * blocks, 2 * most_blocks))
        wide, narrow = seen.interval(0.95), seen.interval(0.90)
        assert wide is not None
        judged = judge_speed(
            Rule.AT_LEAST, wide, narrow, pairs=pairs, ratio=claimed, tolerance=tolerance, margin=TIE_MARGIN
        )
        tally.studies += 1
        tally.covered += wide.low <= truth <= wide.high
        tally.words[judged.word] += 1
        tally.pairs.append(pairs)
    return tally


def _pair_noise(noise: Noise, rng: np.random.Generator, blocks: int) -> npt.NDArray[np.float64]:
    """float64 [2 * blocks]: ln(factor of the dense trial) - ln(factor of the treated one), pairs in their order."""
    factors = np.log(noise.factors(rng, 4 * blocks)).reshape(blocks, 2, 2)
    # Trials A B | B A in one block, B A | A B in another, by a coin.
    differences = (factors[:, :, 0] - factors[:, :, 1]) * np.array([1.0, -1.0])
    coin = rng.integers(0, 2, size=blocks) * 2.0 - 1.0
    return np.asarray((differences * coin[:, None]).reshape(-1))
