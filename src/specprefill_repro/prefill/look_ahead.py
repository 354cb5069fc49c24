"""The draft reads the prompt and decodes a few tokens; the attention of those steps to the prompt is what scores it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from specprefill_repro.errors import ReproError
from specprefill_repro.prefill.architectures import Structure, structure
from specprefill_repro.prefill.chunked import last_token_only, most_likely, passes


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
def captured_calls(model: nn.Module, last: int | None = None) -> Iterator[list[Attention]]:
    """Note what every attention call of the model's forward passes was given, in layer order.

    Each mlx_lm model module imports `scaled_dot_product_attention` by name; that name is replaced for the duration.

    Args:
        last: note the queries of so many last tokens only. They are copied, so that those of the others are free to go.
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
        noted = queries if last is None else mx.contiguous(queries[:, :, -last:])
        calls.append(Attention(noted, keys, float(scale), sinks))
        return original(queries, keys, values, cache=cache, scale=scale, mask=mask, sinks=sinks)

    code.scaled_dot_product_attention = capture  # type: ignore[attr-defined]
    try:
        yield calls
    finally:
        code.scaled_dot_product_attention = original  # type: ignore[attr-defined]


def look_ahead(
    draft: nn.Module,
    ids: Sequence[int],
    cache: list[Any],
    step: int,
    queries: int,
    end_tokens: frozenset[int],
    prompt_read: Callable[[], None] = lambda: None,
    *,
    prompt_query: bool = True,
    choose: Callable[[mx.array], int] = most_likely,
) -> tuple[list[Attention], list[int]]:
    """Read the prompt, and then the tokens that the draft decodes, until there are so many `queries`.

    The first query is the last prompt token's, as in the paper's published code; it comes with the pass that reads the
    prompt's end. Each further one takes a pass. Decoding stops at an end token, as there. Nothing is computed above
    the last layer that scores when nobody reads it: not of the last pass, and with one query not of the prompt either.

    Args:
        ids: the prompt.
        cache: an empty cache.
        step: tokens a pass, while the prompt is read.
        prompt_read: called when that is done.
        prompt_query: False: the last prompt token's query does not count, as in the MLX ports; one more pass.
        choose: logits (vocabulary,) -> the next token.

    Returns:
        One `Attention` for each layer that scores (see `scoring_layers`), with up to `queries` queries; and the decoded
        tokens that were read (one fewer, or as many without the last prompt token's query).

    Raises:
        ReproError: no layer of the draft sees the whole prompt.
    """
    found = structure(draft)
    scoring = scoring_layers(found, len(ids) + queries - prompt_query)
    only_scores = queries == 1 and prompt_query
    needed = _caches_up_to(found, scoring[-1], cache) if only_scores else cache
    *before, (start, _) = passes(len(ids), step)
    for first, stop in before:
        draft(mx.array([list(ids[first:stop])]), cache=cache)
        mx.eval([entry.state for entry in needed])
    rows: list[list[mx.array]] = []
    decoded: list[int] = []
    with captured_calls(draft, last=1) as calls, last_token_only(draft):
        tokens = list(ids[start:])
        while True:
            calls.clear()
            logits = draft(mx.array([tokens]), cache=cache)[0, -1]
            if len(calls) != len(found.attention):
                raise RuntimeError(f"{len(calls)} attention calls in a pass through {len(found.attention)} layers")
            if decoded or prompt_query:
                rows.append([calls[layer].queries for layer in scoring])
            more = len(rows) < queries
            mx.eval(rows[-1:], logits if more else [])
            if not decoded:
                prompt_read()
            if not more:
                break
            token = choose(logits)
            if token in end_tokens and rows:
                break
            decoded.append(token)
            tokens = [token]
        layers = [
            Attention(
                queries=mx.concatenate([row[index] for row in rows], axis=2),
                keys=calls[layer].keys[:, :, : len(ids)],
                scale=calls[layer].scale,
                sinks=calls[layer].sinks,
            )
            for index, layer in enumerate(scoring)
        ]
    mx.eval([[layer.queries, layer.keys] for layer in layers])
    return layers, decoded


def _caches_up_to(found: Structure, attention: int, cache: list[Any]) -> list[Any]:
    """The caches of all layers up to one that attends; all of them when it uses another layer's."""
    own = found.attention[attention].cache
    return cache if own is None else cache[: own + 1]


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
