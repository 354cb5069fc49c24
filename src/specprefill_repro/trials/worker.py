"""One trial in a clean process: `python -m specprefill_repro.trials.worker`.

Reads one line from standard input: the parent's `time.perf_counter` (one clock for all processes) and a `Job`. Writes
one `Answer` to standard output. Standard input stays open: when it closes, the parent is gone, and the worker ends.
"""

import gc
import importlib
import os
import resource
import sys
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from specprefill_repro.errors import ReproError
from specprefill_repro.files import sha256_file, write_bytes
from specprefill_repro.isolation import check_imported
from specprefill_repro.study.plan import ArmKind
from specprefill_repro.trials.clock import suspended_between, suspension_clocks
from specprefill_repro.trials.job import Answer, Failure, Job, Measurement
from specprefill_repro.trials.machine import machine_facts, machine_state, software_facts
from specprefill_repro.trials.memory import out_of_memory, says_out_of_memory
from specprefill_repro.trials.parent import end_with_pipe
from specprefill_repro.trials.schema import Phases

# By name, so that a change of one arm's code does not make the other arms' trials stale (see fingerprint.py).
ARM_MODULES = {
    ArmKind.DENSE: "specprefill_repro.prefill.dense",
    ArmKind.SPECULATIVE: "specprefill_repro.prefill.speculative",
    ArmKind.RANDOM: "specprefill_repro.prefill.control",
    ArmKind.HEAD_TAIL: "specprefill_repro.prefill.control",
    ArmKind.UNIFORM: "specprefill_repro.prefill.control",
    ArmKind.PLAIN: "specprefill_repro.prefill.plain",
}
CONTINUATION = "specprefill_repro.prefill.continuation"


def measure(job: Job, spawned_at: float) -> Measurement:
    """Load, warm up, prefill once with the clock running, decode an answer, and gather the evidence.

    Args:
        spawned_at: the clock just before the parent started this process.

    Raises:
        ReproError: the model can't be used, or MLX is not the installed one.
    """
    from specprefill_repro.prefill.blas import use_fast_blas

    blas = use_fast_blas()
    import mlx.core as mx

    from specprefill_repro.prefill.architectures import end_tokens
    from specprefill_repro.prefill.arms import Models, Request
    from specprefill_repro.prefill.chunked import cached_tokens, key_caches, log_probabilities, most_likely
    from specprefill_repro.prefill.loading import keep_resident, load_model
    from specprefill_repro.prefill.positions import check_vector_offsets
    from specprefill_repro.trials.evidence import as_positions, gather_evidence, outcome

    prefill = importlib.import_module(ARM_MODULES[job.arm.kind]).prefill
    ready_seconds = time.perf_counter() - spawned_at

    start = time.perf_counter()
    target, config = load_model(Path(job.target_folder))
    draft, draft_ends = None, frozenset[int]()
    if job.draft_folder is not None:
        # A model that is its own draft is in memory once; draft and target still have a KV cache each.
        same = job.draft_folder == job.target_folder
        draft, draft_config = (target, config) if same else load_model(Path(job.draft_folder))
        draft_ends = end_tokens(draft_config)
    check_imported("mlx", "mlx_lm")
    resident = keep_resident()
    models = Models(target=target, draft=draft, draft_end_tokens=draft_ends)
    load_seconds = time.perf_counter() - start

    start = time.perf_counter()
    check_vector_offsets(target)
    warmup = Request(ids=job.warmup_ids, arm=job.arm, step=job.step, seed=job.seed)
    with prefill(models, warmup) as warmed:
        warmed.decode(warmed.first_token)
    del warmed
    mx.clear_cache()
    warmup_seconds = time.perf_counter() - start

    request = Request(ids=job.ids, arm=job.arm, step=job.step, seed=job.seed)
    gc.collect()
    gc.disable()
    before = machine_state()
    started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
    sleep_before = suspension_clocks()
    paged_before = _paged_in()
    mx.reset_peak_memory()
    mx.synchronize()
    clock_start = time.perf_counter()
    with prefill(models, request) as prefilled:
        seconds = time.perf_counter() - clock_start
        paged_in = _paged_in() - paged_before
        suspended = suspended_between(sleep_before, suspension_clocks())
        peak_mlx = int(mx.get_peak_memory())
        cached_after = cached_tokens(prefilled.cache)
        key_dtype = str(key_caches(prefilled.cache)[0].keys.dtype)
        after = machine_state()

        tokens, steps = [prefilled.first_token], [prefilled.logits]
        decode_start = time.perf_counter()
        ends = end_tokens(config)
        while len(tokens) < job.answer_tokens and tokens[-1] not in ends:
            logits = prefilled.decode(tokens[-1])
            tokens.append(most_likely(logits))
            if job.log_probabilities:
                steps.append(logits)
        decode_seconds = time.perf_counter() - decode_start
        likely = _likelihoods(steps, tokens) if job.log_probabilities else ()
        peak_memory = _peak_memory()
    gc.enable()

    logs = log_probabilities(prefilled.logits)
    mx.eval(logs)
    write_bytes(Path(job.logits_file), bytes(memoryview(logs)))
    evidence = gather_evidence(
        prefilled,
        target,
        needle=job.needle_tokens,
        cached_after=cached_after,
        key_dtype=key_dtype,
        logits_sha256=sha256_file(Path(job.logits_file)),
    )
    forced: list[float] = []
    if job.forced is not None:
        forced = importlib.import_module(CONTINUATION).log_probabilities_after(
            models,
            Request(ids=job.ids, arm=job.forced.arm, step=job.step, seed=job.seed),
            as_positions(job.forced.kept or evidence.kept_ranges),
            job.forced.tokens or tokens,
        )
    return Measurement(
        seconds=seconds,
        phases=_phases(clock_start, prefilled.marks),
        load_seconds=load_seconds,
        warmup_seconds=warmup_seconds,
        ready_seconds=ready_seconds,
        tokens=tuple(tokens),
        answer_log_probabilities=likely,
        forced_log_probabilities=tuple(forced),
        decode_tokens=len(tokens) - 1,
        decode_seconds=decode_seconds,
        peak_memory_bytes=peak_memory,
        peak_mlx_bytes=peak_mlx,
        paged_in_bytes=paged_in,
        outcome=outcome(job.arm, evidence, len(job.ids)),
        evidence=evidence,
        before=before,
        after=after,
        suspended_seconds=suspended,
        started_at=started_at,
        environment={
            **machine_facts(),
            **software_facts(),
            "blas": blas,
            "device": str(mx.default_device()),
            **({} if resident is None else {"resident bytes at most": str(resident)}),
        },
    )


