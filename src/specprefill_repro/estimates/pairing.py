"""From records and receipts to the pairs that count, and to the reasons why others do not."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.estimates.evidence import evidence_problems, pair_problems
from specprefill_repro.estimates.schema import PairEstimate
from specprefill_repro.estimates.statistics import kl_divergence, log_ratio, outliers
from specprefill_repro.gate.schema import GateResult
from specprefill_repro.study.plan import Cell
from specprefill_repro.trials.schema import BlockReceipt, Evidence, TrialRecord

LogProbabilities = Callable[[str], object]
"""Content hash -> float32 [vocabulary] log-probabilities of a first token."""

Index = Mapping[tuple[str, int], Sequence[TrialRecord]]
"""(cell, block) -> its trials in the order in which they ran."""


@dataclass(frozen=True)
class Twins:
    """Two sound trials on one prompt, one of each arm, with the hashes of their records."""

    dense: TrialRecord
    treated: TrialRecord
    dense_record: str
    treated_record: str


Divergence = Callable[[Twins], float | None]
"""KL(dense || treated) of the first token's distribution, in nats; None where none is known."""


@dataclass(frozen=True)
class Sorted:
    """The trials of one cell, sorted into pairs that count and reasons why others do not."""

    counted: tuple[Twins, ...]
    problems: tuple[str, ...]
    trials: tuple[TrialRecord, ...]
    """All of them, sound or not."""


def index_trials(records: Sequence[TrialRecord]) -> dict[tuple[str, int], list[TrialRecord]]:
    """Group trials by cell and block, in the order in which they ran.

    Raises:
        ReproError: two records stand for one trial.
    """
    index: dict[tuple[str, int], list[TrialRecord]] = {}
    for record in records:
        index.setdefault((record.cell, record.block), []).append(record)
    for (cell, block), trials in index.items():
        trials.sort(key=lambda record: record.position)
        positions = [record.position for record in trials]
        if len(set(positions)) != len(positions):
            raise ReproError(
                f"Block {block} of {cell} has two records for one trial (positions {positions}).",
                "Records of an earlier run of the block were read together with those of the present one.",
                "Read only the records that the block's receipt names.",
                Exit.VERIFICATION,
            )
    return index


def sort_trials(cell: Cell, index: Index, receipts: Sequence[BlockReceipt], gate: GateResult | None) -> Sorted:
    """Pair the trials of one cell. Whether a pair counts is decided without looking at how long it took."""
    counted: list[Twins] = []
    problems: list[str] = []
    trials: list[TrialRecord] = []
    if receipts and (gate is None or not gate.passed):
        reason = "has not run for this pair of models" if gate is None else f"failed: {gate.failures}"
        measured = tuple(record for receipt in receipts for record in index.get((cell.id, receipt.block), []))
        return Sorted((), (f"no trial counts, because the gate {reason}",), measured)
    for receipt in sorted(receipts, key=lambda receipt: receipt.block):
        label = f"block {receipt.block}"
        if receipt.void is not None:
            problems.append(f"{label}: {receipt.void}")
            continue
        block = index.get((cell.id, receipt.block), [])
        trials += block
        if [record.position for record in block] != [0, 1, 2, 3] or len(receipt.records) != 4:
            problems.append(f"{label}: {len(block)} of its 4 trials have a record")
            continue
        for first in (0, 2):
            pair, hashes = block[first : first + 2], receipt.records[first : first + 2]
            swap = pair[0].treated
            dense, treated = (pair[1], pair[0]) if swap else (pair[0], pair[1])
            dense_record, treated_record = (hashes[1], hashes[0]) if swap else (hashes[0], hashes[1])
            found = [f"trial {record.position + 1}: {text}" for record in pair for text in evidence_problems(record)]
            found += pair_problems(dense, treated)
            found += [
                f"trial {record.position + 1} was asked for another arm than its cell's"
                for record in pair
                if record.requested != (cell.treated if record.treated else cell.baseline)
            ]
            found += [text for record in (dense, treated) for text in _unchecked_weights(record, gate)]
            if found:
                problems.append(f"{label}, prompt {dense.prompt.id}: {'; '.join(found)}")
            else:
                counted.append(Twins(dense, treated, dense_record, treated_record))
    return Sorted(tuple(counted), tuple(problems), tuple(trials))


def _unchecked_weights(record: TrialRecord, gate: GateResult | None) -> Iterator[str]:
    if gate is None:
        return
    if record.target_weights_sha256 != gate.target_weights_sha256:
        yield "the gate checked other weights of the target"
    if record.draft_weights_sha256 not in (None, gate.draft_weights_sha256):
        yield "the gate checked other weights of the draft"


def pair_estimates(counted: Sequence[Twins], divergence: Divergence) -> tuple[PairEstimate, ...]:
    """What each pair that counts says."""
    ratios = [log_ratio(twins.dense.seconds, twins.treated.seconds) for twins in counted]
    return tuple(
        PairEstimate(
            block=twins.dense.block,
            prompt=twins.dense.prompt.id,
            kind=twins.dense.prompt.kind,
            dense_seconds=twins.dense.seconds,
            treated_seconds=twins.treated.seconds,
            log_ratio=ratio,
            dense_record=twins.dense_record,
            treated_record=twins.treated_record,
            dense_answer_found=twins.dense.answer_found,
            treated_answer_found=twins.treated.answer_found,
            same_first_token=_same_first_token(twins),
            kl_nats=divergence(twins),
            outlier=outlier,
            depth=twins.dense.prompt.depth,
            **_what_was_read(twins.treated),
            **_what_was_said(twins.dense, twins.treated),
        )
        for twins, ratio, outlier in zip(counted, ratios, outliers(ratios), strict=True)
    )


def _same_first_token(twins: Twins) -> bool | None:
    here, there = twins.dense.evidence, twins.treated.evidence
    if not isinstance(here, Evidence) or not isinstance(there, Evidence):
        return None
    return here.first_token == there.first_token


def _what_was_said(dense: TrialRecord, treated: TrialRecord) -> dict[str, Any]:
    said: dict[str, Any] = {
        "parts": len(dense.answer_parts),
        "dense_parts": sum(dense.answer_parts.values()),
        "treated_parts": sum(treated.answer_parts.values()),
    }
    own, forced = dense.answer_log_probabilities, treated.forced_log_probabilities or dense.forced_log_probabilities
    if own and len(own) == len(forced):
        said |= {"dense_nats": -sum(own) / len(own), "treated_nats": -sum(forced) / len(forced)}
    return said


def _what_was_read(treated: TrialRecord) -> dict[str, Any]:
    evidence = treated.evidence
    if not isinstance(evidence, Evidence):
        return {}
    last = any(end == treated.prompt.tokens for _, end in evidence.kept_ranges)
    return {"needle_kept": evidence.needle_kept, "last_token_kept": last}


def divergence_of(log_probabilities: LogProbabilities) -> Divergence:
    """The divergence as it is computed from stored log-probabilities."""

    def divergence(twins: Twins) -> float | None:
        dense, treated = twins.dense.evidence, twins.treated.evidence
        if not isinstance(dense, Evidence) or not isinstance(treated, Evidence):
            return None
        here, there = dense.logits_sha256, treated.logits_sha256
        return 0.0 if here == there else kl_divergence(log_probabilities(here), log_probabilities(there))

    return divergence
