"""A site in a folder of this machine, or of a disk that a web server reads."""

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from specprefill_repro.bundles.archive import MAX_ARCHIVE_BYTES
from specprefill_repro.bundles.contents import Files
from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.files import read_limited, sync_folder, write_bytes
from specprefill_repro.publish.site import INDEX, MAX_INDEX_BYTES, REPORTS, Site, read_site

MOST_SHOWN = 200
"""Characters of a path in a message."""
OF_THE_MACHINE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENOLCK, errno.EIO)


class Folder:
    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    @property
    def place(self) -> str:
        text = str(self.path)
        return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."

    def read(self) -> Site:
        """The site that is there.

        Raises:
            ReproError: it is not a folder, or something else is published there.
        """
        try:
            if self.path.exists() and not self.path.is_dir():
                raise ReproError(
                    f"{self.place} is not a folder.", "A file has that name.", "Give a folder, or a path that is free."
                )
            above = next(folder for folder in (self.path, *self.path.parents) if folder.exists())
            if not above.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            names = {entry.name for entry in self.path.iterdir()} if self.path.exists() else set()
            if INDEX not in names and any(name != REPORTS and not name.startswith(".") for name in names):
                raise ReproError(
                    f"{self.place} holds other files.",
                    "A site gets a folder of its own, so that nothing of yours is published by mistake.",
                    "Give an empty folder, or a path that is free.",
                )
            files = [self.path / INDEX, *self.path.glob(f"{REPORTS}/*/*")]
            paths = frozenset(file.relative_to(self.path).as_posix() for file in files if file.is_file())
        except OSError as error:
            raise self._unusable(error) from error
        content = self._fetch(INDEX, MAX_INDEX_BYTES) if INDEX in names else None
        return read_site(content, paths, self.place, self._fetch)

    def _fetch(self, path: str, limit: int = MAX_ARCHIVE_BYTES) -> bytes:
        return read_limited(self.path / path, limit)

    @contextmanager
    def held(self, tell: Callable[[str], None]) -> Iterator[None]:
        """Keep the site for one publication at a time; the folder is made, and is its own lock.

        Raises:
            ReproError: it can't be made or locked.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise self._unusable(error) from error
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                tell(f"Waiting for another publication to {self.place} to end ...")
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            except OSError as error:
                raise self._unusable(error) from error
            yield
        finally:
            os.close(descriptor)

    def _unusable(self, error: OSError) -> ReproError:
        return ReproError(
            f"There can be no site in {self.place}: {error.strerror}.",
            "The path is too long, goes through a file or a folder of others, or lies where no folder can be made or "
            "locked. What was there before is unchanged.",
            "Give another folder, on a disk of this machine, that you may write to.",
            Exit.ENVIRONMENT if error.errno in OF_THE_MACHINE else Exit.BAD_INPUT,
        )

    def write(self, files: Files, message: str) -> str:
        """Add the report's folder, whole, then replace the index; returns the address of the index.

        Raises:
            ReproError: the disk is full or the folder may not be written; the site is then as it was before.
        """
        (report,) = {name.rpartition("/")[0] for name in files if name != INDEX}
        try:
            self._add(self.path / report, {name: content for name, content in files.items() if name != INDEX})
            write_bytes(self.path / INDEX, files[INDEX])
        except OSError as error:
            raise self._unusable(error) from error
        return (self.path / INDEX).as_uri()

    def _add(self, target: Path, files: Files) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(dir=target.parent, prefix=".new-"))
        try:
            for name, content in files.items():
                write_bytes(draft / name.rpartition("/")[2], content)
            draft.chmod(0o755)
            # Of a run that ended before its index was written: no link leads to it yet.
            shutil.rmtree(target, ignore_errors=True)
            draft.replace(target)
            sync_folder(target.parent)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
