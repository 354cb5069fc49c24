"""How the model stage tells a terminal where it is."""

import time
from collections.abc import Callable
from typing import Protocol


class Progress(Protocol):
    def __call__(self, step: str, done: int, total: int) -> None:
        """`step` in words; bytes done and bytes in all (0 when unknown)."""


def silent(step: str, done: int, total: int) -> None:
    """Tell nobody."""


def each_second(say: Callable[[str], object], clock: Callable[[], float] = time.monotonic) -> Progress:
    """Say at most once a second, in one line, what is done and how far it is."""
    last = float("-inf")

    def progress(step: str, done: int, total: int) -> None:
        nonlocal last
        now = clock()
        if now - last >= 1:
            last = now
            say(f"{step}, {done / 1e9:.1f} of {total / 1e9:.1f} GB" if total else step)

    return progress
