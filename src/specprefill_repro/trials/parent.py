"""A process that must not outlive the one it works for."""

import ctypes
import os
import signal
import sys
import threading
from pathlib import Path
from typing import BinaryIO

import psutil

from specprefill_repro.isolation import isolated

RUN_PROCESS = "SPECPREFILL_RUN_PROCESS"
"""Environment variable: process id and start time of the run that everything below it belongs to."""


def name_run(process: int) -> str:
    """Value of RUN_PROCESS for a process; its start time tells it from a later one with the same id."""
    return f"{process} {_started(process)}"


def _started(process: int) -> str:
    """When a process started, by a clock that nobody sets; raises NoSuchProcess when there is none.

    On Linux psutil adds the time of booting, which moves when the system's clock is set or a virtual machine goes on.
    """
    if sys.platform.startswith("linux"):
        try:
            # The name, in parentheses, may hold anything; the 20th field after it is the start in ticks since booting.
            return Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
        except (FileNotFoundError, ProcessLookupError) as error:
            raise psutil.NoSuchProcess(process) from error
    return str(psutil.Process(process).create_time())


def lead_run() -> None:
    """Make this process the run that its jobs belong to, unless one is named already.

    Jobs also find the commands of this process's environment first, whatever else is installed, and import nothing
    else.
    """
    settings = isolated(os.environ)
    for name in os.environ.keys() - settings.keys():
        del os.environ[name]
    os.environ.update(settings)
    os.environ.setdefault(RUN_PROCESS, name_run(os.getpid()))
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"


def end_with_run() -> None:
    """End this process as soon as the run named in the environment has ended."""
    if named := os.environ.get(RUN_PROCESS):
        end_with(named)


def end_with(named: str) -> None:
    """End this process as soon as the one that `name_run` named has ended; wakes only then, never polls."""
    identity, _, started = named.partition(" ")
    threading.Thread(target=_wait_and_exit, args=(int(identity), started), daemon=True).start()


def _wait_and_exit(identity: int, started: str) -> None:
    try:
        process = psutil.Process(identity)
        if _started(identity) == started:
            process.wait()
    except psutil.NoSuchProcess:
        pass
    _end_now()


def end_with_pipe(pipe: BinaryIO) -> None:
    """End this process as soon as the other end of `pipe` is closed, which the death of its holder does.

    Linux also gets a signal from the kernel, so that it ends even inside a long computation.
    """
    if sys.platform.startswith("linux"):
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)

    def wait() -> None:
        while pipe.read(1):
            pass
        _end_now()

    threading.Thread(target=wait, daemon=True).start()


def _end_now() -> None:
    os._exit(3)
