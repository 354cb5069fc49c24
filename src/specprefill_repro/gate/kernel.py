"""Scores computed in NumPy from what the attention kernel itself was given: the judge of drafts without an oracle."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from specprefill_repro.gate.oracle import largest_pooled


@dataclass(frozen=True)
class KernelCall:
    """float64 NumPy arrays without the batch axis."""

    queries: Any
    keys: Any
    values: Any
    output: Any
    scale: float
    sinks: Any


@contextmanager
def kernel_calls() -> Iterator[list[KernelCall]]:
    """Note every call of mx.fast.scaled_dot_product_attention: below the hook of the engine, which sits in mlx_lm."""
    original = mx.fast.scaled_dot_product_attention
    calls: list[KernelCall] = []

    def noted(queries: Any, keys: Any, values: Any, *, scale: float, mask: Any = None, sinks: Any = None) -> Any:
        output = original(queries, keys, values, scale=scale, mask=mask, sinks=sinks)
        calls.append(
            KernelCall(
                queries=_numpy(queries[0]),
                keys=_numpy(keys[0]),
                values=_numpy(values[0]),
                output=_numpy(output[0]),
                scale=scale,
                sinks=None if sinks is None else _numpy(sinks),
            )
        )
        return output

    mx.fast.scaled_dot_product_attention = noted
    try:
        yield calls
    finally:
        mx.fast.scaled_dot_product_attention = original


def kernel_scores(passes: list[list[KernelCall]], prompt_tokens: int, pool: int) -> tuple[Any, float]:
    """Scores of the prompt tokens from passes of one token each, the last prompt token's and those after it.

    Layers count when their keys reach back to the first token in every pass.

    Returns:
        Scores, (prompt tokens,); and the largest difference between the output of the kernel and softmax(q k) v of
        the noted arrays, relative to the largest output: it proves that they are what attention was computed from.
    """
    rows, wrong = [], 0.0
    for step, calls in enumerate(passes):
        best = None
        for layer, call in enumerate(calls):
            repeated = np.repeat(np.arange(len(call.keys)), len(call.queries) // len(call.keys))
            keys, values = call.keys[repeated], call.values[repeated]
            products = call.queries @ keys.swapaxes(1, 2) * call.scale
            expected = _softmax(products, call.sinks) @ values
            wrong = float(np.maximum(wrong, np.abs(expected - call.output).max() / np.abs(expected).max()))
            if all(len(of[layer].keys[0]) == prompt_tokens + index for index, of in enumerate(passes)):
                pooled = largest_pooled(_softmax(products[..., :prompt_tokens], call.sinks), pool)
                best = pooled if best is None else np.maximum(best, pooled)
        if best is None:
            raise ValueError(f"no layer attends to the whole prompt in pass {step}")
        rows.append(best[0])
    return np.mean(rows, axis=0), wrong


def _softmax(products: Any, sinks: Any) -> Any:
    """Over the last axis; sinks, one a head, take part and are then left out."""
    if sinks is not None:
        products = np.concatenate([products, np.broadcast_to(sinks[:, None, None], (*products.shape[:2], 1))], axis=-1)
    shifted = np.exp(products - products.max(axis=-1, keepdims=True))
    weights = shifted / shifted.sum(axis=-1, keepdims=True)
    return weights if sinks is None else weights[..., :-1]


def _numpy(array: mx.array) -> Any:
    return np.array(array.astype(mx.float32)).astype(np.float64)
