"""Sliding windows that count original positions.

mlx_lm's cache for such a layer counts its entries: after a sparse prefill a window of 512 entries would reach back over
thousands of dropped tokens. The cache here knows the position of each entry; a query attends exactly the kept tokens
that lie within the window by original position, while the prompt is read and while tokens are decoded.
"""

from bisect import bisect_right
from dataclasses import dataclass, field

import mlx.core as mx


@dataclass
class Positions:
    """Original positions of the tokens of the next forward pass, set before each one."""

    values: list[int] = field(default_factory=list)
    """Ascending."""
    current: mx.array | None = None
    """The same, int32, shape (tokens of the pass,)."""

    def set(self, values: list[int]) -> None:
        self.values = values
        self.current = mx.array(values, dtype=mx.int32)

    def of(self, tokens: int) -> mx.array:
        """The positions of a pass of so many tokens.

        Raises:
            RuntimeError: they were not set for this pass.
        """
        if self.current is None or len(self.values) != tokens:
            raise RuntimeError(f"no positions were set for this pass of {tokens} tokens")
        return self.current


class WindowCache:
    """Keys and values of one sliding-window layer; made for one sequence, whose positions it shares.

    It is called as mlx_lm calls its own caches. Entries that no later query can see are dropped, so its size is
    bounded by the window and the step of the prefill, as with mlx_lm's.
    """

    block = 256
    """Entries that the buffers grow by."""

    def __init__(self, window: int, positions: Positions) -> None:
        self.window = window
        self.offset = 0
        """Tokens read so far, dropped ones included."""
        self.keys: mx.array | None = None
        self.values: mx.array | None = None
        self._positions = positions
        self._held: list[int] = []

    @property
    def state(self) -> tuple[mx.array | None, mx.array | None]:
        return self.keys, self.values

    def make_mask(
        self, tokens: int, window_size: int | None = None, return_array: bool = False
    ) -> mx.array | str | None:
        """Of the next pass: which of the entries that `update_and_fetch` will return each of its tokens may see.

        Returns:
            What the attention kernel takes: (tokens, entries), bool; or None or "causal" where nothing is hidden.
        """
        if window_size is not None and window_size != self.window:
            raise RuntimeError(f"the model asked for a window of {window_size}, its cache was made for {self.window}")
        queries = self._positions.of(tokens)
        entries = self._held[self._stale() :] + self._positions.values
        if not return_array and self._positions.values[-1] - entries[0] < self.window:
            return None if tokens == 1 else "causal"
        distance = queries[:, None] - mx.array(entries, dtype=mx.int32)[None]
        return (distance >= 0) & (distance < self.window)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Add a pass, shape (1, key heads, tokens, head size); return all entries that are held."""
        tokens = keys.shape[2]
        self._positions.of(tokens)
        stale, count = self._stale(), len(self._held)
        self.keys = self._with_room(self.keys, keys, stale, count)
        self.values = self._with_room(self.values, values, stale, count)
        del self._held[:stale]
        self._held.extend(self._positions.values)
        start, stop = count - stale, len(self._held)
        self.keys[..., start:stop, :] = keys
        self.values[..., start:stop, :] = values
        self.offset += tokens
        return self.keys[..., :stop, :], self.values[..., :stop, :]

    def _stale(self) -> int:
        """How many entries to drop before the next pass: those too far back even for its first token.

        While tokens are decoded they are hidden by the mask, and dropped only now and then: dropping copies the rest.
        """
        stale = bisect_right(self._held, self._positions.values[0] - self.window)
        return stale if len(self._positions.values) > 1 or stale >= self.block else 0

    def _with_room(self, buffer: mx.array | None, new: mx.array, stale: int, count: int) -> mx.array:
        needed = count - stale + new.shape[2]
        if buffer is not None and stale == 0 and needed <= buffer.shape[2]:
            return buffer
        room = -(-needed // self.block) * self.block - (count - stale)
        empty = mx.zeros((*new.shape[:2], room, new.shape[3]), new.dtype)
        return empty if buffer is None else mx.concatenate([buffer[..., stale:count, :], empty], axis=2)
