"""The statistics of paired trials. docs/method.md says the same in plain words.

The unit is one pair of clean processes on one prompt; d = ln(dense seconds) - ln(treated seconds). All functions take
the d's of one cell as a sequence of floats, and none of them drops one.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from specprefill_repro.estimates.schema import Interval

MIN_PAIRS = 5
TIE_MARGIN = 0.03
OUTLIER_Z = 3.5
MAX_PAIRS = 1000
"""Beyond that many pairs, no number is promised that would settle a verdict."""


def speedup(dense_seconds: float, treated_seconds: float) -> float:
    """Dense seconds / treated seconds: above 1 means that the treated arm is faster. The only definition.

    Raises:
        ValueError: a time is not positive.
    """
    if not (dense_seconds > 0 and treated_seconds > 0):
        raise ValueError(f"times must be positive, got {dense_seconds} and {treated_seconds}")
    return dense_seconds / treated_seconds


def log_ratio(dense_seconds: float, treated_seconds: float) -> float:
    """ln of the speed-up."""
    return math.log(speedup(dense_seconds, treated_seconds))


@dataclass(frozen=True)
class Summary:
    """All that the intervals need: mean and standard deviation (n - 1) of n log ratios."""

    mean: float
    deviation: float
    pairs: int
    degrees: int | None = None
    """Degrees of freedom; None: pairs - 1."""

    @property
    def speedup(self) -> float:
        """exp of the mean log ratio: the geometric mean of the pairs' speed-ups."""
        return math.exp(self.mean)

    def half_width(self, level: float) -> float:
        """Half the width of Student's t interval of the mean; infinite below two pairs."""
        if self.pairs < 2:
            return math.inf
        degrees = self.pairs - 1 if self.degrees is None else self.degrees
        return _quantile(level, degrees) * self.deviation / math.sqrt(self.pairs)

    def interval(self, level: float) -> Interval | None:
        """Interval of the speed-up, which is exp of the one of the mean log ratio; None below two pairs."""
        if self.pairs < 2:
            return None
        half = self.half_width(level)
        return Interval(low=math.exp(self.mean - half), high=math.exp(self.mean + half), level=level)


@lru_cache(maxsize=4096)
def _quantile(level: float, degrees: int) -> float:
    """Student's t quantile that leaves (1 - level) / 2 on either side."""
    # Both libraries of statistics take seconds to load, and most commands need this module's plain parts alone.
    from scipy import stats

    return float(stats.t.ppf((1 + level) / 2, degrees))


def summary(log_ratios: Sequence[float], degrees: int | None = None) -> Summary:
    """Mean, standard deviation and number of at least one log ratio."""
    values = np.asarray(log_ratios, dtype=float)
    deviation = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    return Summary(float(values.mean()), deviation, len(values), degrees)


def interval(log_ratios: Sequence[float], level: float, degrees: int | None = None) -> Interval | None:
    """Student's t interval of the speed-up at `level`; None below two pairs."""
    return summary(log_ratios, degrees).interval(level) if len(log_ratios) else None


@dataclass(frozen=True)
class Stopping:
    stop: bool
    reason: str


def stopping_decision(log_ratios: Sequence[float], tie_margin: float, cap: int) -> Stopping:
    """Whether a cell has enough pairs: at least five, and the 90 % half-width below half the tie margin; or the cap.

    Only the width is looked at, never the sign or the size of the effect: stopping "when significant" would report a
    difference that is not there in a fifth of all studies.
    """
    pairs = len(log_ratios)
    if pairs >= cap:
        return Stopping(True, f"the cap of {cap} pairs is reached")
    if pairs < MIN_PAIRS:
        return Stopping(False, f"{pairs} of at least {MIN_PAIRS} pairs")
    width, wanted = float(summary(log_ratios).half_width(0.90)), math.log1p(tie_margin) / 2
    words = f"the 90 % half-width is {width:.2%} of the speed-up, {{}} the {wanted:.2%} that are wanted"
    return Stopping(width < wanted, words.format("below" if width < wanted else "not below"))


def degrees_of_freedom(pairs: int, least: int, most: int) -> int:
    """Degrees of freedom of the interval of a cell that may stop early: at `least` pairs, or later up to `most`.

    Whoever looks again and again and stops at a narrow interval, stops more often where the pairs happen to lie close
    together: at the worst noise a nominal 95 % interval then covers 92.7 %. So a cell that stopped after more than one
    look keeps the degrees of freedom of the first look, and one at the cap gets those halfway between. Found by
    simulation: at every noise and for caps of 8 to 40 pairs the interval then covers 94.4 to 96.6 %.
    """
    first = max(least, MIN_PAIRS)
    if least == most or pairs <= first:
        return pairs - 1
    return first - 1 if pairs < most else (first + most) // 2 - 1


