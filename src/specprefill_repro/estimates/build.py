"""Records to estimates: one plain function, the same whether the records come from the store or from a report."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

from specprefill_repro.estimates.agreement import agreements, suspicions
from specprefill_repro.estimates.cost_model import REACH, bound, break_even, model_cost
from specprefill_repro.estimates.decoding import decoding
from specprefill_repro.estimates.pairing import (
    Divergence,
    LogProbabilities,
    divergence_of,
    index_trials,
    pair_estimates,
    sort_trials,
)
from specprefill_repro.estimates.prediction import (
    DenseTimes,
    DenseTrial,
    baseline_problem,
    dense_times,
    dense_trial,
    plain_problem,
    predicted_speedup,
    weak_time,
)
from specprefill_repro.estimates.quality import quality_of
from specprefill_repro.estimates.schema import (
    CellEstimate,
    Decoding,
    Drift,
    EngineFound,
    Estimates,
    PairEstimate,
    Quality,
)
from specprefill_repro.estimates.statistics import degrees_of_freedom, drift, interval, share_interval, summary
from specprefill_repro.gate.schema import GateResult
from specprefill_repro.study.plan import ArmKind, Cell, plan_cells
from specprefill_repro.study.schema import Study, Treatment
from specprefill_repro.trials.schema import PHASES, BlockReceipt, TrialRecord

NOT_RECORDED = "not recorded"


def build_estimates(
    study: Study,
    records: Sequence[TrialRecord],
    receipts: Sequence[BlockReceipt],
    gates: Mapping[str, GateResult],
    log_probabilities: LogProbabilities,
) -> Estimates:
    """Estimate every cell of a study from records in memory.

    Args:
        records: those that the receipts name, in any order.
        gates: by pair name.
        log_probabilities: content hash -> float32 [vocabulary]; asked only for pairs that count.

    Raises:
        ReproError: two records stand for one trial.
    """
    by_cell: dict[str, list[TrialRecord]] = {}
    for record in records:
        by_cell.setdefault(record.cell, []).append(record)
    return estimate_study(study, lambda cell: by_cell.get(cell, ()), receipts, gates, divergence_of(log_probabilities))


def estimate_study(
    study: Study,
    trials_of: Callable[[str], Sequence[TrialRecord]],
    receipts: Sequence[BlockReceipt],
    gates: Mapping[str, GateResult],
    divergence: Divergence,
) -> Estimates:
    """Estimate every cell of a study, with the records of one cell in memory at a time (of servers all of them).

    Args:
        trials_of: cell -> its records; asked once for each cell of the study, in its order.
        divergence: gives the KL of each pair that counts.

    Raises:
        ReproError: as `build_estimates`.
    """
    by_cell: dict[str, list[BlockReceipt]] = {}
    for receipt in receipts:
        by_cell.setdefault(receipt.cell, []).append(receipt)
    return estimates_of(
        study,
        [
            measure_cell(study, cell, trials_of(cell.id), by_cell.get(cell.id, ()), gates.get(cell.pair), divergence)
            for cell in plan_cells(study)
        ],
    )


def estimates_of(study: Study, measured: Sequence["Measured"]) -> Estimates:
    """What all cells of a study say together.

    Args:
        measured: every cell of the study, in its order.
    """
    engine_of = {found.cell.id: found.cell.engine for found in measured}
    dense = sorted(trial for found in measured for trial in found.dense)
    times = {
        engine: dense_times(trial for trial in dense if engine_of[trial.cell] == engine)
        for engine in set(engine_of.values())
    }
    weak = {engine: {name: weak_time(own) for name, own in models.items()} for engine, models in times.items()}
    estimates = tuple(_estimate(study, found, times[found.cell.engine], weak[found.cell.engine]) for found in measured)
    estimates = _against_plain(study, estimates)
    agreed = agreements(sorted((record for found in measured for record in found.answered), key=_order))
    engines: dict[str, _Found] = {}
    for found in measured:
        if found.environment.trials:
            engines.setdefault(found.cell.engine, _Found()).merge(found.environment)
    return Estimates(
        study=study.name,
        cells=estimates,
        placebo_margin=_placebo_margin(estimates),
        voids=tuple(f"{cell.cell}: {problem}" for cell in estimates for problem in cell.problems),
        drift=_drifts(study, dense),
        agreements=agreed,
        suspicions=suspicions(agreed),
        engines={name: found.result() for name, found in sorted(engines.items())},
    )


def _against_plain(study: Study, cells: Sequence[CellEstimate]) -> tuple[CellEstimate, ...]:
    """The cells, with a problem of their baseline where plain mlx_lm is faster than the dense arm on their target."""
    problems: dict[tuple[str, str], str] = {}
    for cell in cells:
        problem = plain_problem(cell) if cell.treatment is Treatment.PLAIN else None
        if problem is not None:
            problems.setdefault((study.pairs[cell.pair].target, cell.engine), problem)
    return tuple(
        cell
        if cell.baseline_problem is not None or cell.treatment.reads_all or not cell.pairs
        else cell.model_copy(update={"baseline_problem": problems.get((study.pairs[cell.pair].target, cell.engine))})
        for cell in cells
    )


def _order(record: TrialRecord) -> tuple[str, str, int, int]:
    return record.started_at, record.cell, record.block, record.position


class _Found:
    """What the processes of some trials on one engine found."""

    def __init__(self, records: Sequence[TrialRecord] = ()) -> None:
        self.kinds: set[str] = set()
        self.values: dict[str, set[str]] = {}
        self.counts: Counter[str] = Counter()
        self.trials = len(records)
        for record in records:
            self.kinds.add(record.engine)
            for name, value in record.environment.items():
                self.values.setdefault(name, set()).add(value)
                self.counts[name] += 1

    def merge(self, other: "_Found") -> None:
        self.trials += other.trials
        self.kinds |= other.kinds
        self.counts += other.counts
        for name, values in other.values.items():
            self.values.setdefault(name, set()).update(values)

    def result(self) -> EngineFound:
        """A trial that does not have a value that others have counts as NOT_RECORDED."""
        environment = {
            name: tuple(sorted(values | ({NOT_RECORDED} if self.counts[name] < self.trials else set())))
            for name, values in sorted(self.values.items())
        }
        return EngineFound(kinds=tuple(sorted(self.kinds)), environment=environment)


@dataclass(frozen=True)
class Measured:
    """All of a cell's trials that the estimates of its study need."""

    cell: Cell
    pairs: tuple[PairEstimate, ...]
    problems: tuple[str, ...]
    outcomes: dict[str, int]
    cached_trials: int
    kept: float | None
    """Mean number of tokens that the target read in the treated arm."""
    decoding: Decoding | None
    quality: Quality
    dense_phases: dict[str, float]
    treated_phases: dict[str, float]
    dense: tuple[DenseTrial, ...]
    """Of pairs that count, a placebo's treated trials included."""
    environment: _Found
    answered: tuple[TrialRecord, ...]
    """All its trials in a study with servers, whose answers are held against those of other cells; else none."""


