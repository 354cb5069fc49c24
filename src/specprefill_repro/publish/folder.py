"""A site in a folder of this machine, or of a disk that a web server reads."""

import shutil
import tempfile
from pathlib import Path

from specprefill_repro.bundles.contents import Files
from specprefill_repro.errors import ReproError
from specprefill_repro.files import explain_write_error, read_limited, sync_folder, write_bytes
from specprefill_repro.publish.site import INDEX, MAX_INDEX_BYTES, Site, read_site


class Folder:
    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    @property
    def place(self) -> str:
        return str(self.path)

    def read(self) -> Site:
        """The site that is there.

        Raises:
            ReproError: it is not a folder, or something else is published there.
        """
        if self.path.exists() and not self.path.is_dir():
            raise ReproError(
                f"{self.path} is not a folder.", "A file has that name.", "Give a folder, or a path that is free."
            )
        paths = frozenset(str(file.relative_to(self.path)) for file in self.path.rglob("*") if file.is_file())
        index = self.path / INDEX
        content = read_limited(index, MAX_INDEX_BYTES) if index.is_file() else None
        if content is None and any("/" not in name and not name.startswith(".") for name in paths):
            raise ReproError(
                f"{self.path} holds other files.",
                "A site gets a folder of its own, so that nothing of yours is published by mistake.",
                "Give an empty folder, or a path that is free.",
            )
        return read_site(content, paths, self.place)

    def write(self, files: Files, message: str) -> str:
        """Add the report's folder, whole, then replace the index; returns the address of the index.

        Raises:
            ReproError: the disk is full or the folder may not be written; the site is then as it was before.
        """
        (report,) = {name.rpartition("/")[0] for name in files if name != INDEX}
        target = self.path / report
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            draft = Path(tempfile.mkdtemp(dir=target.parent, prefix=".new-"))
        except OSError as error:
            explain_write_error(error, target)
        try:
            for name, content in files.items():
                if name != INDEX:
                    write_bytes(draft / name.rpartition("/")[2], content)
            draft.chmod(0o755)
            # Of a run that ended before its index was written: no link leads to it yet.
            shutil.rmtree(target, ignore_errors=True)
            draft.replace(target)
            sync_folder(target.parent)
        except OSError as error:
            explain_write_error(error, target)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        write_bytes(self.path / INDEX, files[INDEX])
        return (self.path / INDEX).as_uri()
