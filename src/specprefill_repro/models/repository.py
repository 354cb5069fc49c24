"""A repository of the Hub as the source of a model: locked without its weights, then fetched file by file as locked.

Only what a model needs is taken: configuration, tokenizer, chat template and one set of safetensors; never code,
pickles, or the same weights in another format.
"""

import hashlib
import shutil
from pathlib import Path, PurePosixPath

from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.files import MAX_CONFIG_BYTES, sha256_file
from specprefill_repro.models import hub
from specprefill_repro.models.download import Wanted, download, missing_bytes
from specprefill_repro.models.hashes import hash_files
from specprefill_repro.models.hub import Listing, Patience, RepositoryFile
from specprefill_repro.models.local import MAX_INDEX_BYTES, REFUSED, TEXT_FILES, WEIGHTS_INDEX, place, shards
from specprefill_repro.models.manifest import MAX_TOKENIZER_BYTES, read_json_object, stamps_file
from specprefill_repro.models.progress import Progress
from specprefill_repro.models.published import check_published
from specprefill_repro.models.room import require_memory, require_room
from specprefill_repro.models.schema import HubSource, LockedFile, LockedModel, ModelDefinition
from specprefill_repro.project import Project

MAX_TEXT_BYTES = 100_000_000
SIZE_LIMITS = {"config.json": MAX_CONFIG_BYTES, "tokenizer.json": MAX_TOKENIZER_BYTES, WEIGHTS_INDEX: MAX_INDEX_BYTES}
"""Largest size that each file may have, in bytes; others MAX_TEXT_BYTES."""


def lock_repository(
    project: Project, name: str, definition: ModelDefinition, source: HubSource, patience: Patience, progress: Progress
) -> LockedModel:
    """Find out revision, files, sizes and SHA-256 of a repository, and that it is the model that the definition tells.

    The Hub knows the hashes of large files; the small ones are downloaded and hashed, and kept for the fetch. Weights
    are downloaded only where a mirror doesn't tell their hash.

    Raises:
        ReproError: as `list_repository` and `download`; no safetensors, or other ones than the index names; a file
            that is far too large; a model that differs from what is published (exit code VERIFICATION).
    """
    progress(f"look up {source.repository}", 0, 0)
    listing = hub.list_repository(source, patience)
    folder = _download_folder(project, name, listing.source)
    files = {file.path: file for file in listing.files}
    texts = [files[path] for path in TEXT_FILES if path in files]
    for file in texts:
        limit = SIZE_LIMITS.get(file.path, MAX_TEXT_BYTES)
        if file.size > limit:
            raise _refused(
                listing,
                f"{file.path} has {file.size:,} bytes, more than the {limit:,} that such a file may have",
                "A file of this kind is never that large; it is not what its name says.",
            )
    _get(project, listing.source, texts, folder, patience, progress, name)
    for file in texts:
        if file.git_sha1 is not None:
            _require_git_sha1(listing, file, folder / file.path)
    weights = _weights(listing, folder)
    untold = [file for file in weights if file.sha256 is None]
    _get(project, listing.source, untold, folder, patience, progress, name)
    config = read_json_object(folder / "config.json", MAX_CONFIG_BYTES)
    check_published(name, definition.published, config, sum(file.size for file in weights))
    locked = [
        LockedFile(path=file.path, size=file.size, sha256=file.sha256 or sha256_file(folder / file.path))
        for file in (*texts, *weights)
    ]
    return LockedModel(source=listing.source, files=tuple(sorted(locked, key=lambda file: file.path)))


def fetch_repository(
    project: Project, name: str, entry: LockedModel, patience: Patience, progress: Progress
) -> tuple[tuple[LockedFile, ...], Path]:
    """Put the locked files of a repository into a folder of their own and return their hashes and the folder.

    What is on this machine already is taken from there: an earlier download of these files that was interrupted, the
    model as it is in place now, the Hub's own cache. The rest is downloaded once there is room for it.

    Raises:
        ReproError: as `download`; offline and something is missing; too little disk or memory, with the numbers; a
            file that is not what the lock says (both hashes, exit code VERIFICATION), which is then deleted.
    """
    source = entry.source
    assert isinstance(source, HubSource)
    folder = _download_folder(project, name, source)
    _clear_other_downloads(folder, {file.path for file in entry.files})
    _take_what_is_here(project, name, source, entry, folder)
    files = [RepositoryFile(file.path, file.size, file.sha256, None) for file in entry.files]
    if missing_bytes(_wanted(files, folder)) and not hub.offline():
        require_memory(name, sum(file.size for file in entry.files if file.path.endswith(".safetensors")))
    _get(project, source, files, folder, patience, progress, name)
    found = hash_files(folder, [file.path for file in files], stamps_file(project, name), progress)
    for locked, file in zip(sorted(entry.files, key=lambda file: file.path), found, strict=True):
        if locked != file:
            (folder / file.path).unlink()  # else the next run would take it again
    return found, folder


