"""Hash files once, and again only when their time stamps changed; compare the result with what it should be."""

from collections.abc import Iterable
from pathlib import Path

from pydantic import Field, ValidationError

from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.files import sha256_file, write_json
from specprefill_repro.models.progress import Progress, silent
from specprefill_repro.models.schema import LockedFile, RelativePath, Sha256
from specprefill_repro.schema import Frozen


class _Stamp(Frozen):
    """A hash with the state of the file at that time: inode, size in bytes, modification time in ns."""

    inode: int
    size: int
    modified_ns: int
    sha256: Sha256


class _Stamps(Frozen):
    files: dict[RelativePath, _Stamp] = Field(default_factory=dict)


def hash_files(
    folder: Path, names: Iterable[str], stamps: Path | None = None, progress: Progress = silent
) -> tuple[LockedFile, ...]:
    """Size and SHA-256 of files of a folder, sorted by name.

    With `stamps`, a small file beside the models, a file whose inode, size and modification time are as they were
    when it was last hashed is not read again.

    Raises:
        ReproError: a file is missing.
    """
    old = _read_stamps(stamps)
    new: dict[str, _Stamp] = {}
    names = sorted(names)
    total = sum((folder / name).stat().st_size for name in names if (folder / name).is_file())
    done = 0

    def count(block: int) -> None:
        nonlocal done
        done += block
        progress("hash files", done, total)

    for name in names:
        path = folder / name
        if not path.is_file():
            raise ReproError(
                f"{path} is missing.",
                "It was deleted or moved after it had been put there.",
                f"rm -r '{folder}'   and run the same command again; it is then made anew.",
                Exit.VERIFICATION,
            )
        stat = path.stat()
        known = old.get(name)
        if known and (known.inode, known.size, known.modified_ns) == (stat.st_ino, stat.st_size, stat.st_mtime_ns):
            new[name] = known
        else:
            try:
                sha256 = sha256_file(path, count)
            except OSError as error:
                raise ReproError(
                    f"Could not read {path}: {error.strerror}.",
                    "The file belongs to another user, or the disk has an error.",
                    f"Check it with: ls -l '{path}'",
                    Exit.ENVIRONMENT,
                ) from error
            new[name] = _Stamp(inode=stat.st_ino, size=stat.st_size, modified_ns=stat.st_mtime_ns, sha256=sha256)
    if stamps and new != old:
        write_json(stamps, _Stamps(files=new))
    return tuple(LockedFile(path=name, size=stamp.size, sha256=stamp.sha256) for name, stamp in new.items())


def _read_stamps(stamps: Path | None) -> dict[str, _Stamp]:
    """Stamps only save time: when they can't be read, everything is hashed again."""
    if stamps is None:
        return {}
    try:
        return _Stamps.model_validate_json(stamps.read_bytes()).files
    except (OSError, ValidationError):
        return {}


def require_same(
    what: str, expected: Iterable[LockedFile], found: Iterable[LockedFile], why: str, next_step: str
) -> None:
    """Stop at the first file that is not what it should be, with both sizes or hashes.

    Raises:
        ReproError: a file differs, is missing, or was not expected (exit code VERIFICATION).
    """
    wanted = {file.path: file for file in expected}
    seen = {file.path: file for file in found}
    for path in sorted(wanted.keys() | seen.keys()):
        if path not in seen:
            problem = f"{path} is missing"
        elif path not in wanted:
            problem = f"{path} does not belong there"
        elif wanted[path] != seen[path]:
            problem = (
                f"{path} differs\n  expected {wanted[path].sha256}  ({wanted[path].size:,} bytes)"
                f"\n  found    {seen[path].sha256}  ({seen[path].size:,} bytes)"
            )
        else:
            continue
        raise ReproError(f"{what}: {problem}", why, next_step, Exit.VERIFICATION)
