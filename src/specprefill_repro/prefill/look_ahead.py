"""The draft reads the prompt and decodes a few tokens; the attention of those steps to the prompt is what scores it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from specprefill_repro.prefill.architectures import model_code
from specprefill_repro.prefill.chunked import most_likely, next_logits


@dataclass(frozen=True)
class Attention:
    """What one layer's attention was computed from: after norms, after rotation, exactly as the model used it."""

    queries: mx.array
    """(1, heads, queries, head size)"""
    keys: mx.array
    """(1, key heads, prompt tokens, head size)"""
    scale: float


@contextmanager
def captured_calls(model: nn.Module) -> Iterator[list[tuple[mx.array, mx.array, float]]]:
    """Note (queries, keys, scale) of every attention call of the model's forward passes, in layer order.

    Each mlx_lm model module imports `scaled_dot_product_attention` by name; that name is replaced for the duration.
    """
    code = model_code(model)
    original: Callable[..., mx.array] = code.scaled_dot_product_attention
    calls: list[tuple[mx.array, mx.array, float]] = []

    def capture(queries: mx.array, keys: mx.array, values: mx.array, *args: Any, **kwargs: Any) -> mx.array:
        calls.append((queries, keys, float(kwargs["scale"])))
        return original(queries, keys, values, *args, **kwargs)

    code.scaled_dot_product_attention = capture  # type: ignore[attr-defined]
    try:
        yield calls
    finally:
        code.scaled_dot_product_attention = original  # type: ignore[attr-defined]


def look_ahead(
    draft: nn.Module, last_token: int, cache: list[Any], steps: int, end_tokens: frozenset[int]
) -> tuple[list[Attention], list[int]]:
    """Read the last prompt token and then the tokens the draft decodes greedily, `steps` passes in all at most.

    `cache` holds the prompt without its last token. The first query is the last prompt token's, as in the paper's
    published code; decoding stops at an end token, as there.

    Returns:
        One `Attention` a layer, with up to `steps` queries; and the decoded tokens that were read (one fewer).
    """
    queries: list[list[mx.array]] = []
    decoded: list[int] = []
    token = last_token
    prompt_tokens = int(cache[0].offset) + 1
    with captured_calls(draft) as calls:
        for step in range(steps):
            calls.clear()
            logits = next_logits(draft, token, cache)
            queries.append([call[0] for call in calls])
            if step == steps - 1:
                break
            token = most_likely(logits)
            if token in end_tokens:
                break
            decoded.append(token)
        layers = [
            Attention(
                queries=mx.concatenate([of_step[layer] for of_step in queries], axis=2),
                keys=keys[:, :, :prompt_tokens],
                scale=scale,
            )
            for layer, (_, keys, scale) in enumerate(calls)
        ]
    mx.eval([layer.queries for layer in layers])
    mx.synchronize()
    return layers, decoded
