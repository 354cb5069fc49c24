"""How long dense prefills took in a study that has run on this machine: what its plan rests on from then on."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from specprefill_repro.errors import ReproError
from specprefill_repro.estimates.schema import CellEstimate, Estimates
from specprefill_repro.files import read_model
from specprefill_repro.project import Project
from specprefill_repro.status import State, study_status
from specprefill_repro.study.schema import Study
from specprefill_repro.trials.schema import TrialRecord
from specprefill_repro.trials.table import Trials, read_table


@dataclass(frozen=True)
class Scatter:
    """Seconds of the same dense prefill, several times."""

    least: float
    usual: float
    most: float
    step: float
    """Seconds of one pass of one token after it."""


@dataclass(frozen=True)
class MeasuredTimes:
    dense: Mapping[str, Mapping[int, Scatter]]
    """{target: {prompt tokens: seconds}}; over the medians of the cells that have them."""
    overhead_seconds: float
    """Of a trial besides its prefill: starting, loading, warming up; median."""
    cells: Mapping[str, CellEstimate]
    """Those with pairs that count."""


def measured_times(project: Project, study: Study) -> MeasuredTimes | None:
    """What the study's own engine took; None unless the study has fresh estimates, made on this machine."""
    if not project.estimates(study.name).is_file() or study.runs_on_server(study.engine):
        return None
    try:
        standings = {standing.step.id: standing.state for standing in study_status(project, study)}
        if standings.get("estimates") is not State.FRESH:
            return None
        estimates = read_model(project.estimates(study.name), Estimates)
        trials = Trials(read_table(project.trials(study.name), TrialRecord))
    except ReproError:
        return None  # What lies there is damaged; a run, not a plan, says so.
    cells = [cell for cell in estimates.cells if cell.engine == study.engine and cell.pairs and not cell.problems]
    groups: dict[tuple[str, int], list[CellEstimate]] = {}
    for cell in cells:
        if cell.dense_median_seconds is not None and cell.baseline_problem is None:
            groups.setdefault((study.pairs[cell.pair].target, cell.length), []).append(cell)
    dense: dict[str, dict[int, Scatter]] = {}
    for (target, length), found in groups.items():
        seconds = [cell.dense_median_seconds or 0.0 for cell in found]
        step = median(_step(cell) for cell in found)
        dense.setdefault(target, {})[length] = Scatter(min(seconds), median(seconds), max(seconds), step)
    frame = trials.frame(["ready_seconds", "load_seconds", "warmup_seconds"]).fillna(0.0)
    return MeasuredTimes(dense, float(frame.sum(axis=1).median()), {cell.cell: cell for cell in cells})


def _step(cell: CellEstimate) -> float:
    if cell.decoding is not None and cell.decoding.dense_rate:
        return 1 / cell.decoding.dense_rate
    return cell.dense_phases.get("first_token", 0.0)
