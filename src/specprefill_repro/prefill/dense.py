"""Dense prefill: the target reads every prompt token."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from specprefill_repro.prefill.arms import Models, Prefilled, Request
from specprefill_repro.prefill.chunked import (
    last_token_only,
    most_likely,
    new_cache,
    next_logits,
    read_prompt,
    tokens_read,
)


@contextmanager
def prefill(models: Models, request: Request) -> Iterator[Prefilled]:
    """Prefill the whole prompt; only the final norm is told to pass on the last token alone."""
    cache = new_cache(models.target)
    cached_before = tokens_read(cache)
    with last_token_only(models.target):
        logits = read_prompt(models.target, request.ids, cache, request.step)
    target_done = perf_counter()
    first_token = most_likely(logits)
    done = perf_counter()
    yield Prefilled(
        logits=logits,
        first_token=first_token,
        cache=cache,
        cache_tokens_before=cached_before,
        kept=list(range(len(request.ids))),
        marks=[("target_prefill", target_done), ("first_token", done)],
        decode=lambda token: next_logits(models.target, token, cache),
    )
