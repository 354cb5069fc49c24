"""The process between an engine and its server: `python -m specprefill_repro.engines.keeper`.

It starts the server in a session of its own, writes what the server prints to a file of limited size, and ends the
server and all its descendants: when it is told to, when the server has ended or printed too much, and when whoever
started it is gone, however that ended. Nothing that the server started outlives it, not even what left its session: on
Linux orphans come back to this process (PR_SET_CHILD_SUBREAPER), elsewhere they are found by a mark in their
environment. It wakes for events alone, so that it disturbs no measurement.

Standard input: one line with an `Order`, then lines `mark` or `stop`; closing it means `stop`.
Standard output, a JSON object a line: {"started": PID}; {"mark": SIZE_OF_THE_LOG} for each `mark`; last an `End`.
"""

import ctypes
import json
import os
import resource
import selectors
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import psutil

MARK = "SPECPREFILL_SERVER"
"""Environment variable of the server and, by inheritance, of all that it starts."""
LINUX = sys.platform.startswith("linux")
BLOCK = 1 << 16
BLOCKS_AT_ONCE = 64
"""More than a pipe holds, so that what was printed before a `mark` is in the file; and not endless."""


@dataclass(frozen=True)
class Order:
    """What to run, and how long to be patient."""

    command: tuple[str, ...]
    environment: dict[str, str]
    folder: str
    """Where the server runs."""
    log: str
    """File that gets its standard output and standard error."""
    log_bytes: int
    """A server that prints more is ended."""
    stop_seconds: float
    """From SIGTERM to SIGKILL."""
    inherit: tuple[int, ...] = ()
    """File descriptors that the server holds on: the machine lease."""


@dataclass(frozen=True)
class End:
    """How it ended."""

    status: int
    """As of subprocess: negative for a signal."""
    asked: bool
    """False: the server ended by itself."""
    too_much: bool
    """It printed more than `log_bytes`."""
    stubborn: bool
    """It did not end on SIGTERM."""
    left: int
    """Processes that it had left behind, and that were killed."""
    peak_bytes: int
    """Largest resident size of one of its processes."""

    @property
    def how(self) -> str:
        """Such as `with status 1`."""
        return f"with status {self.status}" if self.status >= 0 else f"of signal {-self.status}"


