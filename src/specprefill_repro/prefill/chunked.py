"""Chunked prefill and decoding, as mlx_lm does them: the same for every arm."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn

BeforePass = Callable[[int, int], None]
"""Told the half-open range of tokens (indices into the list that is read) of the next forward pass."""


def new_cache(model: nn.Module) -> list[Any]:
    """An empty KV cache, one entry a layer."""
    return list(model.make_cache())


def cached_tokens(cache: Sequence[Any]) -> int:
    """Entries in the KV cache of the first layer."""
    return int(cache[0].offset)


def prefill_all_but_last(
    model: nn.Module, ids: Sequence[int], cache: list[Any], step: int, before_pass: BeforePass | None = None
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


def next_logits(model: nn.Module, token: int, cache: list[Any]) -> mx.array:
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
