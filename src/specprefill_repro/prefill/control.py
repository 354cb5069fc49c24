"""The controls: as many chunks as speculative prefill keeps, chosen by a seeded coin or by place; no draft is read."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from specprefill_repro.prefill.arms import Models, Prefilled, Request
from specprefill_repro.prefill.selection import outer_chunks, random_chunks, spaced_chunks
from specprefill_repro.prefill.sparse import prefill_kept
from specprefill_repro.study.plan import ArmKind


@contextmanager
def prefill(models: Models, request: Request) -> Iterator[Prefilled]:
    """Prefill the target with the chunks that the arm's kind of control chooses, at their original positions."""
    kind, tokens, keep, rule = request.arm.kind, len(request.ids), request.arm.keep, request.arm.selection
    if rule is None:
        raise ValueError("a control needs selection parameters")
    seed = None
    if kind is ArmKind.RANDOM:
        seed = request.seed
        kept = random_chunks(tokens, keep, rule, seed)
    elif kind is ArmKind.HEAD_TAIL:
        kept = outer_chunks(tokens, keep, rule)
    elif kind is ArmKind.UNIFORM:
        kept = spaced_chunks(tokens, keep, rule)
    else:
        raise ValueError(f"{kind} is no control")
    with prefill_kept(models, request, kept, [("selection", perf_counter())]) as prefilled:
        prefilled.selection_seed = seed
        yield prefilled
