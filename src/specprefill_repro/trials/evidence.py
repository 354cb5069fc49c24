"""What a prefill leaves behind that proves which computation ran; read after the clock has stopped."""

from collections.abc import Sequence
from itertools import chain, groupby
from typing import Any

from specprefill_repro.files import content_id
from specprefill_repro.prefill.architectures import structure
from specprefill_repro.prefill.arms import Prefilled
from specprefill_repro.prefill.positions import rotary_is_original
from specprefill_repro.study.plan import Arm, ArmKind
from specprefill_repro.trials.schema import Evidence


def gather_evidence(
    prefilled: Prefilled,
    target: Any,
    *,
    needle: Sequence[tuple[int, int]],
    cached_after: set[int],
    key_dtype: str,
    logits_sha256: str,
) -> Evidence:
    """Evidence of a finished prefill whose context has ended (so that the restoring of the model is seen too)."""
    kept = prefilled.kept
    in_needle = sum(start <= position < stop for position in kept for start, stop in needle)
    modules = len(prefilled.rotary_seen)
    return Evidence(
        tokens_scored=prefilled.tokens_scored,
        tokens_kept=len(kept),
        kept_ranges=as_ranges(kept),
        kept_sha256=content_id(kept),
        rotary_positions_sha256=_seen_by_all(prefilled) if modules else None,
        rotary_modules=modules,
        rotary_modules_expected=len(structure(target).rotary_modules),
        rotary_modules_restored=len(structure(target).rotary_modules) if modules and rotary_is_original(target) else 0,
        cache_tokens_before=prefilled.cache_tokens_before,
        draft_cache_tokens_before=prefilled.draft_cache_tokens_before,
        cache_tokens_after=cached_after.pop() if len(cached_after) == 1 else -1,
        key_dtype=key_dtype.rpartition(".")[2],
        logits_dtype=str(prefilled.logits.dtype).rpartition(".")[2],
        look_ahead_tokens=tuple(prefilled.look_ahead_tokens),
        selection_seed=prefilled.selection_seed,
        needle_kept=in_needle / sum(stop - start for start, stop in needle),
        first_token=prefilled.first_token,
        logits_sha256=logits_sha256,
    )


def _seen_by_all(prefilled: Prefilled) -> str:
    """Hash of the positions that queries and keys of every module were rotated by; says so when they differ."""
    distinct = {_positions_of_passes(seen) for seen in prefilled.rotary_seen}
    positions = distinct.pop() if len(distinct) == 1 else None
    return content_id(list(positions)) if positions is not None else f"{len(distinct) + 1} different lists"


def _positions_of_passes(seen: Sequence[Any]) -> tuple[int, ...] | None:
    """Positions that one module saw, pass by pass; None when a pass had more or fewer rotations than another.

    A pass rotates queries and keys with the same array; queries alone in a layer that uses another one's keys.
    """
    passes = [list(calls) for _, calls in groupby(seen, key=id)]
    if len({len(calls) for calls in passes}) != 1:
        return None
    return tuple(chain.from_iterable(calls[0].tolist() for calls in passes))


def as_ranges(positions: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Ascending positions as half-open ranges."""
    ranges: list[tuple[int, int]] = []
    for position in positions:
        if ranges and ranges[-1][1] == position:
            ranges[-1] = (ranges[-1][0], position + 1)
        else:
            ranges.append((position, position + 1))
    return tuple(ranges)


def as_positions(ranges: Sequence[tuple[int, int]]) -> list[int]:
    """Half-open ranges as ascending positions."""
    return [position for start, stop in ranges for position in range(start, stop)]


def outcome(arm: Arm, evidence: Evidence, tokens: int) -> str:
    """`dense`, `sparse`, or `fallback: REASON`: what ran, whatever was asked for."""
    if arm.kind.reads_all:
        whole = evidence.tokens_kept == evidence.cache_tokens_after == tokens
        return "dense" if whole else "fallback: the dense arm did not read the whole prompt"
    if evidence.rotary_modules_expected not in (None, evidence.rotary_modules):
        return (
            f"fallback: {evidence.rotary_modules} of {evidence.rotary_modules_expected} rotary embeddings were watched"
        )
    # A model without rotary embeddings has no positions to see: what its caches hold decides.
    if evidence.rotary_modules_expected != 0 and evidence.rotary_positions_sha256 != evidence.kept_sha256:
        return "fallback: the rotary embedding saw other positions than the kept ones"
    if evidence.cache_tokens_after != evidence.tokens_kept:
        return f"fallback: the KV cache holds {evidence.cache_tokens_after} of {evidence.tokens_kept} kept tokens"
    if arm.kind is ArmKind.SPECULATIVE and evidence.tokens_scored != tokens:
        return f"fallback: the draft scored {evidence.tokens_scored} of {tokens} tokens"
    return "dense" if evidence.tokens_kept == tokens else "sparse"
