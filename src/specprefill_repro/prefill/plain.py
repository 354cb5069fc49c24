"""Dense prefill by mlx_lm's own generation loop, as `mlx_lm.generate` runs it: the baseline that users already have.

The same weights, BLAS, pass size and empty cache as the dense arm. Where this is faster, the dense arm is no fair
baseline.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

import mlx.core as mx
from mlx_lm.generate import generate_step

from specprefill_repro.prefill.arms import Models, Prefilled, Request
from specprefill_repro.prefill.chunked import most_likely, new_cache, next_logits, tokens_read


@contextmanager
def prefill(models: Models, request: Request) -> Iterator[Prefilled]:
    """Let mlx_lm read the whole prompt and choose the first token; nothing in the model is replaced."""
    cache = new_cache(models.target)
    cached_before = tokens_read(cache)
    seen: list[mx.array] = []

    def keep_logits(_: mx.array, logits: mx.array) -> mx.array:
        seen.append(logits)
        return logits

    # With no token to yield, the loop ends as soon as the first one is known, and reads no further.
    steps = generate_step(
        mx.array(request.ids),
        models.target,
        max_tokens=0,
        logits_processors=[keep_logits],
        prompt_cache=cache,
        prefill_step_size=request.step,
    )
    for _ in steps:
        raise RuntimeError("mlx_lm yielded a token that nobody asked for")
    target_done = perf_counter()
    logits = seen[-1][0]
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
