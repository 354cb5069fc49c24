"""One trial at a time on this machine, whoever started it."""

import errno
import fcntl
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.trials.progress import report_warning

SHARED = (Path("/tmp"), Path("/var/tmp"))
"""Folders that all users of a machine share, whatever their TMPDIR says."""
NAME = "specprefill-repro.lock"
TEST_LEASE = "SPECPREFILL_TEST_LEASE"
"""Environment variable: another lock file, for tests, which assert no time and need not wait for a study."""


def lease_path() -> Path:
    """The lock file; one for all checkouts and users of this machine, where they share a folder that can be written."""
    if named := os.environ.get(TEST_LEASE):
        return Path(named)
    folder = next((each for each in SHARED if os.access(each, os.W_OK)), Path(tempfile.gettempdir()))
    return folder / NAME


def _open(path: Path) -> int:
    """Open the lock file, or make it so that every user can hold it.

    It is opened without O_CREAT first: Linux refuses that for somebody else's file in a folder that all may write.
    """
    flags = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags | os.O_RDWR)
    except FileNotFoundError:
        try:
            descriptor = os.open(path, flags | os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
            os.fchmod(descriptor, 0o666)
        except FileExistsError:
            descriptor = os.open(path, flags | os.O_RDWR)
    found = os.fstat(descriptor)
    # A second name could be that of a file of the user's, which must not be written.
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a plain file of its own")
    return descriptor


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
    if path.name == NAME and path.parent not in SHARED:
        tell(f"No folder that all users share can be written; only who uses {path.parent} waits for this measurement.")
    try:
        descriptor = _open(path)
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
