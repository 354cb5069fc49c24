"""Chunked prefill and decoding, as mlx_lm does them: the same for every arm."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import mlx.core as mx

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


def prefill_all_but_last(
    model: Any, ids: Sequence[int], cache: list[Any], step: int, before_pass: BeforePass | None = None
) -> None:
    """Read all tokens but the last into the cache, at most `step` a pass; each pass is finished before the next.

    The last token is read by `next_logits`, so that no pass computes the head for tokens whose output nobody reads.
    """
    for start, stop in passes(len(ids) - 1, step):
        if before_pass is not None:
            before_pass(start, stop)
        model(mx.array([list(ids[start:stop])]), cache=cache)
        mx.eval([entry.state for entry in cache])
    mx.synchronize()


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
