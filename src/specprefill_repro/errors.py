"""Errors that a user can act on: what happened, why, and the next command. No traceback is shown for them."""

import re
from enum import IntEnum

from specprefill_repro.plain_text import without_controls


class Exit(IntEnum):
    """Exit codes of `specprefill-repro`; the README lists them."""

    OK = 0
    UNEXPECTED = 1
    BAD_INPUT = 2
    ENVIRONMENT = 3
    VERIFICATION = 4
    TRIAL = 5


class ReproError(Exception):
    """An error in three parts.

    `what` happened, with the values; `why` it most likely did; the `next` command or edit to try.
    """

    def __init__(self, what: str, why: str, next: str, exit_code: Exit = Exit.BAD_INPUT) -> None:
        super().__init__(what, why, next, exit_code)
        # Each may quote a file or a server that is not ours.
        self.what, self.why, self.next = without_controls(what), without_controls(why), without_controls(next)
        self.exit_code = exit_code

    def __str__(self) -> str:
        return f"{self.what}\n  why:  {self.why}\n  next: {self.next}"


def without_password(text: str) -> str:
    """A text as it may be shown: without the user name, password or token of any address in it."""
    return re.sub(r"(\w+://)[^/\s'\"]*@", r"\1", text)
