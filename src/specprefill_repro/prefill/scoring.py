"""How much each prompt token matters to the draft's next tokens (arXiv 2502.02789, section 3, and its published code).

Softmax of each query over the prompt's keys; average pooling over positions; largest over layers and heads; mean over
queries.
"""

from collections.abc import Iterable, Iterator

import mlx.core as mx

from specprefill_repro.prefill.look_ahead import Attention

BLOCK_WEIGHTS = 2**22
"""Attention weights in memory at a time, in float32: of all heads and queries, and of as many prompt tokens as that
allows. Scores do not depend on it, but for rounding. A prompt that fits into one block is multiplied once, a longer one
twice."""


def token_scores(layers: Iterable[Attention], pool: int, block: int | None = None) -> mx.array:
    """Score every prompt token.

    One layer and one block of tokens at a time, with a running maximum, so that memory grows with none of layers, heads
    and, beyond (queries, prompt tokens), the prompt.

    Args:
        pool: width of the average pooling, odd.
        block: prompt tokens at a time; None: as many as BLOCK_WEIGHTS allows.

    Returns:
        float32, shape (prompt tokens,), evaluated.
    """
    best: mx.array | None = None
    for layer in layers:
        _, heads, queries, _ = layer.queries.shape
        largest = largest_pooled_weights(layer, pool, block or max(pool, BLOCK_WEIGHTS // (heads * queries)))
        best = largest if best is None else mx.maximum(best, largest)
        mx.eval(best)
    if best is None:
        raise ValueError("no layer was captured")
    scores = best.mean(axis=0)
    mx.eval(scores)
    mx.synchronize()
    return scores


def largest_pooled_weights(layer: Attention, pool: int, block: int) -> mx.array:
    """Of each query and prompt token, the largest pooled attention weight over heads: (queries, tokens), float32."""
    tokens = layer.keys.shape[2]
    if tokens <= block:
        found = products(layer, 0, tokens)
        # Pooling is linear: it may come before the division, and one exponential does for both.
        top = mx.maximum(found.max(axis=-1, keepdims=True), _sinks(layer))
        weights = mx.exp(found - top)
        total = weights.sum(axis=-1, keepdims=True) + mx.exp(_sinks(layer) - top)
        return (average_pool(weights, pool) / total).max(axis=(0, 1))
    total = log_total(layer, (products(layer, *bounds) for bounds in _blocks(tokens, block)))
    parts = []
    for start, stop in _blocks(tokens, block):
        # Pooling looks half a width beyond the block, where there is a prompt.
        first, last = max(0, start - pool // 2), min(tokens, stop + pool // 2)
        pooled = average_pool(mx.exp(products(layer, first, last) - total), pool)
        parts.append(pooled[..., start - first : stop - first].max(axis=(0, 1)))
        mx.eval(parts[-1])
    return mx.concatenate(parts, axis=-1)


def products(layer: Attention, start: int, stop: int) -> mx.array:
    """Scaled products of all queries with some keys: float32, (key heads, heads a key head, queries, keys).

    Queries that share a key head are multiplied with it together; no key is copied.
    """
    _, heads, count, size = layer.queries.shape
    key_heads = layer.keys.shape[1]
    queries = layer.queries[0].reshape(key_heads, (heads // key_heads) * count, size)
    found = (queries * layer.scale) @ layer.keys[0, :, start:stop].swapaxes(1, 2)
    return found.astype(mx.float32).reshape(key_heads, heads // key_heads, count, -1)


def log_total(layer: Attention, blocks: Iterator[mx.array]) -> mx.array:
    """Logarithm of each softmax's denominator, sinks included: (key heads, heads a key head, queries, 1)."""
    total = _sinks(layer)
    for block in blocks:
        total = mx.logaddexp(total, mx.logsumexp(block, axis=-1, keepdims=True))
        mx.eval(total)
    return total


def _sinks(layer: Attention) -> mx.array:
    """Logits without a key: float32, (key heads, heads a key head, 1, 1). Without any: minus infinity, which adds 0."""
    if layer.sinks is None:
        return mx.array(-mx.inf)
    return layer.sinks.astype(mx.float32).reshape(layer.keys.shape[1], -1, 1, 1)


def _blocks(tokens: int, block: int) -> Iterator[tuple[int, int]]:
    for start in range(0, tokens, block):
        yield start, min(start + block, tokens)


def average_pool(weights: mx.array, width: int) -> mx.array:
    """Mean over a centred window of odd `width` along the last axis; outside the prompt counts as zero.

    The sum of a window is put together from sums of 1, 2, 4, ... neighbours: for a width of 13, five additions.
    """
    tokens = weights.shape[-1]
    sums = mx.pad(weights, [(0, 0)] * (weights.ndim - 1) + [(width // 2, width // 2)])
    total, start, size = mx.zeros(()), 0, 1
    while True:
        if width & size:
            total = total + sums[..., start : start + tokens]
            start += size
        if 2 * size > width:
            return total / width
        sums = sums[..., :-size] + sums[..., size:]
        size *= 2
