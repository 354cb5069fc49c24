"""A bundle as one zip file: written the same for the same files, read as if an enemy had made it."""

import io
import stat
import unicodedata
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.files import read_limited

MAX_ARCHIVE_BYTES = 100_000_000
MAX_CONTENT_BYTES = 500_000_000
MAX_FILES = 200
MAX_PATH = 200
EARLIEST = (1980, 1, 1, 0, 0, 0)


def write_archive(files: dict[str, bytes]) -> bytes:
    """The zip file that holds `files`: sorted, no times, no owners."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in sorted(files):
            entry = zipfile.ZipInfo(path, EARLIEST)
            entry.create_system = 3
            entry.external_attr = (stat.S_IFREG | 0o644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, files[path])
    return content.getvalue()


def read_archive(path: Path) -> dict[str, bytes]:
    """The files of a zip file, in memory; nothing of it is written anywhere.

    Raises:
        ReproError: too large, or as `unpack`.
    """
    return unpack(read_limited(path, MAX_ARCHIVE_BYTES), path)


def unpack(content: bytes, path: Path | str) -> dict[str, bytes]:
    """The files of the zip file `content`, which is called `path` in errors.

    Raises:
        ReproError: too many files, no zip file, or an entry that is not a plain file at a plain path (exit code
            VERIFICATION).
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            entries = archive.infolist()
            if len(entries) > MAX_FILES:
                raise _refused(path, f"it holds {len(entries):,} files; a bundle has at most {MAX_FILES}")
            _check_entries(path, entries)
            files: dict[str, bytes] = {}
            room = MAX_CONTENT_BYTES
            for entry in entries:
                with archive.open(entry) as file:
                    # What an entry says of its size is not believed: reading stops where the room ends.
                    unpacked = file.read(room + 1)
                if len(unpacked) > room:
                    raise _refused(path, f"unpacked it takes more than {MAX_CONTENT_BYTES:,} bytes")
                room -= len(unpacked)
                files[entry.filename] = unpacked
            return files
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, ValueError, OSError) as error:
        raise _refused(path, f"it can't be unpacked ({error})") from error


def _check_entries(path: Path | str, entries: list[zipfile.ZipInfo]) -> None:
    seen: set[str] = set()
    for entry in entries:
        # As it stands in the file: zipfile cuts `filename` at a NUL.
        name = entry.orig_filename
        problem = problem_of_path(name)
        kind = stat.S_IFMT(entry.external_attr >> 16)
        folded = unicodedata.normalize("NFC", name).casefold()
        if problem is None and kind not in (0, stat.S_IFREG):
            problem = "it is a link, a device or a folder, not a plain file"
        if problem is None and entry.flag_bits & 0x1:
            problem = "it is encrypted"
        if problem is None and entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            problem = "it is compressed in a way that bundles don't use"
        if problem is None and folded in seen:
            problem = "its name stands twice"
        if problem is not None:
            raise _refused(path, f"the entry {name[:100]!r}: {problem}")
        seen.add(folded)
    if sum(entry.file_size for entry in entries) > MAX_CONTENT_BYTES:
        raise _refused(path, f"unpacked it takes more than {MAX_CONTENT_BYTES:,} bytes")
    folders = {parent for name in seen for parent in map(str, PurePosixPath(name).parents)}
    if folders & seen:
        raise _refused(path, "one name is a file and a folder")


def problem_of_path(name: str) -> str | None:
    """What is wrong with a path inside an archive; None when it is a plain relative one."""
    if not name or len(name) > MAX_PATH:
        return f"its path is empty or longer than {MAX_PATH} characters"
    if any(unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") for char in name):
        return "its path holds a control character"
    if "\\" in name or ":" in name or name.startswith(("/", "~")):
        return "its path is absolute, or one of Windows"
    if any(part in ("", ".", "..") for part in name.split("/")):
        return "its path leads out of the bundle, or is a folder"
    return None


def _refused(path: Path | str, reason: str) -> ReproError:
    return ReproError(
        f"{path} is refused: {reason}.",
        "It is damaged, is no bundle of this package, or was made to do harm. Nothing of it was unpacked.",
        "Fetch bundle.zip again from where the report was published.",
        Exit.VERIFICATION,
    )
