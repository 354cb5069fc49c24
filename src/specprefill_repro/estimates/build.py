"""Records to estimates: one plain function, the same whether the records come from the store or from a report."""

from collections.abc import Mapping, Sequence
from statistics import mean, median

from specprefill_repro.estimates.agreement import agreements, suspicions
from specprefill_repro.estimates.cost_model import REACH, bound, break_even, model_cost
from specprefill_repro.estimates.decoding import decoding
from specprefill_repro.estimates.pairing import (
    Divergence,
    LogProbabilities,
    Sorted,
    divergence_of,
    index_trials,
    pair_estimates,
    sort_trials,
)
from specprefill_repro.estimates.prediction import DenseTimes, baseline_problem, dense_times, predicted_speedup
from specprefill_repro.estimates.schema import CellEstimate, Drift, Estimates, PairEstimate
from specprefill_repro.estimates.statistics import degrees_of_freedom, drift, interval, share_interval, summary
from specprefill_repro.gate.schema import GateResult
from specprefill_repro.study.plan import ArmKind, Cell, plan_cells
from specprefill_repro.study.schema import Study, Treatment
from specprefill_repro.trials.schema import PHASES, BlockReceipt, TrialRecord


def build_estimates(
    study: Study,
    records: Sequence[TrialRecord],
    receipts: Sequence[BlockReceipt],
    gates: Mapping[str, GateResult],
    log_probabilities: LogProbabilities,
) -> Estimates:
    """Estimate every cell of a study.

    Args:
        records: those that the receipts name, in any order.
        gates: by pair name.
        log_probabilities: content hash -> float32 [vocabulary]; asked only for pairs that count.

    Raises:
        ReproError: two records stand for one trial.
    """
    return estimate_study(study, records, receipts, gates, divergence_of(log_probabilities))


def estimate_study(
    study: Study,
    records: Sequence[TrialRecord],
    receipts: Sequence[BlockReceipt],
    gates: Mapping[str, GateResult],
    divergence: Divergence,
) -> Estimates:
    """The same, with `divergence` giving the KL of each pair that counts: for whoever has no log-probabilities."""
    cells = plan_cells(study)
    index = index_trials(records)
    by_cell: dict[str, list[BlockReceipt]] = {cell.id: [] for cell in cells}
    for receipt in receipts:
        if receipt.cell in by_cell:
            by_cell[receipt.cell].append(receipt)
    trials = {cell.id: sort_trials(cell, index, by_cell[cell.id], gates.get(cell.pair)) for cell in cells}
    dense = [record for cell in cells for record in _dense_trials(trials[cell.id])]
    engine_of = {cell.id: cell.engine for cell in cells}
    times = {
        engine: dense_times(record for record in dense if engine_of[record.cell] == engine)
        for engine in set(engine_of.values())
    }
    estimates = tuple(_cell(study, cell, trials[cell.id], times[cell.engine], divergence) for cell in cells)
    agreed = agreements(sorted(records, key=_order))
    return Estimates(
        study=study.name,
        cells=estimates,
        placebo_margin=_placebo_margin(estimates),
        voids=tuple(f"{cell.cell}: {problem}" for cell in estimates for problem in cell.problems),
        drift=_drifts(study, dense),
        agreements=agreed,
        suspicions=suspicions(agreed),
    )


def _dense_trials(trials: Sorted) -> list[TrialRecord]:
    """Dense trials of pairs that count, in the order in which they ran."""
    both = [record for twins in trials.counted for record in (twins.dense, twins.treated)]
    return sorted((record for record in both if record.requested.kind is ArmKind.DENSE), key=_order)


def _order(record: TrialRecord) -> tuple[str, str, int, int]:
    return record.started_at, record.cell, record.block, record.position