def measure_cell(
    study: Study,
    cell: Cell,
    records: Sequence[TrialRecord],
    receipts: Sequence[BlockReceipt],
    gate: GateResult | None,
    divergence: Divergence,
) -> Measured:
    """Pair the trials of one cell, and sum up those that count.

    Args:
        records: those that `receipts`, all of this cell, name.
        divergence: gives the KL of each pair that counts.

    Raises:
        ReproError: two records stand for one trial.
    """
    trials = sort_trials(cell, index_trials(records), receipts, gate)
    outcomes: dict[str, int] = {}
    for record in trials.trials:
        if record.treated:
            outcomes[record.outcome] = outcomes.get(record.outcome, 0) + 1
    dense = [twins.dense for twins in trials.counted]
    treated = [twins.treated for twins in trials.counted]
    pairs = pair_estimates(trials.counted, divergence)
    return Measured(
        cell=cell,
        pairs=pairs,
        problems=trials.problems,
        outcomes=outcomes,
        cached_trials=sum(record.evidence.cache_tokens_before > 0 for record in trials.trials),
        kept=mean(record.evidence.tokens_kept for record in treated) if treated else None,
        decoding=decoding(trials.counted),
        quality=quality_of(pairs),
        dense_phases=_median_phases(dense),
        treated_phases=_median_phases(treated),
        dense=tuple(
            dense_trial(record, study.prompts.answer_tokens)
            for record in (*dense, *treated)
            if record.requested.kind is ArmKind.DENSE
        ),
        environment=_Found(records),
        answered=tuple(records) if study.has_servers else (),
    )


