"""Which prompt tokens the target reads. Plain Python: no array library, so that anybody can check it."""

import math
import random
from collections.abc import Sequence

from specprefill_repro.study.schema import Selection


def best_chunks(scores: Sequence[float], keep: float, rule: Selection) -> list[int]:
    """Positions of head, tail, and the chunks of highest mean score in between.

    The budget counts chunks between head and tail: ceil(chunks * keep). Ties go to the earlier chunk.

    Returns:
        Ascending positions; the last prompt token is always among them.
    """
    chunks = middle_chunks(len(scores), rule)
    ranked = sorted(chunks, key=lambda chunk: (-math.fsum(scores[chunk.start : chunk.stop]) / len(chunk), chunk.start))
    return _with_head_and_tail(ranked[: budget(len(chunks), keep)], len(scores), rule)


def random_chunks(tokens: int, keep: float, rule: Selection, seed: str) -> list[int]:
    """As `best_chunks`, with as many chunks, chosen by a seeded coin."""
    chunks = middle_chunks(tokens, rule)
    chosen = random.Random(seed).sample(chunks, budget(len(chunks), keep))
    return _with_head_and_tail(chosen, tokens, rule)


def budget(chunks: int, keep: float) -> int:
    """Chunks to keep: ceil(chunks * keep), unharmed by the last bit of a float product."""
    return min(chunks, math.ceil(chunks * keep - 1e-9))


def middle_chunks(tokens: int, rule: Selection) -> list[range]:
    """The chunks between head and tail; the last may be shorter."""
    start, stop = min(rule.head, tokens), max(tokens - rule.tail, min(rule.head, tokens))
    return [range(first, min(first + rule.chunk, stop)) for first in range(start, stop, rule.chunk)]


def _with_head_and_tail(chunks: Sequence[range], tokens: int, rule: Selection) -> list[int]:
    always = [*range(min(rule.head, tokens)), *range(max(0, tokens - rule.tail), tokens)]
    return sorted({*always, *(position for chunk in chunks for position in chunk)})
