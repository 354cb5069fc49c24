"""A judge that needs no formula of any architecture: the untouched model reads one token at a time.

A model asks its cache how many tokens came before, and rotates by that number. The cache here answers with the
position of the token about to be read, so the model's own code, with nothing replaced in it, computes a token at that
position. With one token a pass there is no mask either: a sliding window is what the cache still holds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from specprefill_repro.prefill.architectures import structure
from specprefill_repro.prefill.chunked import new_cache


@dataclass
class PositionCache:
    """Keys and values of one layer; `offset` is set to the next token's position before each pass."""

    window: int | None
    offset: int = 0
    keys: mx.array | None = None
    values: mx.array | None = None
    held: list[int] = field(default_factory=list)

    @property
    def state(self) -> tuple[mx.array | None, mx.array | None]:
        return self.keys, self.values

    def make_mask(self, tokens: int, window_size: int | None = None, return_array: bool = False) -> None:
        if tokens != 1:
            raise RuntimeError("one token at a time")

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        self.held.append(self.offset)
        self.keys = keys if self.keys is None else mx.concatenate([self.keys, keys], axis=2)
        self.values = values if self.values is None else mx.concatenate([self.values, values], axis=2)
        if self.window is not None:
            visible = sum(position > self.offset - self.window for position in self.held)
            self.held = self.held[-visible:]
            self.keys, self.values = self.keys[:, :, -visible:], self.values[:, :, -visible:]
        return self.keys, self.values


@dataclass(frozen=True)
class ReadOneByOne:
    logits: Any
    """(tokens asked for, vocabulary), float32 NumPy."""
    keys: Any
    """Of the first attention layer, as it holds them: (key heads, tokens, head size), float32 NumPy."""
    held: list[int]
    """Positions of those keys."""


def read_one_by_one(model: nn.Module, ids: Sequence[int], positions: Sequence[int], last: int) -> ReadOneByOne:
    """Read tokens at ascending positions, and give the logits of the last so many of them."""
    caches: list[Any] = [_with_position(entry) for entry in new_cache(structure(model).text)]
    attending = [entry for entry in caches if isinstance(entry, PositionCache)]
    logits = []
    for index, (token, position) in enumerate(zip(ids, positions, strict=True)):
        for entry in attending:
            entry.offset = position
        found = model(mx.array([[token]]), cache=caches)[0, -1]
        mx.eval(found, [entry.state for entry in caches])
        if index >= len(ids) - last:
            logits.append(np.array(found.astype(mx.float32)))
    first = attending[0]
    if first.keys is None:
        raise ValueError("no tokens")
    return ReadOneByOne(np.stack(logits), np.array(first.keys[0].astype(mx.float32)), first.held)


def _with_position(entry: Any) -> Any:
    """Ours in place of mlx_lm's; the window is what mlx_lm itself made its cache for."""
    if not hasattr(entry, "keys"):
        return entry
    return PositionCache(window=getattr(entry, "max_size", None))
