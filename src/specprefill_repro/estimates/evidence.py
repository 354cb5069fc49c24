"""Does the evidence of a trial prove that the computation named on its label is the one that was timed?

Every check is decided without looking at how long anything took, except that the phases must add up to the total.
"""

from collections.abc import Iterator
from functools import lru_cache

from specprefill_repro.engines.server_evidence import KEEP_TOLERANCE
from specprefill_repro.files import content_id
from specprefill_repro.study.plan import ArmKind
from specprefill_repro.trials.schema import NOMINAL, Evidence, MachineState, ServerEvidence, TrialRecord

PHASES_TOLERANCE = 0.02
MAX_SUSPENDED_SECONDS = 0.1
MAX_PAGED_IN_BYTES = 64 << 20
"""Code of a library that is first needed now is a few megabytes; more than this is weights."""
DIFFERS_BY_ARM = {"server options"}
"""Of a record's environment: what a server is told in one arm and not in the other."""


@lru_cache(maxsize=4096)
def _positions_sha256(ranges: tuple[tuple[int, int], ...]) -> str:
    return content_id([position for start, end in ranges for position in range(start, end)])


def evidence_problems(record: TrialRecord) -> list[str]:
    """What is wrong with one trial, in words; empty when its evidence is complete and consistent."""
    return [*_computation(record), *_clock(record), *_machine(record)]


def pair_problems(dense: TrialRecord, treated: TrialRecord) -> list[str]:
    """What makes the two trials of a pair incomparable, in words."""
    found = []
    if dense.prompt.sha256 != treated.prompt.sha256:
        found.append("the two arms read different prompts")
    if dense.target_weights_sha256 != treated.target_weights_sha256:
        found.append("the two arms ran different target weights")
    if dense.engine != treated.engine:
        found.append(f"the two arms ran on different engines: {dense.engine} and {treated.engine}")
    # Such as one process that could not open the fast BLAS, or a server that gave one arm to another of its engines.
    for name in sorted((dense.environment.keys() & treated.environment.keys()) - DIFFERS_BY_ARM):
        here, there = dense.environment[name], treated.environment[name]
        if here != there:
            found.append(f"{name} was {here} in the dense arm and {there} in the treated one")
    if isinstance(dense.evidence, Evidence) and isinstance(treated.evidence, Evidence):
        for name in ("key_dtype", "logits_dtype"):
            here, there = getattr(dense.evidence, name), getattr(treated.evidence, name)
            if here != there:
                found.append(f"{name} is {here} in the dense arm and {there} in the treated one")
    if {dense.before.low_power, treated.before.low_power} == {False, True}:
        found.append("low-power mode was on in one of the two arms")
    if (dense.treated, treated.treated) != (False, True):
        found.append("it does not hold one trial of each arm")
    return found


def _computation(record: TrialRecord) -> Iterator[str]:
    if isinstance(record.evidence, ServerEvidence):
        yield from _server_computation(record, record.evidence)
    else:
        yield from _own_computation(record, record.evidence)


def _server_computation(record: TrialRecord, evidence: ServerEvidence) -> Iterator[str]:
    """A server's trial whose log does not prove what was asked for has another outcome, see engines/server_evidence."""
    total = record.prompt.tokens
    if evidence.prompt_tokens != total:
        yield f"the server counted {evidence.prompt_tokens} prompt tokens, the prompt has {total}"
    if evidence.cache_tokens_before != 0:
        yield f"{evidence.cache_tokens_before} prompt tokens came from a cache of the server"
    wanted = "dense" if record.requested.kind is ArmKind.DENSE else "sparse"
    if record.outcome != wanted:
        yield f"{wanted} was asked for, the outcome is {record.outcome!r}"
    if record.outcome == "sparse" and evidence.tokens_scored != total:
        yield f"the draft read {evidence.tokens_scored} of {total} prompt tokens"
    if record.outcome == "sparse":
        yield from _server_proof(record.requested.keep, evidence)
    if record.outcome == "dense" and evidence.tokens_kept != total:
        yield f"the dense arm read {evidence.tokens_kept} of {total} prompt tokens"


def _server_proof(keep: float, evidence: ServerEvidence) -> Iterator[str]:
    """What the engine has judged by the whole log, held again against what the record itself has of it."""
    if not evidence.lines:
        yield "the record holds no line of the server's log that proves it"
    if evidence.keep_logged is not None and abs(evidence.keep_logged - keep) > KEEP_TOLERANCE:
        yield f"the server's keep rate was {evidence.keep_logged:g}, {keep:g} was asked for"


