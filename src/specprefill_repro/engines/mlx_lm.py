"""The engine of this package: mlx_lm's models in a clean process of our own, with SpecPrefill around them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from specprefill_repro.project import Project
from specprefill_repro.study.engines import MlxLmEngine
from specprefill_repro.study.plan import ArmKind
from specprefill_repro.trials.job import Job, Measurement
from specprefill_repro.trials.trial import run_worker
from specprefill_repro.trials.worker import ARM_MODULES, CONTINUATION


@dataclass(frozen=True)
class MlxLm:
    name: str = "mlx-lm"
    needs_machine: bool = True

    def code(self, arms: Iterable[ArmKind]) -> tuple[str, ...]:
        kinds = set(arms)
        continuation = set() if all(kind.reads_all for kind in kinds) else {CONTINUATION}
        return (__name__, *sorted({ARM_MODULES[kind] for kind in kinds} | continuation))

    def settings(self) -> Mapping[str, str]:
        return {}

    def measure(self, job: Job, lease: int | None) -> Measurement:
        return run_worker(job, lease)


def engine(project: Project, settings: MlxLmEngine) -> MlxLm:
    return MlxLm()
