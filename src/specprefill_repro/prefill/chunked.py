"""Chunked prefill and decoding: the same for every arm."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from specprefill_repro.prefill.architectures import structure

BeforePass = Callable[[int, int], None]
"""Told the half-open range of tokens (indices into the list that is read) of the next forward pass."""


def new_cache(model: Any) -> list[Any]:
    """An empty cache, as the model makes it, or as mlx_lm makes it for a model that does not."""
    if hasattr(model, "make_cache"):
        return list(model.make_cache())
    # Here and not above: the first import of mlx_lm is loading.py's to make.
    from mlx_lm.models.cache import KVCache

    return [KVCache() for _ in model.layers]


def key_caches(cache: Sequence[Any]) -> list[Any]:
    """Those that hold keys: one for each attention layer that has keys of its own. Recurrent layers hold states."""
    return [entry for entry in cache if hasattr(entry, "keys")]


def cached_tokens(cache: Sequence[Any]) -> set[int]:
    """How many tokens each attention layer has read, windows included: one number when all agree."""
    return {int(entry.offset) for entry in key_caches(cache)}


def tokens_read(cache: Sequence[Any]) -> int:
    """How many tokens the attention layers have read; -1 when they do not agree."""
    found = cached_tokens(cache)
    return found.pop() if len(found) == 1 else -1


def read_prompt(
    model: Any, ids: Sequence[int], cache: list[Any], step: int, before_pass: BeforePass | None = None
) -> mx.array:
    """Read a prompt into the cache, at most `step` tokens a pass, each pass finished before the next.

    mlx is lazy: of a pass whose logits nobody reads, only keys, values and states are computed, so nothing above the
    last layer's keys. The last token is read in one pass with those before it (mlx_lm reads it alone, and with it all
    weights once more); call this within `last_token_only`, so that the head is computed for that token alone.

    Returns:
        Logits of the token after the prompt: shape (vocabulary,), dtype of the model; evaluated.
    """
    logits: mx.array | None = None
    for start, stop in passes(len(ids), step):
        if before_pass is not None:
            before_pass(start, stop)
        logits = model(mx.array([list(ids[start:stop])]), cache=cache)[0, -1]
        mx.eval([entry.state for entry in cache], logits if stop == len(ids) else [])
    if logits is None:
        raise ValueError("no prompt")
    return logits


@contextmanager
def last_token_only(model: nn.Module) -> Iterator[None]:
    """Within this, a pass gives the logits of its last token alone, (1, 1, vocabulary).

    The final norm, which stands between the last layer and the head in every architecture, passes on one token.

    Raises:
        ReproError: the model is not supported.
    """
    found = structure(model)
    norm = found.final_norm

    def of_last_token(hidden: mx.array) -> mx.array:
        return norm(hidden[:, -1:])

    setattr(found.trunk, found.architecture.norm, of_last_token)
    try:
        yield
    finally:
        setattr(found.trunk, found.architecture.norm, norm)


def passes(tokens: int, step: int) -> Iterator[tuple[int, int]]:
    """Half-open ranges of at most `step` tokens that cover 0 to `tokens`."""
    for start in range(0, tokens, step):
        yield start, min(start + step, tokens)


def next_logits(model: Any, token: int, cache: list[Any]) -> mx.array:
    """Read one token; logits of the one after it: shape (vocabulary,), dtype of the model; evaluated."""
    logits = model(mx.array([[token]]), cache=cache)[0, -1]
    mx.eval(logits, [entry.state for entry in cache])
    return logits


def most_likely(logits: mx.array) -> int:
    """Id of the most likely token, known on the host."""
    return int(mx.argmax(logits).item())


def log_probabilities(logits: mx.array) -> mx.array:
    """Natural logarithms of the softmax, float32, shape (vocabulary,)."""
    wide = logits.astype(mx.float32)
    return wide - mx.logsumexp(wide)
