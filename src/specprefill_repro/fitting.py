"""Which studies this machine can hold, from what is known of their models before any is downloaded."""

import re
import shutil
import sys
from dataclasses import dataclass

import psutil

from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.files import read_model
from specprefill_repro.models.load import load_definition, load_lock, locked_model
from specprefill_repro.models.schema import FirstLayers, HubSource, Manifest, ModelDefinition, Padded, PypiSource
from specprefill_repro.project import Project
from specprefill_repro.staleness import models_of
from specprefill_repro.study.load import load_study, study_names
from specprefill_repro.study.scale import SUFFIX, TINY, scaled_name
from specprefill_repro.study.schema import Pair, Study
from specprefill_repro.trials import macos

WORKING_SHARE = 1.1
"""Memory of a trial as a multiple of the weights of both models: caches and activations of the longest prompts."""
WORKING_BYTES = 1_000_000_000
"""And besides: interpreter, libraries, the system's own."""
USABLE_BY_GPU = 0.75
"""Share of its memory that a Mac lets the GPU hold, unless its user has set another limit; about."""
USABLE_ELSEWHERE = 0.9
UNPUBLISHED_SHARE = 1.3
"""Parameters times bits leaves out scales, and embeddings that are kept in more bits."""
PACKED_SHARE = 6
"""A weight of 4 bits and its part of a scale become one of 32."""
PADDED_SHARE = 8
"""Of a padded model to its base, where the layers of the base are not known."""


@dataclass(frozen=True)
class Room:
    """What this machine has."""

    memory_bytes: int
    """That one trial may use."""
    disk_bytes: int
    """Free where the models will lie."""


@dataclass(frozen=True)
class Needs:
    """What a study takes, about."""

    memory_bytes: int
    """Of its largest pair, in one speculative trial."""
    disk_bytes: int
    """Of the models that are not here yet; without what an interrupted download or the Hub's cache holds."""
    unknown: tuple[str, ...] = ()
    """Models whose size nobody has published."""
    download_bytes: int = 0

    def lacking(self, room: Room) -> tuple[str, ...]:
        """Why it can't be said that the study fits, with the numbers; empty when it does."""
        return (*(f"the size of {name} is not known" for name in self.unknown), *self.too_large_for(room))

    def too_large_for(self, room: Room) -> tuple[str, ...]:
        """What is known to be too large, with the numbers; empty when nothing is."""
        found = []
        for what, need, have in (
            ("memory", self.memory_bytes, room.memory_bytes),
            ("free disk", self.disk_bytes, room.disk_bytes),
        ):
            if need > have:
                found.append(f"needs about {need / 1e9:,.0f} GB of {what}, and {have / 1e9:,.0f} GB can be used")
        return tuple(found)


def room_here(project: Project) -> Room:
    """Memory that a trial may use, and free disk."""
    return Room(usable_memory(psutil.virtual_memory().total), shutil.disk_usage(project.root).free)


def usable_memory(total: int) -> int:
    """Bytes of this machine's memory that one trial may use. A Mac's GPU holds as much as its wired limit says."""
    if sys.platform != "darwin":
        return int(total * USABLE_ELSEWHERE)
    limit = macos.wired_limit(macos.ask(macos.WIRED))
    return min(limit * 2**20, total) if limit else int(total * USABLE_BY_GPU)


def working_memory(weight_bytes: int) -> int:
    """Peak of a trial that has so many bytes of weights in memory; about."""
    return int(weight_bytes * WORKING_SHARE) + WORKING_BYTES


@dataclass(frozen=True)
class ArmMemory:
    """Peak memory of a trial of one pair, about; None: the size of a model is not known."""

    dense: int | None
    speculative: int | None
    """With the draft beside the target; a model that is its own draft is in memory once."""


def arm_memory(project: Project, pair: Pair) -> ArmMemory:
    """Of one pair, from manifest, lock or what is published."""
    target, draft = model_bytes(project, pair.target), model_bytes(project, pair.draft)
    if target is None:
        return ArmMemory(None, None)
    both = target if pair.draft == pair.target else None if draft is None else target + draft
    return ArmMemory(working_memory(target), None if both is None else working_memory(both))


def needs(project: Project, study: Study) -> Needs:
    """From manifests of the models that are here, else from the lock, else from what is published.

    Raises:
        ReproError: the study names a model that config/models.yaml does not define.
    """
    sizes = {name: model_bytes(project, name) for name in models_of(project, study)}
    known = {name: size or 0 for name, size in sizes.items()}
    pairs = [sum(known[name] for name in {pair.target, pair.draft}) for pair in study.pairs.values()]
    absent = {name: size for name, size in known.items() if not is_here(project, name)}
    here = {name: min(size, bytes_here(project, name)) for name, size in absent.items()}
    return Needs(
        memory_bytes=working_memory(max(pairs)),
        disk_bytes=sum(absent.values()) - sum(here.values()),
        unknown=tuple(name for name, size in sizes.items() if size is None),
        download_bytes=sum(max(0, download_bytes(project, name) - here[name]) for name in absent),
    )


