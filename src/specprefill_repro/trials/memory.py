"""Memory that runs out in a trial: how MLX says so, and what a user can do."""

import re

from specprefill_repro.errors import Exit
from specprefill_repro.trials.job import Failure

# MLX raises a plain RuntimeError: https://github.com/ml-explore/mlx, mlx/allocator.cpp and mlx/backend/metal. Metal's
# own words come from the command buffer, std::bad_alloc from C++.
WORDS = re.compile(
    r"\[metal::malloc\]|\[malloc(_or_wait)?\]|unable to allocate|attempting to allocate|bad_alloc"
    r"|insufficient memory|ErrorOutOfMemory|out of memory",
    re.IGNORECASE,
)
WHY = "Target, draft and KV cache together are larger than what this machine had free."
NEXT = "Close other programs, or choose a smaller pair or shorter prompts in the study."


def says_out_of_memory(text: str) -> bool:
    """Whether a library's message says that memory ran out."""
    return WORDS.search(text) is not None


def out_of_memory(error: BaseException) -> Failure:
    """What a worker answers when its memory ran out."""
    said = " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__
    return Failure(what=f"A trial ran out of memory: {said}.", why=WHY, next=NEXT, exit_code=int(Exit.TRIAL))