def _estimate(
    study: Study,
    measured: Measured,
    times: Mapping[str, Mapping[int, DenseTimes]],
    weak_times: Mapping[str, str | None],
) -> CellEstimate:
    cell, pairs, kept = measured.cell, measured.pairs, measured.kept
    models = study.pairs[cell.pair]
    ratios = [pair.log_ratio for pair in pairs]
    same = [pair.same_first_token for pair in pairs if pair.same_first_token is not None]
    divergences = [pair.kl_nats for pair in pairs if pair.kl_nats is not None]
    found = sum(pair.dense_answer_found for pair in pairs)
    lost = sum(pair.dense_answer_found and not pair.treated_answer_found for pair in pairs)
    parts = times.get(models.target, {})
    known = {length: part.total for length, part in parts.items()}
    draft = times.get(models.draft, {})
    dense_median = median(pair.dense_seconds for pair in pairs) if pairs else None
    # What a weak baseline predicts is no prediction, and neither is a bound or a break-even from it.
    weak = weak_times.get(models.target)
    if weak is None and cell.treatment is Treatment.SPECULATIVE:
        weak = weak_times.get(models.draft)
    # Void pairs only make fewer of both.
    degrees = degrees_of_freedom(len(pairs), 2 * cell.blocks, 2 * cell.most_blocks) if pairs else None
    return CellEstimate(
        cell=cell.id,
        pair=cell.pair,
        engine=cell.engine,
        treatment=cell.treatment,
        length=cell.length,
        nominal_keep=cell.keep,
        rule=cell.rule,
        actual_keep=None if kept is None else kept / cell.length,
        pairs=pairs,
        degrees=degrees,
        speedup=summary(ratios).speedup if ratios else None,
        interval95=interval(ratios, 0.95, degrees),
        interval90=interval(ratios, 0.90, degrees),
        dense_median_seconds=dense_median,
        treated_median_seconds=median(pair.treated_seconds for pair in pairs) if pairs else None,
        dense_phases=measured.dense_phases,
        treated_phases=measured.treated_phases,
        predicted_speedup=None if kept is None or weak else predicted_speedup(study, cell, kept, times),
        prediction_problem=weak,
        bound_speedup=None if weak else _bound(cell, parts, draft),
        **_break_even(cell, parts, draft, weak),
        answers_dense=found,
        answers_treated=sum(pair.treated_answer_found for pair in pairs),
        answers_lost=lost,
        answers_lost_interval=share_interval(lost, found),
        first_token_agreement=mean(same) if same else None,
        median_kl_nats=median(divergences) if divergences else None,
        decoding=measured.decoding,
        quality=measured.quality,
        problems=measured.problems,
        outcomes=measured.outcomes,
        cached_trials=measured.cached_trials,
        baseline_problem=None if dense_median is None else baseline_problem(cell.length, dense_median, known),
    )


def _bound(cell: Cell, target: Mapping[int, DenseTimes], draft: Mapping[int, DenseTimes]) -> float | None:
    if cell.treatment.reads_all or cell.length not in target:
        return None
    if cell.treatment is not Treatment.SPECULATIVE:
        return bound(model_cost(target).prefill, None, cell.length, cell.keep)
    if cell.length not in draft:
        return None
    return bound(model_cost(target).prefill, model_cost(draft).prefill, cell.length, cell.keep)


def _break_even(
    cell: Cell, target: Mapping[int, DenseTimes], draft: Mapping[int, DenseTimes], weak: str | None
) -> dict[str, Any]:
    """The three fields about it. Needs two lengths of either model: from one alone every length looks alike."""
    selection = cell.treated.selection
    if cell.treatment is not Treatment.SPECULATIVE or selection is None:
        return {}
    if weak is not None:
        return {"break_even_problem": "a weak baseline"}
    for name, times in (("target", target), ("draft", draft)):
        if len(times) < 2:
            lengths = "one length" if times else "no length"
            return {"break_even_problem": f"the {name} alone was timed at {lengths}"}
    limit = REACH * min(max(target), max(draft))
    found = break_even(model_cost(target), model_cost(draft), cell.keep, selection, limit)
    return {"break_even_tokens": found, "break_even_limit": limit}


def _median_phases(records: Sequence[TrialRecord]) -> dict[str, float]:
    measured = [record.phases for record in records if record.phases is not None]
    return {phase: median(getattr(phases, phase) for phases in measured) for phase in PHASES} if measured else {}


def _placebo_margin(cells: Sequence[CellEstimate]) -> float | None:
    """Largest |log ratio| within the 95 % interval of all placebo pairs of the study together."""
    pairs: list[PairEstimate] = [p for cell in cells if cell.treatment is Treatment.PLACEBO for p in cell.pairs]
    if len(pairs) < 2:
        return None
    seen = summary([pair.log_ratio for pair in pairs])
    return abs(seen.mean) + seen.half_width(0.95)


def _drifts(study: Study, dense: Sequence[DenseTrial]) -> tuple[Drift, ...]:
    """Drift of each target's dense seconds on each engine at each length, against the number of the trial in the
    study's order; `dense` are in that order."""
    groups: dict[tuple[str, str, int], list[tuple[int, float]]] = {}
    cells = {cell.id: cell for cell in plan_cells(study)}
    for number, trial in enumerate(dense):
        cell = cells[trial.cell]
        groups.setdefault((cell.pair, cell.engine, trial.tokens), []).append((number, trial.seconds))
    drifts = []
    for (pair, engine, length), trials in groups.items():
        found = drift([number for number, _ in trials], [seconds for _, seconds in trials])
        if found is not None:
            change, interval95 = found
            drifts.append(
                Drift(pair=pair, engine=engine, length=length, trials=len(trials), change=change, interval95=interval95)
            )
    return tuple(drifts)
