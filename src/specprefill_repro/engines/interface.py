"""The one interface of every engine, and how one is found by its name.

To add an engine: write one module here with an object called `ENGINE` that has the members of `Engine`, and name the
module in `MODULES`. A study picks it with the key `engine`.
"""

import importlib
from collections.abc import Iterable
from typing import Protocol

from specprefill_repro.errors import ReproError
from specprefill_repro.study.plan import ArmKind
from specprefill_repro.trials.job import Job, Measurement

# By name, so that a change of one engine's code does not make another's trials stale (see fingerprint.py).
MODULES = {
    "mlx-lm": "specprefill_repro.engines.mlx_lm",
}


class Engine(Protocol):
    """One way of running a target and its draft."""

    @property
    def name(self) -> str:
        """As records and claim cards have it; the key of its version in a record's environment."""

    @property
    def needs_machine(self) -> bool:
        """Whether its seconds depend on this machine, which it must then have to itself."""

    def code(self, arms: Iterable[ArmKind]) -> tuple[str, ...]:
        """Modules of this package whose code can change the numbers of these arms; they join the fingerprint."""

    def measure(self, job: Job, lease: int | None) -> Measurement:
        """One trial, from nothing to nothing: prepare, start, wait until ready, prefill once, stop.

        Nothing of it runs any more when this returns or raises. What ran is told by the evidence alone.

        Args:
            lease: descriptor of the machine lease, to be inherited by whatever process computes.

        Raises:
            ReproError: it could not measure.
        """


def engine_named(name: str) -> Engine:
    """The engine that a study names.

    Raises:
        ReproError: there is none of that name.
    """
    if name not in MODULES:
        raise ReproError(
            f"There is no engine {name!r}; there are: {', '.join(MODULES)}.",
            "The study's key `engine` is misspelt, or names an engine of a newer version of this package.",
            f"Set `engine: {next(iter(MODULES))}` in the study, or leave the key out.",
        )
    engine: Engine = importlib.import_module(MODULES[name]).ENGINE
    return engine
