"""Dense prefill: the target, untouched, reads every prompt token."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from specprefill_repro.prefill.arms import Models, Prefilled, Request
from specprefill_repro.prefill.chunked import most_likely, new_cache, next_logits, prefill_all_but_last, tokens_read


@contextmanager
def prefill(models: Models, request: Request) -> Iterator[Prefilled]:
    """Prefill the whole prompt; the model is never changed."""
    cache = new_cache(models.target)
    cached_before = tokens_read(cache)
    prefill_all_but_last(models.target, request.ids, cache, request.step)
    target_done = perf_counter()
    logits = next_logits(models.target, request.ids[-1], cache)
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
