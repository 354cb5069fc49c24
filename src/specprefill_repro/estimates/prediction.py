"""The speed-up that a cell's parts predict, each part measured without the arm that is predicted.

    predicted = T_target(L) / (T_draft(L) + further * step_draft + T_target(kept))

T_target(L): the target's median dense seconds at the cell's length. T_draft(L): the draft's own median dense seconds at
that length, known when the study also measures the draft as a target (as a pair `self` does); without it there is no
prediction. They hold the first of the look-ahead's queries, that of the last prompt token. step_draft: the median
seconds of a decoded token in those dense trials, which is one pass of one token after the whole prompt, as each further
query of the look-ahead is; where none was decoded, the `first_token` phase. further: the look-ahead's passes after the
prompt, one fewer than its queries, or fewer still where the draft ends its answer earlier, as its own dense trials show
(the look-ahead stops there); their mean. T_target(kept): a*N + b*N^2 through the
target's dense medians when two lengths or more are measured, else in proportion to the tokens. Kept tokens attend to
kept tokens alone, so kept takes the place of N in both terms. Scoring and selection are left out: they are matters of
milliseconds, and nothing but the predicted arm measures them. A random selection has no draft to pay for.

The cost model is that of arXiv 2502.02789, 1 / (keep + draft cost / target cost), with measured seconds for operations
and with the quadratic term that the paper leaves out.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import mean, median
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from specprefill_repro.estimates.schema import CellEstimate
from specprefill_repro.estimates.statistics import MIN_PAIRS
from specprefill_repro.study.plan import Cell
from specprefill_repro.study.schema import Selection, Study, Treatment
from specprefill_repro.trials.schema import TrialRecord

SAME_LENGTH_MARGIN = 1.5
"""How much slower than elsewhere a dense arm may be at one length: a whole machine that is busy for a while slows both
arms of a block alike and does no harm, so only what no ordinary load explains counts."""
OTHER_LENGTH_MARGIN = 1.05


@dataclass(frozen=True)
class PrefillCost:
    """Seconds of a prefill of N tokens: linear * N + quadratic * N^2, both at least 0."""

    linear: float
    quadratic: float

    def seconds(self, tokens: float) -> float:
        return self.linear * tokens + self.quadratic * tokens**2


def fit_cost(seconds: Mapping[int, float]) -> PrefillCost:
    """Least squares on relative errors through {tokens: seconds}; from one length alone the cost is proportional.

    Raises:
        ValueError: nothing to fit.
    """
    if not seconds:
        raise ValueError("a cost needs at least one measured length")
    if len(seconds) == 1:
        ((tokens, value),) = seconds.items()
        return PrefillCost(value / tokens, 0.0)
    lengths, values = np.asarray(list(seconds), dtype=float), np.asarray(list(seconds.values()), dtype=float)
    columns = np.stack([lengths, lengths**2], axis=1) / values[:, None]
    scale = columns.max(axis=0)
    solution = nnls(columns / scale, np.ones(len(values)))[0] / scale
    return PrefillCost(float(solution[0]), float(solution[1]))


class DenseTrial(NamedTuple):
    """What the cost of a model is computed from: one sound dense trial."""

    started_at: str
    cell: str
    block: int
    position: int
    target: str
    tokens: int
    seconds: float
    step: float
    """One pass of one token after the whole prompt."""
    said: int
    """Tokens that were decoded until the model ended its answer; CUT_OFF where it did not, or that is not known."""


CUT_OFF = -1


def dense_trial(record: TrialRecord, answer_tokens: int) -> DenseTrial:
    """What of a record the cost of a model is computed from; at most `answer_tokens` tokens were decoded."""
    if record.decode_tokens:
        step = record.decode_seconds / record.decode_tokens
    else:
        step = record.phases.first_token if record.phases else 0.0
    # What a server was asked to decode is not the study's number of tokens.
    ended = record.phases is not None and 0 < record.decode_tokens < answer_tokens - 1
    return DenseTrial(
        started_at=record.started_at,
        cell=record.cell,
        block=record.block,
        position=record.position,
        target=record.target,
        tokens=record.prompt.tokens,
        seconds=record.seconds,
        step=step,
        said=record.decode_tokens if ended else CUT_OFF,
    )


@dataclass(frozen=True)
class DenseTimes:
    """Medians over the dense trials of one model at one length, in seconds."""

    total: float
    step: float
    """One pass of one token after the whole prompt; not known of a server, and then 0."""
    said: tuple[int, ...] = ()
    """Of each trial, as in `DenseTrial`."""

    def further_passes(self, rule: Selection) -> float:
        """Mean number of the look-ahead's passes after the prompt."""
        most = rule.passes - 1
        if not rule.stop_at_end or not self.said:
            return most
        return mean(most if said == CUT_OFF else min(most, said) for said in self.said)