def forget_downloads(project: Project, name: str) -> None:
    """Clear away what is left of a model's download once the model is in place."""
    shutil.rmtree(project.model_downloads(name), ignore_errors=True)


def _get(
    project: Project,
    source: HubSource,
    files: list[RepositoryFile],
    folder: Path,
    patience: Patience,
    progress: Progress,
    name: str,
) -> None:
    """Download files into a folder if there is room; nothing is asked of anybody when all are there."""
    wanted = _wanted(files, folder)
    if all(file.target.exists() for file in wanted):
        return
    if hub.offline():
        raise hub.offline_error(source)
    total = sum(file.size for file in wanted)
    missing = missing_bytes(wanted)
    require_room(folder, missing, name)
    done = total - missing

    def count(block: int) -> None:
        nonlocal done
        done += block
        progress(f"download {name}", min(done, total), total)

    download(source, wanted, patience, count)


def _wanted(files: list[RepositoryFile], folder: Path) -> list[Wanted]:
    return [Wanted(path=file.path, size=file.size, target=folder / file.path) for file in files]


def _weights(listing: Listing, folder: Path) -> list[RepositoryFile]:
    """One whole set of weights: the shards that the index names, else all model*.safetensors.

    Raises:
        ReproError: there are none, or the repository lacks a shard (exit code VERIFICATION).
    """
    files = {file.path: file for file in listing.files}
    if (folder / WEIGHTS_INDEX).exists():
        names = shards(folder / WEIGHTS_INDEX)
    else:
        names = [path for path in files if PurePosixPath(path).match("model*.safetensors") and "/" not in path]
    absent = [path for path in names if path not in files]
    if absent:
        raise _refused(
            listing,
            f"its index names {len(absent)} files that it lacks, such as {absent[0]}",
            "The repository is not whole: an upload was interrupted, or files were deleted.",
        )
    if not names:
        pickles = [path for path in files if path.lower().endswith(REFUSED)]
        raise _refused(
            listing,
            f"it has no safetensors{', only ' + pickles[0] if pickles else ''}",
            f"Only safetensors are taken; files such as {', '.join(REFUSED[:3])} can run code when they are read.",
        )
    for required in ("config.json", "tokenizer.json"):
        if required not in files:
            raise _refused(
                listing,
                f"it has no {required}",
                "It is not a model in MLX format.",
            )
    return [files[path] for path in sorted(names)]


def _take_what_is_here(project: Project, name: str, source: HubSource, entry: LockedModel, folder: Path) -> None:
    """Link files into the folder that are on this machine already and are what the lock says.

    So a model of many files of which one was damaged needs that one anew, and a new commit what is new in it.
    """
    for file in entry.files:
        if (folder / file.path).exists():
            continue
        for here in (project.model_folder(name) / file.path, hub.cached_file(source, file.path)):
            if here and here.is_file() and here.stat().st_size == file.size and sha256_file(here) == file.sha256:
                place(here, folder / file.path)
                break


def _download_folder(project: Project, name: str, source: HubSource) -> Path:
    """Where the files of one commit are gathered; it is renamed to the model's place when it is complete."""
    folder = project.model_downloads(name) / str(source.revision)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _clear_other_downloads(folder: Path, wanted: set[str]) -> None:
    """Delete downloads of other commits, and files that the lock doesn't name."""
    for other in folder.parent.iterdir():
        if other != folder:
            shutil.rmtree(other)
    for path in folder.iterdir():
        if path.name.removesuffix(".part") not in wanted:
            path.unlink()


def _require_git_sha1(listing: Listing, file: RepositoryFile, path: Path) -> None:
    """Hold a small file against the id of its blob in Git, which is the SHA-1 of a header and its content."""
    content = path.read_bytes()
    found = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
    if found != file.git_sha1:
        path.unlink()
        raise _refused(
            listing,
            f"{file.path} is not what the Hub lists\n  expected {file.git_sha1}\n  found    {found}",
            "The download was damaged, or a mirror sent another file; it was thrown away.",
        )


def _refused(listing: Listing, how: str, why: str) -> ReproError:
    source = listing.source
    return ReproError(
        f"{source.repository} cannot be used at revision {source.revision}: {how}.",
        why,
        "Choose another revision or repository in config/models.yaml, such as one of mlx-community.",
        Exit.VERIFICATION,
    )
