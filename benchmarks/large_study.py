"""Analyse and render a study of 100,000 made-up trials: seconds and memory of each step.

    PYTHONPATH=tests .venv/bin/python benchmarks/large_study.py [TRIALS]

Records are made first and written as a store; what is timed is what `stage estimates`, `stage verdicts` and
`stage report` do with them, each in a process of its own, as the workflow runs them.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from specprefill_repro import stages
from specprefill_repro.calibration.chain import prepare
from specprefill_repro.files import write_json
from specprefill_repro.project import Project
from specprefill_repro.study.schema import Comparison, Study, Treatment
from specprefill_repro.trials.store import Store
from specprefill_repro.verdicts.claims import load_claims
from synthetic_records import World, demo_study, synthetic_study_records

ROOT = Path(__file__).resolve().parent.parent
LIMIT_SECONDS, LIMIT_BYTES = 20.0, 10**9


def study_of(trials: int) -> Study:
    """A study in the shape of the demo with cells of 100 blocks."""
    cells = max(1, trials // 400)
    lengths = tuple(range(512, 512 + 8 * max(1, cells // 5), 8))

    def comparison(pair: str, treatment: Treatment, *keep: float) -> Comparison:
        return Comparison(pair=pair, treatment=treatment, lengths=lengths, keep=keep, blocks=100)

    return demo_study(
        comparisons=(
            comparison("padded", Treatment.SPECULATIVE, 0.1, 0.2, 0.3),
            comparison("padded", Treatment.PLACEBO),
            comparison("self", Treatment.SPECULATIVE, 0.2),
        )
    )


def make(folder: Path, study: Study) -> Project:
    """Write the project with its store; without fsync, which is not what is measured."""
    os.fsync = lambda descriptor: None  # type: ignore[assignment]
    project = prepare(folder, study, list(load_claims(Project(ROOT)).values()))
    made = synthetic_study_records(study, 1, World(noise=0.02))
    store = Store(project.store)
    for record in made.records:
        store.put_record(record)
        path = store.log_probabilities_path(record.evidence.logits_sha256)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(made.log_probabilities(record.evidence.logits_sha256).tobytes())
    for receipt in made.receipts:
        write_json(project.block_receipt(study.name, receipt.cell, receipt.block), receipt)
    for name, gate in made.gates.items():
        write_json(project.gate(study.name, name), gate)
    return project


def timed(name: str, work: Callable[[], object]) -> tuple[float, float, int]:
    """(seconds, CPU seconds, peak bytes) of a stage in a process of its own."""
    start = time.perf_counter()
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    _, status, used = os.wait4(child, 0)
    seconds = time.perf_counter() - start
    peak = used.ru_maxrss if sys.platform == "darwin" else used.ru_maxrss * 1024
    print(f"{name:10} {seconds:6.1f} s  {used.ru_utime + used.ru_stime:6.1f} s of CPU  {peak / 1e6:6.0f} MB")
    if status:
        raise SystemExit(f"{name} failed")
    return seconds, used.ru_utime + used.ru_stime, peak


def main() -> None:
    """Make the study in a child, so that its memory counts nowhere, and run the stages."""
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    study = study_of(trials)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        timed("make", lambda: make(folder, study))
        project = Project(folder)
        seen = [
            timed("estimates", lambda: stages.estimates(study.name, project)),
            timed("verdicts", lambda: stages.verdicts(study.name, project)),
            timed("report", lambda: stages.report(study.name, project)),
        ]
        size = project.report(study.name).stat().st_size
    total, cpu, peak = sum(s for s, _, _ in seen), sum(c for _, c, _ in seen), max(p for _, _, p in seen)
    print(f"page {size / 1e3:.0f} kB")
    print(f"together {total:.1f} s, {cpu:.1f} s of CPU, at most {peak / 1e6:.0f} MB")
    print("within the limits" if total < LIMIT_SECONDS and peak < LIMIT_BYTES else "beyond the limits of 20 s and 1 GB")


if __name__ == "__main__":
    main()