def dense_times(dense: Iterable[DenseTrial]) -> dict[str, dict[int, DenseTimes]]:
    """{target: {length: medians}} of sound dense trials on one engine."""
    groups: dict[tuple[str, int], list[DenseTrial]] = {}
    for trial in dense:
        groups.setdefault((trial.target, trial.tokens), []).append(trial)
    times: dict[str, dict[int, DenseTimes]] = {}
    for (target, length), trials in groups.items():
        times.setdefault(target, {})[length] = DenseTimes(
            total=median(trial.seconds for trial in trials),
            step=median(trial.step for trial in trials),
            said=tuple(trial.said for trial in trials),
        )
    return times


def predicted_speedup(
    study: Study, cell: Cell, kept_tokens: float, times: Mapping[str, Mapping[int, DenseTimes]]
) -> float | None:
    """The formula above; None where both arms read everything, or when a part was not measured."""
    pair = study.pairs[cell.pair]
    target = times.get(pair.target, {})
    if cell.treatment.reads_all or cell.length not in target or cell.treated.selection is None:
        return None
    cost = fit_cost({length: measured.total for length, measured in target.items()})
    spent = cost.seconds(kept_tokens)
    if cell.treatment is Treatment.SPECULATIVE:
        draft = times.get(pair.draft, {}).get(cell.length)
        if draft is None:
            return None
        spent += draft.total + draft.further_passes(cell.treated.selection) * draft.step
    return target[cell.length].total / spent


def weak_time(times: Mapping[int, DenseTimes]) -> str | None:
    """Which of a model's dense times is too slow to be true, held against those at its other lengths; None when all
    are sound. All count, since T_target(kept) goes through them."""
    known = {length: measured.total for length, measured in times.items()}
    problems = (baseline_problem(length, known[length], known) for length in sorted(known))
    return next((problem for problem in problems if problem is not None), None)


def plain_problem(cell: CellEstimate) -> str | None:
    """What a cell of plain mlx_lm says against the dense arm: that mlx_lm's own loop is clearly faster; else None."""
    found = cell.interval95
    if found is None or len(cell.pairs) < MIN_PAIRS or found.low <= OTHER_LENGTH_MARGIN:
        return None
    return (
        f"plain mlx_lm read the same {cell.length} tokens {cell.speedup:.3g} times as fast as the dense arm "
        f"(95 % interval {found.low:.3g} to {found.high:.3g})"
    )


def baseline_problem(length: int, dense_seconds: float, known: Mapping[int, float]) -> str | None:
    """Whether a cell's dense seconds are too slow to be true, held against the same target's other dense seconds.

    `known` is {length: median seconds} over all cells. A dense prefill of more tokens takes longer, and its time grows
    at most with the square of the length. One bad baseline makes a gain out of nothing.
    """
    for other, seconds in sorted(known.items()):
        margin = SAME_LENGTH_MARGIN if other == length else OTHER_LENGTH_MARGIN
        limit = margin * seconds * max(1.0, (length / other) ** 2)
        if dense_seconds > limit:
            usual = (
                f"over all cells of this study the same takes {seconds:.4g} s"
                if other == length
                else f"it takes {seconds:.4g} s for {other}"
            )
            return (
                f"the dense arm took {dense_seconds:.4g} s for {length} tokens, though {usual}; "
                f"at most {limit:.4g} s would fit that"
            )
    return None
