"""Run pip or uv: bounded in time, and never showing the password of a package index."""

import subprocess
from collections.abc import Mapping, Sequence

import psutil

from specprefill_repro.errors import Exit, ReproError, without_password

LIMIT_SECONDS = 1800.0


def run_installer(
    command: Sequence[str],
    what: str,
    environment: Mapping[str, str] | None = None,
    limit: float = LIMIT_SECONDS,
) -> tuple[int, str]:
    """Run a command to its end; return its exit status and what it wrote to standard error, without passwords.

    Args:
        what: what is done, as in "Could not WHAT".
        environment: of the command; by default ours.
        limit: seconds after which it is ended, and the processes that it started.

    Raises:
        ReproError: it did not end in time.
    """
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=environment,
    ) as process:
        try:
            _, said = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired as error:
            raise ReproError(
                f"Could not {what}: it was not done after {limit:,.0f} seconds and was ended.",
                "The network or the package index hardly moves, or the disk does not answer.",
                "Check the network and df -h ., then run the same command again.",
                Exit.ENVIRONMENT,
            ) from error
        finally:
            if process.poll() is None:
                _end(process)
    return process.returncode, without_password(said)


def _end(process: "subprocess.Popen[str]") -> None:
    """uv runs pip in a process of its own, which would outlive it."""
    try:
        family = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        family = []
    process.kill()
    for child in family:
        try:
            child.kill()
        except psutil.NoSuchProcess:
            continue
