"""Control: as many chunks as speculative prefill keeps, chosen by a seeded coin; no draft is read."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from specprefill_repro.prefill.arms import Models, Prefilled, Request
from specprefill_repro.prefill.selection import random_chunks
from specprefill_repro.prefill.sparse import prefill_kept


@contextmanager
def prefill(models: Models, request: Request) -> Iterator[Prefilled]:
    """Prefill the target with randomly chosen chunks at their original positions."""
    rule = request.arm.selection
    if rule is None:
        raise ValueError("a random selection needs selection parameters")
    kept = random_chunks(len(request.ids), request.arm.keep, rule, request.seed)
    with prefill_kept(models, request, kept, [("selection", perf_counter())]) as prefilled:
        prefilled.selection_seed = request.seed
        yield prefilled