def _own_computation(record: TrialRecord, evidence: Evidence) -> Iterator[str]:
    total = record.prompt.tokens
    sparse_arm = not record.requested.kind.reads_all
    if evidence.cache_tokens_before != 0:
        yield f"{evidence.cache_tokens_before} tokens were in the KV cache when the clock started"
    if evidence.draft_cache_tokens_before not in (None, 0):
        yield f"{evidence.draft_cache_tokens_before} tokens were in the draft's KV cache when the clock started"
    if sparse_arm and record.outcome != "sparse" and (record.outcome != "dense" or evidence.tokens_kept != total):
        yield f"SpecPrefill did not run: the outcome is {record.outcome!r}"
    if not sparse_arm and (record.outcome != "dense" or evidence.tokens_kept != total):
        yield f"the dense arm was not dense: outcome {record.outcome!r}, {evidence.tokens_kept} of {total} tokens read"
    yield from _kept_positions(record, evidence)
    if evidence.cache_tokens_after != evidence.tokens_kept:
        yield f"{evidence.cache_tokens_after} cache entries stand for {evidence.tokens_kept} kept tokens"
    if evidence.rotary_modules_restored != evidence.rotary_modules:
        yield f"only {evidence.rotary_modules_restored} of {evidence.rotary_modules} patched modules were restored"
    if evidence.rotary_modules_expected not in (None, evidence.rotary_modules) and record.outcome == "sparse":
        yield f"{evidence.rotary_modules} of {evidence.rotary_modules_expected} rotary embeddings were watched"
    if record.outcome == "sparse" and evidence.rotary_modules == 0 and evidence.rotary_modules_expected != 0:
        yield "no rotary embedding was watched, so the kept tokens' positions are not proved"
    selection = record.requested.selection
    if len(evidence.look_ahead_tokens) > (selection.look_ahead if selection else 0):
        yield f"{len(evidence.look_ahead_tokens)} look-ahead tokens, more than were asked for"
    if record.requested.kind is ArmKind.SPECULATIVE and record.outcome == "sparse" and evidence.tokens_scored != total:
        yield f"the draft read {evidence.tokens_scored} of {total} prompt tokens"


def _kept_positions(record: TrialRecord, evidence: Evidence) -> Iterator[str]:
    total = record.prompt.tokens
    ends = [0, *(end for _, end in evidence.kept_ranges)]
    ordered = all(before <= start < end for before, (start, end) in zip(ends, evidence.kept_ranges, strict=False))
    if not ordered or ends[-1] > total:
        yield "the list of kept positions is not an ascending list of positions of the prompt"
        return
    listed = sum(end - start for start, end in evidence.kept_ranges)
    if listed != evidence.tokens_kept:
        yield f"{evidence.tokens_kept} tokens kept, but {listed} positions listed"
    digest = _positions_sha256(evidence.kept_ranges)
    if digest != evidence.kept_sha256:
        yield "the hash of the kept positions is not that of the listed ones"
    if evidence.rotary_positions_sha256 is None:
        # A model without rotary embeddings has none; what its caches hold is checked above.
        if record.outcome == "sparse" and evidence.rotary_modules_expected != 0:
            yield "the positions that the target's rotary embedding saw were not recorded"
    elif evidence.rotary_positions_sha256 != digest:
        yield "the target's rotary embedding saw other positions than the kept ones"
    rule = record.requested.selection
    if ends[-1] != total and (rule is None or rule.tail > 0):
        yield "the last prompt token was not kept"


def _clock(record: TrialRecord) -> Iterator[str]:
    if not record.seconds > 0:
        yield f"the trial took {record.seconds} seconds"
    elif record.phases is None:
        # A server's parts are not timed from outside.
        if isinstance(record.evidence, Evidence):
            yield "the phases were not recorded"
    elif abs(record.phases.total - record.seconds) > PHASES_TOLERANCE * record.seconds:
        yield f"the phases add up to {record.phases.total:.3f} of {record.seconds:.3f} seconds"
    if abs(record.suspended_seconds) >= MAX_SUSPENDED_SECONDS:
        yield f"the machine slept for {record.suspended_seconds:.1f} seconds"


def _machine(record: TrialRecord) -> Iterator[str]:
    before, after = record.before, record.after
    swapped = _swapped_out(before, after)
    if swapped != 0:
        yield f"{swapped:,} bytes were swapped out during the trial"
    if record.paged_in_bytes is not None and record.paged_in_bytes > MAX_PAGED_IN_BYTES:
        yield f"at least {record.paged_in_bytes:,} bytes were read from disk while the clock ran"
    hot = [state for state in (before.thermal_pressure, after.thermal_pressure) if state not in (None, NOMINAL)]
    if hot:
        yield f"the machine was under thermal pressure ({hot[-1]})"
    if before.throttle_events is not None and after.throttle_events is not None:
        throttled = after.throttle_events - before.throttle_events
        if throttled > 0:
            yield f"the processor was slowed for heat {throttled} times during the trial"


def _swapped_out(before: MachineState, after: MachineState) -> int:
    """Bytes; by the system's own count where both readings have it."""
    if before.vm_swap_out_bytes is not None and after.vm_swap_out_bytes is not None:
        return after.vm_swap_out_bytes - before.vm_swap_out_bytes
    return after.swap_out_bytes - before.swap_out_bytes
