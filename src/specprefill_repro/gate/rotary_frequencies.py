"""Rotary frequencies of the Llama family by their published formulas, in NumPy, for the gate's oracle."""

import math
from typing import Any

import numpy as np

from specprefill_repro.gate.weights import Array

SCALINGS = ("default", "linear", "llama3", "yarn", "longrope")


def rotary_frequencies(size: int, settings: dict[str, Any], config: dict[str, Any]) -> tuple[Array, float]:
    """Radians a position for each pair of elements of a head, and the factor on rotated queries and keys.

    Args:
        size: elements of a head.
        settings: rope_theta, rope_type, and what that type needs.
        config: of the model; for lengths that stand there.

    Sources: linear, arXiv 2306.15595; yarn, arXiv 2309.00071, section 3.2 and equation 22; llama3, the code published
    with Llama 3.1 (`apply_scaling`); longrope, arXiv 2402.13753, with the factor of the published Phi-3 code.
    """
    theta, kind = float(settings["rope_theta"]), settings["rope_type"]
    plain = theta ** (-np.arange(0, size, 2, dtype=np.float64) / size)
    factor = float(settings.get("factor", 1.0))
    if kind == "default":
        return plain, 1.0
    if kind == "linear":
        return plain / factor, 1.0
    if kind == "llama3":
        return _llama3(plain, factor, settings), 1.0
    if kind == "yarn":
        return _yarn(plain, factor, theta, settings), _yarn_stretch(factor, settings)
    original = settings.get("original_max_position_embeddings") or config["original_max_position_embeddings"]
    ratio = config["max_position_embeddings"] / original
    stretch = 1.0 if ratio <= 1 else math.sqrt(1 + math.log(ratio) / math.log(original))
    # The factors for long prompts, also for short ones, as mlx_lm has it: keys of one prompt must agree.
    return plain / np.asarray(settings["long_factor"], dtype=np.float64), stretch


def _llama3(plain: Array, factor: float, settings: dict[str, Any]) -> Array:
    """Slow frequencies divided by the factor, fast ones kept, those in between blended."""
    low, high = settings.get("low_freq_factor", 1.0), settings.get("high_freq_factor", 4.0)
    turns = settings.get("original_max_position_embeddings", 8192) * plain / (2 * np.pi)
    share = np.clip((turns - low) / (high - low), 0, 1)
    return plain * (share + (1 - share) / factor)


def _yarn(plain: Array, factor: float, theta: float, settings: dict[str, Any]) -> Array:
    """Pairs that turn often in the original context are kept, those that turn less than once are divided."""
    length, pairs = settings.get("original_max_position_embeddings", 4096), len(plain)

    def pair_that_turns(times: float) -> float:
        return 2 * pairs * math.log(length / (times * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(pair_that_turns(settings.get("beta_fast", 32))), 0)
    high = min(math.ceil(pair_that_turns(settings.get("beta_slow", 1))), 2 * pairs - 1)
    share = np.clip((np.arange(pairs) - low) / max(high - low, 0.001), 0, 1)
    return plain * (1 - share) + plain / factor * share


def _yarn_stretch(factor: float, settings: dict[str, Any]) -> float:
    def stretch(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    return stretch(settings.get("mscale", 1)) / stretch(settings.get("mscale_all_dim", 0))
