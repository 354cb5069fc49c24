"""The draft reads the prompt and decodes a few tokens; the attention of those steps to the prompt is what scores it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from specprefill_repro.errors import ReproError
from specprefill_repro.prefill.architectures import Structure, structure
from specprefill_repro.prefill.chunked import most_likely, next_logits, tokens_read


@dataclass(frozen=True)
class Attention:
    """What one layer's attention was computed from: after norms, after rotation, exactly as the model used it."""

    queries: mx.array
    """(1, heads, queries, head size)"""
    keys: mx.array
    """(1, key heads, prompt tokens, head size)"""
    scale: float
    sinks: mx.array | None = None
    """(heads,): logits that take part in the softmax without a key."""


@contextmanager
def captured_calls(model: nn.Module) -> Iterator[list[Attention]]:
    """Note what every attention call of the model's forward passes was given, in layer order.

    Each mlx_lm model module imports `scaled_dot_product_attention` by name; that name is replaced for the duration.
    """
    code = structure(model).code
    original: Callable[..., mx.array] = code.scaled_dot_product_attention
    calls: list[Attention] = []

    def capture(
        queries: mx.array,
        keys: mx.array,
        values: mx.array,
        cache: Any,
        scale: float,
        mask: Any,
        sinks: mx.array | None = None,
    ) -> mx.array:
        calls.append(Attention(queries, keys, float(scale), sinks))
        return original(queries, keys, values, cache=cache, scale=scale, mask=mask, sinks=sinks)

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
        One `Attention` for each layer that scores (see `scoring_layers`), with up to `steps` queries; and the decoded
        tokens that were read (one fewer).

    Raises:
        ReproError: no layer of the draft sees the whole prompt.
    """
    prompt_tokens = tokens_read(cache) + 1
    found = structure(draft)
    scoring = scoring_layers(found, prompt_tokens + steps - 1)
    queries: list[list[mx.array]] = []
    decoded: list[int] = []
    token = last_token
    with captured_calls(draft) as calls:
        for step in range(steps):
            calls.clear()
            logits = next_logits(draft, token, cache)
            if len(calls) != len(found.attention):
                raise RuntimeError(f"{len(calls)} attention calls in a pass through {len(found.attention)} layers")
            queries.append([calls[layer].queries for layer in scoring])
            if step == steps - 1:
                break
            token = most_likely(logits)
            if token in end_tokens:
                break
            decoded.append(token)
        layers = [
            Attention(
                queries=mx.concatenate([of_step[index] for of_step in queries], axis=2),
                keys=calls[layer].keys[:, :, :prompt_tokens],
                scale=calls[layer].scale,
                sinks=calls[layer].sinks,
            )
            for index, layer in enumerate(scoring)
        ]
    mx.eval([layer.queries for layer in layers])
    mx.synchronize()
    return layers, decoded


def scoring_layers(found: Structure, tokens: int) -> list[int]:
    """Which attention layers score: those whose queries see every one of so many tokens.

    A sliding-window layer with a shorter window says nothing about the tokens outside it, and its softmax over the few
    inside would outweigh the others'; so it does not score (as in the public ports). Recurrent layers have no
    attention to score with.

    Returns:
        Indices into `found.attention`.

    Raises:
        ReproError: there is none.
    """
    scoring = [index for index, layer in enumerate(found.attention) if layer.window is None or tokens <= layer.window]
    if not scoring:
        raise ReproError(
            f"No layer of the draft sees a whole prompt of {tokens} tokens.",
            "All its attention layers have sliding windows that are shorter, so it can't score the prompt.",
            "Choose a draft with full attention in some layers, or shorter prompts.",
        )
    return scoring