def outliers(log_ratios: Sequence[float]) -> tuple[bool, ...]:
    """Flag values whose modified z-score is above 3.5 (Iglewicz and Hoaglin 1993); for showing, never for dropping."""
    values = np.asarray(log_ratios, dtype=float)
    if len(values) < 3:
        return (False,) * len(values)
    distance = np.abs(values - np.median(values))
    spread = float(np.median(distance))
    if spread == 0.0:
        # More than half are equal: the mean distance takes the median's place (same source), 0 when all are equal.
        spread = 1.253314 / 1.4826 * float(distance.mean())
    if spread == 0.0:
        return (False,) * len(values)
    return tuple(bool(z > OUTLIER_Z) for z in 0.6745 * distance / spread)


def share_interval(count: int, total: int, level: float = 0.95) -> Interval | None:
    """Clopper-Pearson interval of count/total; None when there is nothing to count."""
    if total == 0:
        return None
    from statsmodels.stats.proportion import proportion_confint

    low, high = proportion_confint(count, total, alpha=1 - level, method="beta")
    return Interval(low=float(low), high=float(high), level=level)


def holm(p_values: Sequence[float], level: float = 0.05) -> tuple[bool, ...]:
    """Which of the p values stay significant when all are tested together (Holm 1979)."""
    if not p_values:
        return ()
    from statsmodels.stats.multitest import multipletests

    return tuple(bool(kept) for kept in multipletests(list(p_values), alpha=level, method="holm")[0])


def more_pairs_needed(log_ratios: Sequence[float], settled: Callable[[Summary], bool]) -> int | None:
    """About how many more pairs make `settled` true, if mean and deviation stay as they are.

    None: not within MAX_PAIRS; the mean then lies too near a border for any feasible number to settle it.
    """
    if len(log_ratios) < 2:
        return None
    seen = summary(log_ratios)

    def enough(pairs: int) -> bool:
        return settled(Summary(seen.mean, seen.deviation, pairs))

    unsettled, candidate = len(log_ratios), max(len(log_ratios) + 1, MIN_PAIRS)
    while not enough(candidate):
        if candidate >= MAX_PAIRS:
            return None
        unsettled, candidate = candidate, min(2 * candidate, MAX_PAIRS)
    while candidate - unsettled > 1:
        middle = (candidate + unsettled) // 2
        unsettled, candidate = (unsettled, middle) if enough(middle) else (middle, candidate)
    return candidate - len(log_ratios)


def drift(times: Sequence[float], seconds: Sequence[float]) -> tuple[float, Interval] | None:
    """Change of like trials over their span as a share of the median, with its 95 % interval; None below five.

    Theil-Sen slope of `seconds` against `times` (any unit, such as the number of the trial), so that one slow trial
    does not look like drift. Of more than 400 trials, 400 evenly spaced ones are used: the method looks at all pairs.
    """
    if len(times) > 400:
        chosen = np.linspace(0, len(times) - 1, 400).round().astype(int)
        times, seconds = [times[i] for i in chosen], [seconds[i] for i in chosen]
    if len(times) < MIN_PAIRS or len(set(times)) < 2:
        return None
    from scipy import stats

    slope, _, low, high = (float(value) for value in stats.theilslopes(seconds, times, 0.95))
    scale = (max(times) - min(times)) / float(np.median(seconds))
    return slope * scale, Interval(low=low * scale, high=high * scale, level=0.95)


def kl_divergence(dense: Any, treated: Any) -> float:
    """KL(dense || treated) in nats of two float32 [vocabulary] vectors of log-probabilities, summed in float64.

    Raises:
        ValueError: the shapes differ, or a vector does not hold log-probabilities.
    """
    p, q = np.asarray(dense, dtype=np.float64), np.asarray(treated, dtype=np.float64)
    if p.shape != q.shape or p.ndim != 1:
        raise ValueError(f"log-probabilities of shapes {p.shape} and {q.shape} cannot be compared")
    dense_share, treated_share = np.exp(p), np.exp(q)
    for share in (dense_share, treated_share):
        # Written so that NaN is refused too.
        if not abs(float(share.sum()) - 1) <= 1e-3:
            raise ValueError("not a vector of log-probabilities: the probabilities do not add up to 1")
    seen = p > -np.inf
    divergence = float(np.sum(dense_share[seen] * (p[seen] - q[seen])))
    if not math.isfinite(divergence):
        raise ValueError("the treated arm gives probability 0 to a token that the dense arm finds possible")
    # Rounding of float32 inputs can make the sum of equal distributions slightly negative.
    return max(0.0, divergence)
