"""Run one trial: start a worker process, wait for its answer, make the record."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

from pydantic import ValidationError

from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.isolation import isolated
from specprefill_repro.trials.job import Answer, Job, Measurement
from specprefill_repro.trials.memory import WHY, says_out_of_memory

MAX_ANSWER_BYTES = 64_000_000
MAX_ERROR_BYTES = 4_000
LEAST_SECONDS = 2 * 3600.0
SECONDS_A_TOKEN = 2.0
"""A worker that takes longer than this for its prompt, and two hours for all else, hangs. Chosen generously and
not measured: it only has to end a wait that would never end."""


def run_worker(job: Job, lease: int | None = None, limit: float | None = None) -> Measurement:
    """Start a clean worker process on `job` and wait for it; the wait blocks and uses no CPU.

    Args:
        lease: descriptor of the machine lease, which the worker inherits.
        limit: seconds after which the worker is killed; by default two hours and two seconds a prompt token.

    Raises:
        ReproError: the worker died, hung, or could not measure.
    """
    limit = LEAST_SECONDS + SECONDS_A_TOKEN * len(job.ids) if limit is None else limit
    overdue = threading.Event()
    with tempfile.TemporaryFile() as errors:
        spawned_at = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "specprefill_repro.trials.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=worker_environment(),
            pass_fds=() if lease is None else (lease,),
        )
        assert process.stdin is not None and process.stdout is not None

        def end() -> None:
            overdue.set()
            process.kill()

        timer = threading.Timer(limit, end)
        timer.daemon = True
        timer.start()
        try:
            try:
                process.stdin.write(f"{spawned_at!r} {job.model_dump_json()}\n".encode())
                process.stdin.flush()
            except BrokenPipeError:
                pass  # It died at once; its exit status below says how.
            content = process.stdout.read(MAX_ANSWER_BYTES)
            status = process.wait()
        finally:
            timer.cancel()
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()
        if not content or status != 0:
            errors.seek(max(0, errors.seek(0, os.SEEK_END) - MAX_ERROR_BYTES))
            said = errors.read().decode(errors="replace")
            raise worker_hung(limit, said) if overdue.is_set() else worker_died(status, said)
    try:
        answer = Answer.model_validate_json(content)
    except ValidationError as error:
        raise worker_died(status, f"its answer was not valid: {error}") from error
    if answer.measurement is None:
        failure = answer.failure
        raise ReproError(
            failure.what if failure else "A trial gave no measurement.",
            failure.why if failure else "The worker said nothing about why.",
            failure.next if failure else "Run the same command again.",
            Exit(failure.exit_code) if failure else Exit.TRIAL,
        )
    return answer.measurement


def worker_environment() -> dict[str, str]:
    """The environment of a worker: what Python and the system need, nothing that steers a library differently."""
    passed = ("PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "SPECPREFILL_RUN_PROCESS")
    return {
        **isolated({name: os.environ[name] for name in passed if name in os.environ}),
        "PYTHONHASHSEED": "0",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def worker_died(status: int, said: str) -> ReproError:
    """Explain the death of a worker by its exit status and the end of what it printed."""
    if status == -signal.SIGKILL:
        how = "was killed (signal 9)"
        why = "Something outside ended it; when memory runs out, the system does exactly that."
    elif status < 0:
        how = f"died of signal {-status} ({signal.Signals(-status).name})"
        why = "A fault inside a native library, or somebody ended it."
    else:
        how = f"ended with status {status} and without an answer"
        why = "An error that this package does not foresee."
    if says_out_of_memory(said):
        why = WHY
    return ReproError(
        f"The process of a trial {how}.{_last_words(said)}",
        why,
        "Run the same command again: finished blocks are kept, the broken one is measured anew. "
        "If it happens again, look at free memory (free -g) or choose shorter prompts.",
        Exit.TRIAL,
    )


def worker_hung(limit: float, said: str) -> ReproError:
    """Explain that a worker was killed after `limit` seconds, with the end of what it printed."""
    return ReproError(
        f"The process of a trial gave no answer in {limit:,.0f} seconds and was ended.{_last_words(said)}",
        "It hangs, in a driver or on a disk that does not answer; or the machine swaps and hardly moves.",
        "Run the same command again: finished blocks are kept, the broken one is measured anew. "
        "If it happens again, choose a smaller pair or shorter prompts in the study.",
        Exit.TRIAL,
    )


def _last_words(said: str) -> str:
    last = " | ".join(said.strip().splitlines()[-3:])
    return f" It last printed: {last}" if last else ""
