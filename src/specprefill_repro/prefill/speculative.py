"""Speculative prefill: the draft reads the prompt and scores it; the target reads what scored best."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from specprefill_repro.prefill.arms import Models, Prefilled, Request
from specprefill_repro.prefill.chunked import new_cache, tokens_read
from specprefill_repro.prefill.look_ahead import look_ahead
from specprefill_repro.prefill.sampling import chooser
from specprefill_repro.prefill.scoring import token_scores
from specprefill_repro.prefill.selection import best_chunks
from specprefill_repro.prefill.sparse import prefill_kept


@contextmanager
def prefill(models: Models, request: Request) -> Iterator[Prefilled]:
    """Score the prompt with the draft, then prefill the target with the kept tokens."""
    rule = request.arm.selection
    if models.draft is None or rule is None:
        raise ValueError("a speculative prefill needs a draft and selection parameters")
    draft_cache = new_cache(models.draft)
    cached_before = tokens_read(draft_cache)
    marks: list[tuple[str, float]] = []
    layers, decoded = look_ahead(
        models.draft,
        request.ids,
        draft_cache,
        request.step,
        rule.look_ahead,
        models.draft_end_tokens if rule.stop_at_end else frozenset(),
        prompt_read=lambda: marks.append(("draft_prefill", perf_counter())),
        prompt_query=rule.prompt_query,
        choose=chooser(rule.temperature, rule.top_p, request.seed),
    )
    marks.append(("look_ahead", perf_counter()))
    scores = token_scores(layers, rule.pool)
    # Of the draft's keys and values nothing is needed any more: the target's take their place in memory.
    del layers, draft_cache
    marks.append(("scoring", perf_counter()))
    kept = best_chunks(scores.tolist(), request.arm.keep, rule)
    marks.append(("selection", perf_counter()))
    with prefill_kept(models, request, kept, marks) as prefilled:
        prefilled.draft_cache_tokens_before = cached_before
        prefilled.tokens_scored = int(scores.shape[0])
        prefilled.look_ahead_tokens = decoded
        prefilled.selection_seed = request.seed if rule.temperature > 0 else None
        yield prefilled
