"""Many measurements of one effect, each with its own error: what holds on the whole, and how much they differ.

The model: effect of machine i = mean + difference of that machine (variance tau^2) + error of measurement. Machines are
the units; trials of different machines are never thrown together.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats
from statsmodels.stats.meta_analysis import combine_effects

LEAST_FOR_PREDICTION = 3


@dataclass(frozen=True)
class Effects:
    """A summary of at least two effects; all on the scale of the effects."""

    units: int
    mean: float
    error: float
    """Standard error of the mean, by Hartung and Knapp, and never below the usual one."""
    low: float
    high: float
    """95 % interval of the mean: Student's t, units - 1 degrees of freedom."""
    prediction: tuple[float, float] | None
    """95 % interval of the effect on another machine of this kind of crowd; None below three."""
    tau2: float
    """Variance between machines (Paule and Mandel 1982)."""
    i2: float
    """Share of the scatter that is difference between machines and not error: 0 to 1 (Higgins and Thompson 2002)."""
    q: float
    """Cochran's Q, units - 1 degrees of freedom."""
    p_same: float
    """p of Q: small, the machines differ."""


def random_effects(effects: Sequence[float], errors: Sequence[float]) -> Effects:
    """Summarise effects with their standard errors.

    Interval: Hartung and Knapp 2001, with the usual error as its least (Roever, Knapp and Friede 2015). Prediction:
    mean +- t(units - 2) * sqrt(tau^2 + error^2) (Higgins, Thompson and Spiegelhalter 2009).

    Raises:
        ValueError: fewer than two effects, or an error that is not positive.
    """
    if len(effects) < 2 or len(effects) != len(errors):
        raise ValueError("a summary needs at least two effects, each with its error")
    if not all(error > 0 and math.isfinite(error) for error in errors) or not all(map(math.isfinite, effects)):
        raise ValueError("effects must be finite, and errors positive")
    units = len(effects)
    with np.errstate(divide="ignore"):  # of its I^2, where all effects are equal; ours is below
        found = combine_effects(np.asarray(effects, float), np.square(np.asarray(errors, float)), method_re="iterated")
    mean, tau2 = float(found.mean_effect_re), max(0.0, float(found.tau2))
    error = max(float(found.sd_eff_w_re_hksj), float(found.sd_eff_w_re))
    half = float(stats.t.ppf(0.975, units - 1)) * error
    prediction = None
    if units >= LEAST_FOR_PREDICTION:
        wide = float(stats.t.ppf(0.975, units - 2)) * math.sqrt(tau2 + error**2)
        prediction = (mean - wide, mean + wide)
    q = float(found.q)
    return Effects(
        units=units,
        mean=mean,
        error=error,
        low=mean - half,
        high=mean + half,
        prediction=prediction,
        tau2=tau2,
        i2=max(0.0, 1 - (units - 1) / q) if q > 0 else 0.0,
        q=q,
        p_same=float(stats.chi2.sf(q, units - 1)),
    )
