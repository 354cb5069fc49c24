"""One trial at a time on this machine, whoever started it."""

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.trials.progress import report_warning


def lease_path() -> Path:
    """The lock file; one for all checkouts of this user."""
    return Path(tempfile.gettempdir()) / f"specprefill-repro-{os.getuid()}.lock"


@contextmanager
def machine_lease(path: Path | None = None, tell: Callable[[str], None] = report_warning) -> Iterator[int]:
    """Hold the machine; wait for whoever holds it. Yields a file descriptor.

    A child that inherits the descriptor holds the lease too: should it outlive us, nobody measures beside it.

    Args:
        tell: gets a line when there is somebody to wait for.

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
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
            tell(f"Waiting for another measurement on this machine (process {holder or 'unknown'}) to end ...")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)
