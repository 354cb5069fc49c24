"""How the look-ahead takes its next token: the most likely one, or one drawn from a seed, as mlx_lm's sampler draws."""

import hashlib
from collections.abc import Callable

import mlx.core as mx

from specprefill_repro.prefill.chunked import most_likely


def chooser(temperature: float, top_p: float, seed: str) -> Callable[[mx.array], int]:
    """A function from logits, shape (vocabulary,), to a token id; with temperature 0 the most likely token.

    Calls draw one after the other from one seeded sequence of keys; the global generator is not touched.
    """
    if temperature == 0:
        return most_likely
    key = mx.random.key(int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8], "big"))

    def draw(logits: mx.array) -> int:
        nonlocal key
        key, own = mx.random.split(key)
        return int(mx.random.categorical(restricted(logits, top_p) / temperature, key=own).item())

    return draw


def restricted(logits: mx.array, top_p: float) -> mx.array:
    """Natural log-probabilities, float32, shape (vocabulary,); minus infinity outside the nucleus.

    The nucleus is the fewest most likely tokens whose probabilities, before any temperature, add up to more than
    `top_p` (Holtzman et al. 2020; mlx_lm also restricts first and divides by the temperature afterwards).
    """
    logs = logits.astype(mx.float32)
    logs = logs - mx.logsumexp(logs)
    if top_p >= 1:
        return logs
    order = mx.argsort(logs)
    below = mx.cumsum(mx.exp(logs[order]))
    inside = mx.zeros(logs.shape, dtype=mx.bool_)
    inside[order] = below > 1 - top_p
    return mx.where(inside, logs, -mx.inf)
