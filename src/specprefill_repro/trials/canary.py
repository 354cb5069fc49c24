"""The canary: the same small work in a process of its own before every block.

A machine that becomes slower shows here too, whatever is measured on it. It takes well under a second, ends before the
first trial begins, and like every sensor it may be missing. `canary_process` is the work itself.
"""

import json
import subprocess
import sys
from datetime import UTC, datetime

from pydantic import ValidationError

from specprefill_repro.schema import Frozen
from specprefill_repro.trials.schema import Canary
from specprefill_repro.trials.trial import worker_environment

LIMIT_SECONDS = 60.0
"""Without a fast BLAS the work takes seconds; after this, it counts as missing."""
MAX_OUTPUT = 100_000


class CanaryWork(Frozen):
    """What the process says."""

    mlx: str
    """Version of MLX."""
    device: str
    blas: str
    product_seconds: float
    product_gflops: float
    """Billions of floating-point operations a second in the product of matrices."""
    prefill_seconds: float


def work(lease: int | None = None) -> CanaryWork | None:
    """Do the work in a process of its own; None when MLX can't be loaded, or the process failed or took too long.

    Args:
        lease: descriptor of the machine lease, which the process inherits.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-m", "specprefill_repro.trials.canary_process"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIMIT_SECONDS,
            check=True,
            env=worker_environment(),
            pass_fds=() if lease is None else (lease,),
        )
        return CanaryWork.model_validate(json.loads(done.stdout[:MAX_OUTPUT]))
    except (OSError, subprocess.SubprocessError, ValueError, ValidationError):
        return None


def canary(lease: int | None = None) -> Canary | None:
    """One reading, for the receipt of a block."""
    started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
    found = work(lease)
    if found is None:
        return None
    return Canary(product_seconds=found.product_seconds, prefill_seconds=found.prefill_seconds, started_at=started_at)
