"""One trial at a time on this machine, whoever started it."""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specprefill_repro.errors import Exit, ReproError


def lease_path() -> Path:
    """The lock file; one for all checkouts of this user."""
    return Path(tempfile.gettempdir()) / f"specprefill-repro-{os.getuid()}.lock"


@contextmanager
def machine_lease(path: Path | None = None) -> Iterator[int]:
    """Hold the machine; wait for whoever holds it. Yields a file descriptor.

    A child that inherits the descriptor holds the lease too: should it outlive us, nobody measures beside it.

    Raises:
        ReproError: the lock file may not be opened.
    """
    path = path or lease_path()
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ReproError(
            f"Could not open the lock file {path}: {error.strerror}.",
            "It keeps two measurements from running at once, and belongs to another user or is not a plain file.",
            f"Check it with: ls -l '{path}'",
            Exit.ENVIRONMENT,
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)
