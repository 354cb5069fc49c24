"""Is there room for a model, on disk and in memory? Asked before its first byte is written."""

import shutil
from pathlib import Path

import psutil

from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.this_command import this_command


def require_room(folder: Path, needed: int, name: str) -> None:
    """Stop when the disk of `folder` cannot hold `needed` more bytes and 5 % beyond.

    Raises:
        ReproError: with both numbers.
    """
    free = shutil.disk_usage(folder).free
    needed = needed + needed // 20
    if needed > free:
        raise ReproError(
            f"{name} needs about {_size(needed)} on the disk of {folder.parent}, and {_size(free)} are free.",
            "Nothing was written; what was there is unchanged.",
            f"Free some space (df -h '{folder.parent}'), then run the same command again.",
            Exit.ENVIRONMENT,
        )


def require_memory(name: str, weight_bytes: int) -> None:
    """Stop when this machine's memory cannot hold the weights of a model.

    Raises:
        ReproError: they are more than it has, or more than is free now; with the numbers.
    """
    memory = psutil.virtual_memory()
    if weight_bytes <= memory.available:
        return
    numbers = f"{_size(memory.total)} of memory, and {_size(memory.available)} are free"
    larger = weight_bytes > memory.total
    raise ReproError(
        f"{name} has {_size(weight_bytes)} of weights; this machine has {numbers}.",
        "Nothing was downloaded: the model could not be run here."
        if larger
        else "Nothing was downloaded: other programs hold the memory that the model would need.",
        f"Choose a study with smaller models: {this_command()} plan STUDY says what each takes."
        if larger
        else "Close other programs, then run the same command again.",
        Exit.ENVIRONMENT,
    )


def _size(number: int) -> str:
    return f"{number / 1e9:,.1f} GB" if number >= 1e9 else f"{number / 1e6:,.0f} MB"
