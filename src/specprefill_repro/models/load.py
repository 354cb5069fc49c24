"""Read config/models.yaml and config/models.lock.yaml."""

import difflib
from functools import lru_cache
from pathlib import Path

from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.files import read_yaml_model
from specprefill_repro.models.schema import (
    FirstLayers,
    HubSource,
    LockedModel,
    ModelDefinition,
    ModelsFile,
    ModelsLock,
    Padded,
    Source,
    Synthetic,
)
from specprefill_repro.project import Project
from specprefill_repro.this_command import this_command


def model_names(project: Project) -> list[str]:
    """Names of the models in config/models.yaml, in the order of the file."""
    return list(_defined(project))


def _defined(project: Project) -> dict[str, ModelDefinition]:
    path = project.models_file
    if not path.exists():
        return read_yaml_model(path, ModelsFile).models  # says that it is missing
    found = path.stat()
    return _as_of(path, (found.st_ino, found.st_size, found.st_mtime_ns)).models


@lru_cache(maxsize=4)
def _as_of(path: Path, stamp: tuple[int, int, int]) -> ModelsFile:
    """The file as it was at a stamp. Every model of a study is looked up several times, and YAML is slow to read."""
    return read_yaml_model(path, ModelsFile)


def load_definition(project: Project, name: str) -> ModelDefinition:
    """Read the definition of one model, and make sure that the models that it is made of are known too.

    Raises:
        ReproError: no such model, models made of each other in a circle, or the file is not valid.
    """
    models = _defined(project)
    chain: list[str] = []
    current: str | None = name
    while current is not None:
        if current not in models:
            _refuse_unknown(current, list(models), chain)
        if current in chain:
            raise ReproError(
                f"The models {' -> '.join([*chain, current])} are made of each other.",
                "A derived model must in the end rest on one that is downloaded or local.",
                f"Correct the key `base` or `tokenizer` of {current!r} in config/models.yaml.",
            )
        if current.endswith(".json"):
            raise ReproError(
                f"The model name {current!r} ends in .json.",
                "The manifest of a model is the file NAME.json beside its folder NAME.",
                "Choose another name in config/models.yaml.",
            )
        chain.append(current)
        current = base_of(models[current].source)
    return models[name]


def stand_in(project: Project, name: str) -> str:
    """Name of the model that stands in for another one at tiny scale: the key `tiny`, or the model itself.

    Raises:
        ReproError: as `load_definition`.
    """
    return load_definition(project, name).tiny or name


def base_of(source: Source) -> str | None:
    """Name of the model that a source is made from; None when it is fetched or copied."""
    if isinstance(source, FirstLayers | Padded):
        return source.base
    return source.tokenizer if isinstance(source, Synthetic) else None


def load_lock(project: Project) -> ModelsLock:
    """Read config/models.lock.yaml; a missing file is an empty lock."""
    if not project.models_lock.exists():
        return ModelsLock()
    return read_yaml_model(project.models_lock, ModelsLock)


def locked_model(project: Project, name: str) -> LockedModel | None:
    """What the lock says of a model; None when it is not locked.

    Raises:
        ReproError: the entry was made for another source or revision than config/models.yaml names.
    """
    definition = load_definition(project, name)
    entry = load_lock(project).models.get(name)
    if entry is None:
        return None
    source, locked = definition.source, entry.source
    if isinstance(source, HubSource) and isinstance(locked, HubSource):
        if source.revision is None:
            source = source.model_copy(update={"revision": locked.revision})
        if source.revision != locked.revision and source.repository == locked.repository:
            raise ReproError(
                f"{name}: config/models.yaml names revision {source.revision}, "
                f"the lock was made for {locked.revision}.",
                "The revision was changed and the model was not locked again.",
                f"{this_command()} lock {name}   (to accept the new revision)",
                Exit.VERIFICATION,
            )
    if source != locked:
        raise ReproError(
            f"{name}: config/models.lock.yaml was made for another source than config/models.yaml names.",
            "The definition was changed and the model was not locked again.",
            f"{this_command()} lock {name}   (to accept the new source)",
            Exit.VERIFICATION,
        )
    return entry


def is_unlocked_hub_model(project: Project, name: str) -> bool:
    """Whether a model comes from the Hub and has no entry in config/models.lock.yaml."""
    return isinstance(load_definition(project, name).source, HubSource) and locked_model(project, name) is None


def _refuse_unknown(name: str, known: list[str], chain: list[str]) -> None:
    near = difflib.get_close_matches(name, known, n=1)
    used = f", which {chain[-1]!r} is made from" if chain else ""
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ReproError(
        f"There is no model {name!r}{used}.{hint}",
        f"config/models.yaml defines: {', '.join(known) or 'none'}.",
        "Correct the name, or add the model to config/models.yaml.",
    )
