"""Control: as many chunks as speculative prefill keeps, evenly spaced; no draft is read."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from specprefill_repro.prefill.arms import Models, Prefilled, Request
from specprefill_repro.prefill.selection import spaced_chunks
from specprefill_repro.prefill.sparse import prefill_kept


@contextmanager
def prefill(models: Models, request: Request) -> Iterator[Prefilled]:
    """Prefill the target with evenly spaced chunks, at their original positions."""
    rule = request.arm.selection
    if rule is None:
        raise ValueError("a uniform selection needs selection parameters")
    kept = spaced_chunks(len(request.ids), request.arm.keep, rule)
    with prefill_kept(models, request, kept, [("selection", perf_counter())]) as prefilled:
        yield prefilled
