"""The one interface of every engine, and how the one that a cell runs on is found.

To add an engine: a class of its settings in `study/engines.py`; one module here with a function `engine(project,
settings)` that gives an object with the members of `Engine`; its name in `MODULES`. docs/engines.md has the steps.
"""

import importlib
from collections.abc import Iterable, Mapping
from typing import Protocol

from specprefill_repro.errors import ReproError
from specprefill_repro.project import Project
from specprefill_repro.study.engines import IN_PROCESS, MlxLmEngine
from specprefill_repro.study.plan import ArmKind
from specprefill_repro.study.schema import Study
from specprefill_repro.trials.job import Job, Measurement

# By name, so that a change of one engine's code does not make another's trials stale (see fingerprint.py).
MODULES = {
    "mlx-lm": "specprefill_repro.engines.mlx_lm",
    "vllm-mlx": "specprefill_repro.engines.vllm_mlx",
    "omlx": "specprefill_repro.engines.omlx",
}
"""By kind."""


class Engine(Protocol):
    """One way of running a target and its draft."""

    @property
    def name(self) -> str:
        """Its kind, as records and claim cards have it; the key of its version in a record's environment."""

    @property
    def needs_machine(self) -> bool:
        """Whether its seconds depend on this machine, which it must then have to itself."""

    def code(self, arms: Iterable[ArmKind]) -> tuple[str, ...]:
        """Modules of this package whose code can change the numbers of these arms; they join the fingerprint."""

    def settings(self) -> Mapping[str, str]:
        """What else can change its numbers, by name: versions, locks, options; joins the fingerprint."""

    def measure(self, job: Job, lease: int | None) -> Measurement:
        """One trial, from nothing to nothing: prepare, start, wait until ready, prefill once, stop.

        Nothing of it runs any more when this returns or raises. What ran is told by the evidence alone.

        Args:
            lease: descriptor of the machine lease, to be inherited by whatever process computes.

        Raises:
            ReproError: it could not measure.
        """


def engine_of(project: Project, study: Study, name: str) -> Engine:
    """The engine that a study calls by that name.

    Raises:
        ReproError: there is none of that name, or it can't be used as the study says.
    """
    settings = study.engines.get(name) or (MlxLmEngine() if name == IN_PROCESS else None)
    if settings is None or settings.kind not in MODULES:
        raise ReproError(
            f"There is no engine {name!r}; there are: {', '.join([IN_PROCESS, *study.engines])}.",
            "The study's key `engine` is misspelt, or its key `engines` does not define it.",
            f"Set `engine: {IN_PROCESS}` in the study, leave the key out, or define {name!r} under `engines`.",
        )
    engine: Engine = importlib.import_module(MODULES[settings.kind]).engine(project, settings)
    return engine


def engines_of(project: Project, study: Study) -> dict[str, Engine]:
    """Every engine that a comparison of the study runs on, by the study's name for it.

    Raises:
        ReproError: as `engine_of`.
    """
    names = dict.fromkeys(comparison.engine or study.engine for comparison in study.comparisons)
    return {name: engine_of(project, study, name) for name in names}
