"""Which studies this machine can hold, from what is known of their models before any is downloaded."""

import platform
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.files import read_model
from specprefill_repro.models.load import load_definition, load_lock
from specprefill_repro.models.schema import Manifest, Padded
from specprefill_repro.project import Project
from specprefill_repro.run import run_study
from specprefill_repro.staleness import models_of
from specprefill_repro.study.load import load_study, study_names
from specprefill_repro.study.scale import TINY, scaled_name
from specprefill_repro.study.schema import Study

WORKING_SHARE = 1.1
"""Memory of a trial as a multiple of the weights of both models: caches and activations of the longest prompts."""
WORKING_BYTES = 2_000_000_000
"""And besides: interpreter, libraries, the system's own."""
USABLE = {"Darwin": 0.75}
"""Share of memory that one process may use: macOS lets the GPU hold about three quarters."""
USABLE_ELSEWHERE = 0.9
UNPUBLISHED_SHARE = 1.3
"""Parameters times bits leaves out scales, and embeddings that are kept in more bits."""


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
    """Of its largest pair, in one trial."""
    disk_bytes: int
    """Of the models that are not here yet."""
    unknown: tuple[str, ...] = ()
    """Models whose size nobody has published."""

    def lacking(self, room: Room) -> tuple[str, ...]:
        """Why the study does not fit, with the numbers; empty when it does."""
        found = [f"the size of {name} is not known" for name in self.unknown]
        for what, need, have in (
            ("memory", self.memory_bytes, room.memory_bytes),
            ("free disk", self.disk_bytes, room.disk_bytes),
        ):
            if need > have:
                found.append(f"needs about {need / 1e9:,.0f} GB of {what}, and {have / 1e9:,.0f} GB can be used")
        return tuple(found)


def room_here(project: Project) -> Room:
    """Memory that a trial may use, and free disk."""
    usable = USABLE.get(platform.system(), USABLE_ELSEWHERE)
    return Room(int(psutil.virtual_memory().total * usable), shutil.disk_usage(project.root).free)


def needs(project: Project, study: Study) -> Needs:
    """From manifests of the models that are here, else from the lock, else from what is published.

    Raises:
        ReproError: the study names a model that config/models.yaml does not define.
    """
    sizes = {name: model_bytes(project, name) for name in models_of(project, study)}
    known = {name: size or 0 for name, size in sizes.items()}
    pairs = [sum(known[name] for name in {pair.target, pair.draft}) for pair in study.pairs.values()]
    return Needs(
        memory_bytes=int(max(pairs) * WORKING_SHARE) + WORKING_BYTES,
        disk_bytes=sum(size for name, size in known.items() if not project.model_manifest(name).exists()),
        unknown=tuple(name for name, size in sizes.items() if size is None),
    )


def model_bytes(project: Project, name: str) -> int | None:
    """Bytes of a model's weights; None where nothing tells."""
    manifest = project.model_manifest(name)
    if manifest.exists():
        return read_model(manifest, Manifest).weight_bytes
    definition = load_definition(project, name)
    source, published = definition.source, definition.published
    if locked := load_lock(project).models.get(name):
        largest = max(file.size for file in locked.files)
        # A file of 4 bits a weight becomes one of 32.
        return 8 * largest if source.kind == "pypi" else sum(file.size for file in locked.files)
    if published and published.weight_bytes:
        return published.weight_bytes
    if source.kind == "synthetic":
        from specprefill_repro.models.synthetic import synthetic_bytes

        return synthetic_bytes(source.config, vocabulary=200_000)
    if isinstance(source, Padded):
        base = model_bytes(project, source.base)
        return None if base is None else 8 * base
    parameters = re.search(r"(\d+(?:\.\d+)?)b(?![a-z])", name.lower().replace("bit", ""))
    if published and published.bits and parameters:
        return int(float(parameters[1]) * 1e9 * published.bits / 8 * UNPUBLISHED_SHARE)
    return None


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


def run_all_that_fit(
    project: Project,
    scale: str,
    tell: Callable[[str], None],
    run: Callable[[Project, str], None] = run_study,
    room: Room | None = None,
) -> None:
    """Run every study that this machine can hold; say of the others why it can't, and what can be run instead.

    A study that fails does not stop those after it.

    Raises:
        ReproError: none fits, or some failed; the first one's error.
    """
    found = fits(project, scale, room or room_here(project))
    fitting = [fit.study for fit in found if fit.fits]
    for fit in found:
        if not fit.fits:
            tell(f"{fit.study}: does not fit: {'; '.join(fit.lacking)}.")
            if scale != TINY:
                tell(f"  Instead: ./reproduce {fit.study} --scale tiny, the same on small random models.")
    if not fitting:
        raise ReproError(
            "No study fits this machine.",
            "Its memory or its free disk is too small for the smallest of them.",
            "Free some disk, or run: ./reproduce demo --scale tiny",
            Exit.ENVIRONMENT,
        )
    tell(f"Running {len(fitting)} of {len(found)} studies: {', '.join(fitting)}.")
    failed: dict[str, ReproError] = {}
    for name in fitting:
        tell(f"{name} ...")
        try:
            run(project, name)
        except ReproError as error:
            failed[name] = error
            tell(f"error: {name}: {error}")
    if failed:
        first, reason = next(iter(failed.items()))
        raise ReproError(
            f"{len(failed)} of {len(fitting)} studies failed: {', '.join(failed)}. The first: {reason.what}",
            reason.why,
            f"./reproduce {first}   (the others that fit are done)",
            reason.exit_code,
        )
    tell(f"All {len(fitting)} studies that fit are done.")