def _cell(
    study: Study,
    cell: Cell,
    trials: Sorted,
    times: Mapping[str, Mapping[int, DenseTimes]],
    divergence: Divergence,
) -> CellEstimate:
    pairs = pair_estimates(trials.counted, divergence)
    dense = [twins.dense for twins in trials.counted]
    treated = [twins.treated for twins in trials.counted]
    ratios = [pair.log_ratio for pair in pairs]
    same = [pair.same_first_token for pair in pairs if pair.same_first_token is not None]
    divergences = [pair.kl_nats for pair in pairs if pair.kl_nats is not None]
    found = sum(pair.dense_answer_found for pair in pairs)
    lost = sum(pair.dense_answer_found and not pair.treated_answer_found for pair in pairs)
    outcomes: dict[str, int] = {}
    for record in trials.trials:
        if record.treated:
            outcomes[record.outcome] = outcomes.get(record.outcome, 0) + 1
    parts = times.get(study.pairs[cell.pair].target, {})
    known = {length: part.total for length, part in parts.items()}
    draft = times.get(study.pairs[cell.pair].draft, {})
    dense_median = median(record.seconds for record in dense) if dense else None
    kept = mean(record.evidence.tokens_kept for record in treated) if treated else None
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
        treated_median_seconds=median(record.seconds for record in treated) if treated else None,
        dense_phases=_median_phases(dense),
        treated_phases=_median_phases(treated),
        predicted_speedup=None if kept is None else predicted_speedup(study, cell, kept, times),
        bound_speedup=_bound(cell, parts, draft),
        break_even_tokens=_break_even(cell, parts, draft),
        answers_dense=found,
        answers_treated=sum(pair.treated_answer_found for pair in pairs),
        answers_lost=lost,
        answers_lost_interval=share_interval(lost, found),
        first_token_agreement=mean(same) if same else None,
        median_kl_nats=median(divergences) if divergences else None,
        decoding=decoding(trials.counted),
        problems=trials.problems,
        outcomes=outcomes,
        cached_trials=sum(record.evidence.cache_tokens_before > 0 for record in trials.trials),
        baseline_problem=None if dense_median is None else baseline_problem(cell.length, dense_median, known),
    )


def _bound(cell: Cell, target: Mapping[int, DenseTimes], draft: Mapping[int, DenseTimes]) -> float | None:
    if cell.treatment is Treatment.PLACEBO or cell.length not in target:
        return None
    if cell.treatment is not Treatment.SPECULATIVE:
        return bound(model_cost(target).prefill, None, cell.length, cell.keep)
    if cell.length not in draft:
        return None
    return bound(model_cost(target).prefill, model_cost(draft).prefill, cell.length, cell.keep)


def _break_even(cell: Cell, target: Mapping[int, DenseTimes], draft: Mapping[int, DenseTimes]) -> int | None:
    """Needs two lengths of either model: from one alone every length looks alike."""
    selection = cell.treated.selection
    if cell.treatment is not Treatment.SPECULATIVE or selection is None or min(len(target), len(draft)) < 2:
        return None
    return break_even(model_cost(target), model_cost(draft), cell.keep, selection, REACH * min(max(target), max(draft)))


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


def _drifts(study: Study, dense: Sequence[TrialRecord]) -> tuple[Drift, ...]:
    """Drift of each target's dense seconds on each engine at each length, against the number of the trial in the
    study's order."""
    number = {id(record): position for position, record in enumerate(sorted(dense, key=_order))}
    groups: dict[tuple[str, str, int], list[TrialRecord]] = {}
    cells = {cell.id: cell for cell in plan_cells(study)}
    for record in dense:
        cell = cells[record.cell]
        groups.setdefault((cell.pair, cell.engine, record.prompt.tokens), []).append(record)
    drifts = []
    for (pair, engine, length), records in groups.items():
        found = drift([number[id(record)] for record in records], [record.seconds for record in records])
        if found is not None:
            change, interval95 = found
            drifts.append(
                Drift(
                    pair=pair, engine=engine, length=length, trials=len(records), change=change, interval95=interval95
                )
            )
    return tuple(drifts)
