"""Run one trial: start a worker process, wait for its answer, make the record."""

import os
import signal
import subprocess
import sys
import tempfile
import time

from pydantic import ValidationError

from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.trials.job import Answer, Job, Measurement

MAX_ANSWER_BYTES = 64_000_000
MAX_ERROR_BYTES = 4_000


def run_worker(job: Job, lease: int | None = None) -> Measurement:
    """Start a clean worker process on `job` and wait for it; the wait blocks and uses no CPU.

    Args:
        lease: descriptor of the machine lease, which the worker inherits.

    Raises:
        ReproError: the worker died, or could not measure.
    """
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
        try:
            try:
                process.stdin.write(f"{spawned_at!r} {job.model_dump_json()}\n".encode())
                process.stdin.flush()
            except BrokenPipeError:
                pass  # It died at once; its exit status below says how.
            content = process.stdout.read(MAX_ANSWER_BYTES)
            status = process.wait()
        finally:
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()
        if not content or status != 0:
            errors.seek(max(0, errors.seek(0, os.SEEK_END) - MAX_ERROR_BYTES))
            raise worker_died(status, errors.read().decode(errors="replace"))
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
    passed = ("PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "SPECPREFILL_RUN_PROCESS", "PYTHONPATH")
    return {
        **{name: os.environ[name] for name in passed if name in os.environ},
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
    last = " | ".join(line for line in said.strip().splitlines()[-3:])
    return ReproError(
        f"The process of a trial {how}." + (f" It last printed: {last}" if last else ""),
        why,
        "Run the same command again: finished blocks are kept, the broken one is measured anew. "
        "If it happens again, look at free memory (free -g) or choose shorter prompts.",
        Exit.TRIAL,
    )
