"""How much each prompt token matters to the draft's next tokens (arXiv 2502.02789, section 3, and its published code).

Softmax of each query over the prompt's keys; average pooling over positions; largest over layers and heads; mean over
queries.
"""

from collections.abc import Iterable

import mlx.core as mx

from specprefill_repro.prefill.look_ahead import Attention


def token_scores(layers: Iterable[Attention], pool: int) -> mx.array:
    """Score every prompt token.

    One layer at a time with a running maximum, so that memory does not grow with the number of layers. Queries that
    share a key head are multiplied with it together; no key is copied.

    Returns:
        float32, shape (prompt tokens,), evaluated.
    """
    best: mx.array | None = None
    for layer in layers:
        pooled = average_pool(attention_weights(layer), pool)
        largest = pooled.max(axis=(0, 1))
        best = largest if best is None else mx.maximum(best, largest)
        mx.eval(best)
    if best is None:
        raise ValueError("no layer was captured")
    scores = best.mean(axis=0)
    mx.eval(scores)
    mx.synchronize()
    return scores


def attention_weights(layer: Attention) -> mx.array:
    """Softmax of scaled query-key products over the prompt: float32, (key heads, heads a key head, queries, tokens)."""
    _, heads, count, size = layer.queries.shape
    key_heads = layer.keys.shape[1]
    queries = layer.queries[0].reshape(key_heads, (heads // key_heads) * count, size)
    products = (queries * layer.scale) @ layer.keys[0].swapaxes(1, 2)
    return mx.softmax(products.astype(mx.float32), axis=-1).reshape(key_heads, heads // key_heads, count, -1)


def average_pool(weights: mx.array, width: int) -> mx.array:
    """Mean over a centred window of odd `width` along the last axis; outside the prompt counts as zero."""
    tokens = weights.shape[-1]
    padding = [(0, 0)] * (weights.ndim - 1) + [(width // 2, width // 2)]
    padded = mx.pad(weights, padding)
    total = padded[..., :tokens]
    for shift in range(1, width):
        total = total + padded[..., shift : shift + tokens]
    return total / width