class Keeper:
    def __init__(self, order: Order, log: IO[bytes]) -> None:
        self.order, self.log, self.written, self.too_much = order, log, 0, False
        # The time tells what this keeper started from what an earlier one with the same process id did.
        self.mark = f"{os.getpid()} {time.time_ns()}"
        self.signals, wakeup = os.pipe()
        for end in (self.signals, wakeup):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wakeup)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        self.server = subprocess.Popen(
            order.command,
            cwd=order.folder,
            env={**order.environment, MARK: self.mark},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=order.inherit,
            preexec_fn=_die_with_parent if LINUX else None,
        )
        assert self.server.stdout is not None
        self.pipe = self.server.stdout.fileno()
        os.set_blocking(self.pipe, False)
        self.events = selectors.DefaultSelector()
        self.events.register(self.pipe, selectors.EVENT_READ)
        self.events.register(self.signals, selectors.EVENT_READ)

    def keep(self, commands: int, told: bytes) -> End:
        """Obey the commands `told` so far and those that come through the descriptor `commands`, until the end."""
        if not told or not self.obey(told):
            self.events.register(commands, selectors.EVENT_READ)
            self._wait(commands)
            # A pipe whose other end is closed would wake this again and again while the server ends.
            self.events.unregister(commands)
        return self.stop()

    def _wait(self, commands: int) -> None:
        """Return when it is time to stop."""
        while True:
            for key, _ in self.events.select():
                if key.fd == self.pipe:
                    self.drain()
                    if self.too_much:
                        return
                elif key.fd == self.signals:
                    if self.server.poll() is not None or signal.SIGTERM in os.read(self.signals, BLOCK):
                        return
                elif self.obey(os.read(commands, BLOCK)):
                    return

    def obey(self, told: bytes) -> bool:
        """Answer each `mark`; true when it is time to stop. A command is shorter than what a pipe keeps together."""
        for line in told.splitlines():
            if line == b"mark":
                self.drain()
                _say(json.dumps({"mark": self.written}))
        return not told or b"stop" in told

    def drain(self) -> None:
        """Write what the server has printed so far; what is too much is read and dropped."""
        for _ in range(BLOCKS_AT_ONCE):
            try:
                block = os.read(self.pipe, BLOCK)
            except BlockingIOError:
                return
            if not block:
                if self.pipe in self.events.get_map():
                    self.events.unregister(self.pipe)
                return
            room = self.order.log_bytes - self.written
            self.written += self.log.write(block[:room])
            self.too_much = self.too_much or len(block) > room

    def stop(self) -> End:
        """End the server and all that it started."""
        asked = self.server.poll() is None
        self._signal_group(signal.SIGTERM)
        deadline = time.monotonic() + self.order.stop_seconds
        while self.server.poll() is None and (left := deadline - time.monotonic()) > 0:
            # A server that prints could not end if nobody read.
            for key, _ in self.events.select(left):
                if key.fd == self.pipe:
                    self.drain()
                elif key.fd == self.signals:
                    os.read(self.signals, BLOCK)
        stubborn = self.server.poll() is None
        self._signal_group(signal.SIGKILL)
        self.server.wait()
        left_behind = self._kill_family()
        self.drain()
        return End(
            status=self.server.returncode,
            asked=asked and not self.too_much,
            too_much=self.too_much,
            stubborn=stubborn,
            left=left_behind,
            peak_bytes=_peak_bytes(),
        )

    def _signal_group(self, number: int) -> None:
        try:
            os.killpg(self.server.pid, number)
        except (ProcessLookupError, PermissionError):
            return  # Nobody is left in it.

    def _kill_family(self) -> int:
        """Kill whatever the server started and left; a family can grow meanwhile. Return how many there were."""
        killed: set[int] = set()
        for _ in range(50):
            family = self._family()
            if not family:
                break
            for process in family:
                killed.add(process.pid)
                try:
                    process.kill()
                except psutil.Error:
                    continue
            psutil.wait_procs(family, timeout=1)
        return len(killed)

    def _family(self) -> list[psutil.Process]:
        if LINUX:
            return [p for p in psutil.Process().children(recursive=True) if _runs(p)]
        return [process for process in psutil.process_iter() if self._is_marked(process)]

    def _is_marked(self, process: psutil.Process) -> bool:
        try:
            return bool(process.environ().get(MARK) == self.mark) and process.pid != os.getpid()
        except (psutil.Error, OSError):
            return False


def _runs(process: psutil.Process) -> bool:
    """Whether it is more than the remains of an orphan, which are cleared away here."""
    try:
        if process.status() != psutil.STATUS_ZOMBIE:
            return True
        process.wait(timeout=0)
    except psutil.Error:
        pass
    return False


def _die_with_parent() -> None:
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


def _adopt_orphans() -> None:
    set_child_subreaper = 36
    ctypes.CDLL(None).prctl(set_child_subreaper, 1)


def _peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _say(line: str) -> None:
    try:
        os.write(1, line.encode() + b"\n")
    except OSError:
        return  # Nobody listens any more; the server is ended all the same.


def main() -> None:
    """Entry point of the keeper."""
    told = b""
    while b"\n" not in told:
        block = os.read(0, BLOCK)
        if not block:
            return
        told += block
    line, _, told = told.partition(b"\n")
    order = Order(**json.loads(line))
    if LINUX:
        _adopt_orphans()
    with Path(order.log).open("wb", buffering=0) as log:
        try:
            keeper = Keeper(order, log)
        except OSError as error:
            log.write(f"{order.command[0]} could not be started: {error.strerror}\n".encode())
            end = End(status=127, asked=False, too_much=False, stubborn=False, left=0, peak_bytes=0)
            _say(json.dumps(asdict(end)))
            return
        _say(json.dumps({"started": keeper.server.pid}))
        end = keeper.keep(0, told)
    _say(json.dumps(asdict(end)))


if __name__ == "__main__":
    main()
