"""Sparse prefill: the target reads the kept tokens at their original positions. Shared by all arms that drop tokens."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter

import mlx.core as mx

from specprefill_repro.prefill.arms import Models, Prefilled, Request
from specprefill_repro.prefill.chunked import (
    last_token_only,
    most_likely,
    new_cache,
    next_logits,
    read_prompt,
    tokens_read,
)
from specprefill_repro.prefill.positions import PositionedModel
from specprefill_repro.prefill.selection import with_window_tail
from specprefill_repro.study.schema import Selection


@contextmanager
def prefill_kept(
    models: Models, request: Request, kept: Sequence[int], marks: Sequence[tuple[str, float]]
) -> Iterator[Prefilled]:
    """Prefill the target with the tokens at the `kept` positions (ascending).

    The first logits are those of the last kept token, which is the last prompt token's unless the arm's rule keeps no
    tail.

    Generated tokens get the positions after the prompt's last. Between passes the target is as it was, so that
    several sequences may take turns on it.

    Args:
        marks: phases that ended before this one began.
    """
    rule = request.arm.selection or Selection()
    model = PositionedModel(models.target, len(request.ids), windows=rule.windows)
    kept = with_window_tail(kept, len(request.ids), model.largest_window, rule)
    ids = [request.ids[position] for position in kept]
    cache = new_cache(model)
    cached_before = tokens_read(cache)
    with last_token_only(models.target):
        logits = read_prompt(
            model, ids, cache, request.step, lambda start, stop: model.positions.set(list(kept[start:stop]))
        )
    target_done = perf_counter()
    first_token = most_likely(logits)
    done = perf_counter()
    next_position = len(request.ids)

    def decode(token: int) -> mx.array:
        nonlocal next_position
        model.positions.set([next_position])
        next_position += 1
        return next_logits(model, token, cache)

    yield Prefilled(
        logits=logits,
        first_token=first_token,
        cache=cache,
        cache_tokens_before=cached_before,
        kept=list(kept),
        marks=[*marks, ("target_prefill", target_done), ("first_token", done)],
        decode=decode,
        rotary_seen=[list(rotary.seen) for rotary in model.rotaries],
    )