def is_here(project: Project, name: str) -> bool:
    """Whether a model is on this machine, ready to be run."""
    return project.model_manifest(name).exists() and project.model_folder(name).is_dir()


def model_bytes(project: Project, name: str) -> int | None:
    """Bytes of a model's weights; None where nothing tells."""
    manifest = project.model_manifest(name)
    if manifest.exists():
        return read_model(manifest, Manifest).weight_bytes
    definition = load_definition(project, name)
    source, published = definition.source, definition.published
    locked = load_lock(project).models.get(name)
    if locked and not isinstance(source, PypiSource):
        return sum(file.size for file in locked.files)
    if published and published.weight_bytes:
        return published.weight_bytes
    if locked:
        return PACKED_SHARE * max(file.size for file in locked.files)
    if source.kind == "synthetic":
        from specprefill_repro.models.synthetic import synthetic_bytes

        return synthetic_bytes(source.config, vocabulary=200_000)
    if isinstance(source, Padded | FirstLayers):
        base, layers = model_bytes(project, source.base), _layers(project, source.base)
        if base is None or isinstance(source, FirstLayers):
            return base
        return int(base * source.layers / layers) if layers else PADDED_SHARE * base
    return _guessed_bytes(name, definition)


def _guessed_bytes(name: str, definition: ModelDefinition) -> int | None:
    """From the parameters in the name and the published bits."""
    parameters = re.search(r"(\d+(?:\.\d+)?)b(?![a-z])", name.lower().replace("bit", ""))
    if definition.published and definition.published.bits and parameters:
        return int(float(parameters[1]) * 1e9 * definition.published.bits / 8 * UNPUBLISHED_SHARE)
    return None


def _layers(project: Project, name: str) -> int | None:
    """How many layers a model has; None where nothing tells."""
    manifest = project.model_manifest(name)
    if manifest.exists():
        return read_model(manifest, Manifest).layers
    definition = load_definition(project, name)
    layers = definition.source.config.get("num_hidden_layers") if definition.source.kind == "synthetic" else None
    if isinstance(layers, int):
        return layers
    return definition.published.layers if definition.published else None


def download_bytes(project: Project, name: str) -> int:
    """Bytes that come over the network to make a model, about; 0 for one that is made from others, or is local."""
    source = load_definition(project, name).source
    if source.kind not in ("hf", "pypi"):
        return 0
    locked = load_lock(project).models.get(name)
    if locked and isinstance(source, PypiSource):
        return sum(file.size for file in locked.files if file.path != source.member)
    return sum(file.size for file in locked.files) if locked else model_bytes(project, name) or 0


def bytes_here(project: Project, name: str) -> int:
    """Bytes of a Hub model that need not be downloaded: of an interrupted download, or in the Hub's own cache."""
    source = load_definition(project, name).source
    if not isinstance(source, HubSource):
        return 0
    from specprefill_repro.models import hub

    begun = {file.name.removesuffix(".part"): file for file in project.model_downloads(name).glob("*/*")}
    total = sum(file.stat().st_size for file in begun.values())
    locked = locked_model(project, name)
    if locked and isinstance(locked.source, HubSource):
        cached = (file for file in locked.files if file.path not in begun and hub.cached_file(locked.source, file.path))
        total += sum(file.size for file in cached)
    return total


@dataclass(frozen=True)
class Fit:
    study: str
    needs: Needs
    lacking: tuple[str, ...]

    @property
    def fits(self) -> bool:
        return not self.lacking


def fits(project: Project, scale: str, room: Room) -> list[Fit]:
    """Every study of config/studies at a scale, those that take least memory first.

    Raises:
        ReproError: one is not valid, or there is no such scale.
    """
    found = []
    for name in study_names(project):
        study = load_study(project, scaled_name(name, scale))
        takes = needs(project, study)
        found.append(Fit(study.name, takes, takes.lacking(room)))
    return sorted(found, key=lambda fit: (fit.needs.memory_bytes, fit.study))


def check_room(project: Project, study: Study, room: Room | None = None) -> None:
    """Stop a study that this machine can't hold, before anything is downloaded for it.

    Raises:
        ReproError: memory or disk is known to be too small, with the numbers and with what can be run instead.
    """
    room = room or room_here(project)
    lacking = needs(project, study).too_large_for(room)
    if not lacking:
        return
    tiny = study.name.endswith(SUFFIX)
    own = "" if tiny else f"./reproduce {study.name} --scale {TINY}   (the same on small random models)"
    others = [fit.study for fit in fits(project, "full", room) if fit.fits and fit.study != study.name]
    fitting = f"./reproduce {others[-1]}   (fits, as do: {', '.join(others)})" if others else ""
    raise ReproError(
        f"{study.name} does not fit this machine: it {'; it '.join(lacking)}.",
        "Nothing was downloaded. The sizes are those of its models' files, or what is published of them.",
        " or ".join(part for part in (own, fitting) if part) or "Free some disk, or use a larger machine.",
        Exit.ENVIRONMENT,
    )
