"""How the model stage tells a terminal where it is."""

from typing import Protocol


class Progress(Protocol):
    def __call__(self, step: str, done: int, total: int) -> None:
        """`step` in words; bytes done and bytes in all (0 when unknown)."""


def silent(step: str, done: int, total: int) -> None:
    """Tell nobody."""