def _likelihoods(steps: list[Any], tokens: list[int]) -> tuple[float, ...]:
    """Natural logarithm of each token's probability, from the logits that it was taken from."""
    from specprefill_repro.prefill.chunked import log_probabilities

    return tuple(float(log_probabilities(logits)[token]) for logits, token in zip(steps, tokens, strict=True))


def _phases(start: float, marks: list[tuple[str, float]]) -> Phases:
    ends = [start, *(clock for _, clock in marks)]
    durations = {name: clock - ends[index] for index, (name, clock) in enumerate(marks)}
    return Phases(**durations)


def _paged_in() -> int:
    """Bytes of the pages that this process had to wait for from disk so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt * resource.getpagesize()


def _peak_memory() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _answer(job: Job, spawned_at: float) -> Answer:
    try:
        return Answer(measurement=measure(job, spawned_at))
    except ReproError as error:
        return Answer(failure=Failure(what=error.what, why=error.why, next=error.next, exit_code=int(error.exit_code)))
    except MemoryError as error:
        return Answer(failure=out_of_memory(error))
    except RuntimeError as error:
        if not says_out_of_memory(str(error)):
            raise
        return Answer(failure=out_of_memory(error))


def main() -> None:
    """Entry point of the worker process."""
    # Whatever a library prints must not mix with the answer: standard output becomes standard error.
    answer_pipe: Any = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    spawned_at, _, content = sys.stdin.buffer.readline().partition(b" ")
    job = Job.model_validate_json(content)
    end_with_pipe(sys.stdin.buffer)
    # The watching thread still reads standard input, so leave without Python's own end, which would wait for it.
    try:
        answer_pipe.write(_answer(job, float(spawned_at)).model_dump_json().encode())
        answer_pipe.flush()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main()
