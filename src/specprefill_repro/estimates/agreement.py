"""Do servers answer as this package's own engine does? A check from outside of what no log line tells.

A server shows neither positions nor scores. But both read the same prompts with the same weights, and decode the most
likely token: a dense server must give the answers of our dense trials, and one that keeps tokens at their own positions
mostly those of our speculative ones, although it keeps other tokens. Where its dense answers agree and its speculative
ones do not, something is wrong that the log calls sparse, such as compacted positions.
"""

from collections.abc import Iterable, Sequence
from statistics import mean

from specprefill_repro.estimates.schema import Agreement
from specprefill_repro.study.plan import ArmKind
from specprefill_repro.trials.schema import Evidence, ServerEvidence, TrialRecord

FEWEST_PROMPTS = 4
"""Below this many, one unlucky selection looks like a fault."""
GAP = 0.5
"""By how much agreement may fall from the dense to the speculative arm beyond our own engine's fall."""


def agreements(records: Sequence[TrialRecord]) -> tuple[Agreement, ...]:
    """One for each cell and arm of a server, on the prompts that our own engine read too, in the order of the records.

    Only trials count that did what was asked for; of several of ours on one prompt the first counts.
    """
    ours: dict[tuple[str, ArmKind], TrialRecord] = {}
    for record in records:
        if isinstance(record.evidence, Evidence) and _as_asked(record):
            ours.setdefault((record.prompt.sha256, record.requested.kind), record)
    groups: dict[tuple[str, ArmKind], list[TrialRecord]] = {}
    for record in records:
        known = (record.prompt.sha256, ArmKind.DENSE) in ours
        if isinstance(record.evidence, ServerEvidence) and _as_asked(record) and known:
            groups.setdefault((record.cell, record.requested.kind), []).append(record)
    found = []
    for (cell, kind), trials in groups.items():
        dense = [(trial, ours[trial.prompt.sha256, ArmKind.DENSE]) for trial in trials]
        speculative = [
            (trial, ours[trial.prompt.sha256, ArmKind.SPECULATIVE])
            for trial in trials
            if (trial.prompt.sha256, ArmKind.SPECULATIVE) in ours
        ]
        found.append(
            Agreement(
                cell=cell,
                arm=str(kind),
                trials=len(trials),
                with_our_dense=mean(_same(server.answer_text, our.answer_text) for server, our in dense),
                with_our_speculative=(
                    mean(_same(server.answer_text, our.answer_text) for server, our in speculative)
                    if speculative
                    else None
                ),
                ours_among_themselves=(
                    mean(_same(our.answer_text, _dense(ours, our).answer_text) for _, our in speculative)
                    if speculative
                    else None
                ),
                first_text_of_our_dense=mean(_begins(server, our.answer_text) for server, our in dense),
            )
        )
    return tuple(found)


def suspicions(found: Iterable[Agreement]) -> tuple[str, ...]:
    """What these agreements cast doubt on, in words."""
    by_cell: dict[str, dict[str, Agreement]] = {}
    for each in found:
        by_cell.setdefault(each.cell, {})[each.arm] = each
    said = []
    for cell, arms in by_cell.items():
        dense, speculative = arms.get(ArmKind.DENSE), arms.get(ArmKind.SPECULATIVE)
        if dense and dense.trials >= FEWEST_PROMPTS and dense.with_our_dense < GAP:
            said.append(
                f"{cell}: the dense server gave our dense answer in {dense.with_our_dense:.0%} of {dense.trials} "
                "trials; it may run other weights, another chat template or other sampling."
            )
        elif dense and speculative and min(dense.trials, speculative.trials) >= FEWEST_PROMPTS:
            # Dropping tokens changes some answers on our engine as well.
            expected = dense.with_our_dense * (speculative.ours_among_themselves or 0.0)
            if speculative.with_our_dense < expected - GAP:
                said.append(
                    f"{cell}: the server's dense answers agree with ours in {dense.with_our_dense:.0%} of trials, its "
                    f"speculative ones in {speculative.with_our_dense:.0%}, ours in "
                    f"{speculative.ours_among_themselves:.0%}; it may not keep the positions of kept tokens."
                )
    return tuple(said)


def _as_asked(record: TrialRecord) -> bool:
    return record.outcome == ("dense" if record.requested.kind is ArmKind.DENSE else "sparse")


def _dense(ours: dict[tuple[str, ArmKind], TrialRecord], record: TrialRecord) -> TrialRecord:
    return ours[record.prompt.sha256, ArmKind.DENSE]


def _same(one: str, other: str) -> bool:
    """As far as both go: engines may have decoded different numbers of tokens.

    Without spaces: vllm-mlx 0.2.9 loses the one after the first token of a sparse answer.
    """
    one, other = "".join(one.split()), "".join(other.split())
    length = min(len(one), len(other))
    return one[:length] == other[:length] if length else one == other


def _begins(server: TrialRecord, answer: str) -> bool:
    evidence = server.evidence
    first = evidence.first_text.strip() if isinstance(evidence, ServerEvidence) else ""
    return bool(first) and _same(first, answer)
