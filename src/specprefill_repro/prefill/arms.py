"""What every arm gets, and what it gives back. Arms: dense, speculative, and the controls."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from specprefill_repro.study.plan import Arm


@dataclass(frozen=True)
class Models:
    target: nn.Module
    draft: nn.Module | None
    draft_end_tokens: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Request:
    """One prefill: the token ids of the prompt, and how to read them."""

    ids: tuple[int, ...]
    arm: Arm
    step: int
    """Tokens a forward pass."""
    seed: str
    """For arms that choose by a coin."""


@dataclass
class Prefilled:
    """A prefilled target, valid until the arm's context ends."""

    logits: mx.array
    """Of the first generated token, (vocabulary,)."""
    first_token: int
    cache: list[Any]
    cache_tokens_before: int
    """Entries that the target's KV cache held when prefill began."""
    kept: list[int]
    """Positions that the target read."""
    marks: list[tuple[str, float]]
    """(phase, clock when it ended), in order."""
    decode: Callable[[int], mx.array]
    """Reads one generated token and gives the logits of the next; call it with each token in turn."""
    draft_cache_tokens_before: int = 0
    """Entries that the draft's held; 0 for arms that read none."""
    tokens_scored: int = 0
    look_ahead_tokens: list[int] = field(default_factory=list)
    selection_seed: str | None = None
    rotary_seen: list[list[mx.array]] = field(default_factory=list)
    """For each wrapped attention module, the positions that it was given during prefill, call by call."""
