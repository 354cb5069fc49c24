"""Which prompt tokens the target reads. Plain Python: no array library, so that anybody can check it."""

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from specprefill_repro.study.schema import Selection


@dataclass(frozen=True)
class Division:
    """A prompt, divided by a rule: what is always kept, and the chunks of which so many are chosen."""

    always: tuple[range, ...]
    chunks: tuple[range, ...]
    """In order; the last may be shorter."""
    chosen: int


def divide(tokens: int, keep: float, rule: Selection) -> Division:
    """Divide a prompt of so many tokens.

    The budget counts chunks between head and tail: ceil(chunks * keep). Where the tail is charged to it, it counts
    the tail's chunks too, and the tail is kept even when it is larger.
    """
    start = min(rule.head, tokens)
    head = range(start)
    if rule.tail_in_budget:
        chunks = _chunks(start, tokens, rule.chunk)
        free = len(chunks) - min(len(chunks), math.ceil(rule.tail / rule.chunk))
        chosen = max(0, budget(len(chunks), keep) - (len(chunks) - free))
        return Division((head, *chunks[free:]), chunks[:free], chosen)
    stop = max(tokens - rule.tail, start)
    chunks = _chunks(start, stop, rule.chunk)
    return Division((head, range(stop, tokens)), chunks, budget(len(chunks), keep))


def best_chunks(scores: Sequence[float], keep: float, rule: Selection) -> list[int]:
    """What is always kept, and the chunks of highest mean score. Ties go to the earlier chunk.

    Returns:
        Ascending positions; the last prompt token is always among them, unless the rule keeps no tail.
    """
    division = divide(len(scores), keep, rule)
    ranked = sorted(
        division.chunks,
        key=lambda chunk: (-math.fsum(scores[chunk.start : chunk.stop]) / len(chunk), chunk.start),
    )
    return _with_head_and_tail(division.always, ranked[: division.chosen])


def random_chunks(tokens: int, keep: float, rule: Selection, seed: str) -> list[int]:
    """As `best_chunks`, with as many chunks, chosen by a seeded coin."""
    division = divide(tokens, keep, rule)
    return _with_head_and_tail(division.always, random.Random(seed).sample(division.chunks, division.chosen))


def outer_chunks(tokens: int, keep: float, rule: Selection) -> list[int]:
    """As `best_chunks`, with as many chunks, those nearest to the ends: the last, the first, the last but one, ..."""
    division = divide(tokens, keep, rule)
    first, last = division.chosen // 2, len(division.chunks) - (division.chosen - division.chosen // 2)
    return _with_head_and_tail(division.always, (*division.chunks[:first], *division.chunks[last:]))


def spaced_chunks(tokens: int, keep: float, rule: Selection) -> list[int]:
    """As `best_chunks`, with as many chunks, evenly spaced: each stands in the middle of its share of the prompt."""
    division = divide(tokens, keep, rule)
    count, chosen = len(division.chunks), division.chosen
    return _with_head_and_tail(
        division.always, [division.chunks[(2 * i + 1) * count // (2 * chosen)] for i in range(chosen)]
    )


def with_window_tail(kept: Sequence[int], tokens: int, window: int | None, rule: Selection) -> list[int]:
    """The kept positions, and the last window of the prompt where the rule wants a target to read it.

    Args:
        window: the largest sliding window of the target's layers; None when it has none.
    """
    wanted = {"no": False, "long-prompts": tokens > (window or 0), "always": True}[rule.window_tail]
    if window is None or not wanted:
        return list(kept)
    return sorted({*kept, *range(max(0, tokens - window), tokens)})


def budget(chunks: int, keep: float) -> int:
    """Chunks to keep: ceil(chunks * keep), unharmed by the last bit of a float product; one at least, of any."""
    return min(chunks, max(1, math.ceil(chunks * keep - 1e-9)))


def _chunks(start: int, stop: int, size: int) -> tuple[range, ...]:
    return tuple(range(first, min(first + size, stop)) for first in range(start, stop, size))


def _with_head_and_tail(*parts: Iterable[range]) -> list[int]:
    return sorted({position for part in parts for chunk in part for position in chunk})
