"""A server that runs for one trial: started, waited for, listened to, ended; never left behind.

`running_server` is the only way to have one. The keeper (keeper.py) stands between it and this process.
"""

import http.client
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specprefill_repro.engines.keeper import End, Order
from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.isolation import isolated

HOST = "127.0.0.1"
ATTEMPT_SECONDS = 2.0
"""For one try to reach the server while it starts."""
BETWEEN_ATTEMPTS = 0.1
LAST_LINES = 3
PORT_TAKEN = ("address already in use", "Address already in use", "error while attempting to bind")


@dataclass(frozen=True)
class Limits:
    """How long each step may take, in seconds, and how much a server may print."""

    ready: float = 1800.0
    """Loading a model of 100 GB from a slow disk takes minutes."""
    answer: float = 7200.0
    stop: float = 20.0
    log_bytes: int = 20_000_000


def free_port() -> int:
    """A TCP port of the loopback interface on which nobody listens now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


@contextmanager
def connection(port: int, seconds: float) -> Iterator[http.client.HTTPConnection]:
    """A connection to a server on this machine that is cut after so many seconds, however many bytes still come.

    Raises:
        TimeoutError: it was cut before this context was left.
        OSError: nobody listens.
    """
    made = http.client.HTTPConnection(HOST, port, timeout=seconds)
    made.connect()
    wire, cut = made.sock, threading.Event()

    def expire() -> None:
        cut.set()
        try:
            wire.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

    # A time-out of the socket starts anew with every byte.
    clock = threading.Timer(seconds, expire)
    clock.daemon = True
    clock.start()
    try:
        yield made
    except Exception as error:
        if cut.is_set():
            raise TimeoutError(f"no whole answer within {seconds:g} seconds") from error
        raise
    finally:
        clock.cancel()
        made.close()
    if cut.is_set():
        raise TimeoutError(f"no whole answer within {seconds:g} seconds")


def server_environment(home: Path) -> dict[str, str]:
    """What a server gets of our environment: no home of the user's, no network, nothing that steers a library."""
    passed = ("PATH", "TMPDIR", "LANG", "LC_ALL")
    return {
        **{name: os.environ[name] for name in passed if name in os.environ},
        "HOME": str(home),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "DO_NOT_TRACK": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONHASHSEED": "0",
        "PYTHONNOUSERSITE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
    }


class Server:
    """A server in its keeper's hands."""

    def __init__(self, keeper: "subprocess.Popen[bytes]", log: Path, port: int, limits: Limits) -> None:
        self._keeper, self._log, self._limits = keeper, log, limits
        self._heard = b""
        self.port = port
        self.pid: int | None = None
        self.end: End | None = None

    def wait_until_ready(self, path: str = "/health") -> None:
        """Wait until the server answers a GET of `path` with status 200.

        Raises:
            ReproError: it ended instead, printed too much, or did not answer in time.
        """
        deadline = time.monotonic() + self._limits.ready
        while time.monotonic() < deadline:
            if self.listen(BETWEEN_ATTEMPTS):
                raise self.died("before it was ready")
            try:
                with connection(self.port, ATTEMPT_SECONDS) as asked:
                    asked.request("GET", path)
                    if asked.getresponse().status == http.client.OK:
                        return
            except (OSError, http.client.HTTPException):
                continue
        raise ReproError(
            f"The server was not ready after {self._limits.ready:g} seconds.{self._last_words()}",
            "It hangs while it loads the model, or this machine is too slow or too full for it.",
            "Look at free memory (free -g), then run the same command again.",
            Exit.TRIAL,
        )

    def mark(self) -> int:
        """Size of the log in bytes, everything included that the server has printed until now.

        Raises:
            ReproError: the server has ended.
        """
        self._tell(b"mark\n")
        while True:
            event = self._event(60.0)
            if event is None:
                raise self.died("while it was measured")
            if "mark" in event:
                return int(event["mark"])

    def log(self, start: int = 0, end: int | None = None) -> str:
        """What the server has printed, from one mark to another."""
        content = self._log.read_bytes()[start:end]
        return content.decode(errors="replace")

    def holds(self, library: str | None) -> bool:
        """Whether the server's process has loaded a library, as far as the system tells; True where it does not."""
        maps = Path(f"/proc/{self.pid}/maps")
        if library is None or not maps.exists():
            return True
        return str(Path(library).resolve()) in maps.read_text()

    def stop(self) -> End:
        """End the server and everything that it started; returns when nothing is left."""
        if self.end is None:
            self._tell(b"stop\n")
            patience = time.monotonic() + self._limits.stop + 60.0
            while self.end is None and self._event(patience - time.monotonic()) is not None:
                pass
        if self.end is None:
            # It was killed itself; on Linux the server has ended with it.
            self.end = End(status=-9, asked=False, too_much=False, stubborn=True, left=0, peak_bytes=0)
        return self.end

    def died(self, when: str) -> "ServerDied":
        """Why the server is gone, from how it ended and what it printed last."""
        end = self.stop()
        last = self._last_words()
        if end.too_much:
            return ServerDied(
                f"The server printed more than {self._limits.log_bytes:,} bytes {when} and was ended.{last}",
                "It repeats a message without end, or logs every step.",
                "Lower its log level, or use another version of it.",
                Exit.TRIAL,
            )
        if any(words in self.log() for words in PORT_TAKEN):
            return PortTaken(
                f"The server could not listen on port {self.port} of {HOST}, since another program took it.{last}",
                "The port was free a moment before; another program was faster.",
                "Run the same command again; another port is then chosen.",
                Exit.TRIAL,
            )
        return ServerDied(
            f"The server ended {end.how} {when}.{last}",
            "Something outside ended it; when memory runs out, the system does exactly that."
            if end.status == -9
            else "Its last lines say why: a model that it can't load, a library that does not fit, a fault of its own.",
            "Run the same command again: finished blocks are kept. If it happens again, look at free memory (free -g).",
            Exit.TRIAL,
        )

    def _last_words(self) -> str:
        lines = [line.strip() for line in self.log().splitlines() if line.strip()][-LAST_LINES:]
        return f" It last printed: {' | '.join(line[:300] for line in lines)}" if lines else " It printed nothing."

    def _tell(self, command: bytes) -> None:
        assert self._keeper.stdin is not None
        try:
            self._keeper.stdin.write(command)
        except OSError:
            return  # It has ended, and its last event says how.

    def listen(self, seconds: float) -> bool:
        """Hear what the keeper says within so many seconds; true when the server has ended."""
        assert self._keeper.stdout is not None
        ready, _, _ = select.select([self._keeper.stdout], [], [], seconds)
        if ready:
            self._event(0.0)
        return self.end is not None

    def _event(self, seconds: float) -> dict[str, Any] | None:
        """The keeper's next event; None when there is none in time, or no more to come."""
        assert self._keeper.stdout is not None
        deadline = time.monotonic() + seconds
        while b"\n" not in self._heard:
            ready, _, _ = select.select([self._keeper.stdout], [], [], max(0.0, deadline - time.monotonic()))
            block = os.read(self._keeper.stdout.fileno(), 1 << 16) if ready else b""
            if not block:
                return None
            self._heard += block
        line, _, self._heard = self._heard.partition(b"\n")
        event: dict[str, Any] = json.loads(line)
        if "status" in event:
            self.end = End(**event)
        if "started" in event:
            self.pid = int(event["started"])
        return event


class ServerDied(ReproError):
    """The server has ended by itself."""


class PortTaken(ServerDied):
    """Another program took the port between the moment it was found free and the server's start."""


@contextmanager
def running_server(
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    port: int,
    limits: Limits,
    lease: int | None = None,
) -> Iterator[Server]:
    """Start a server; it and everything that it started have ended when this context is left, however that happens.

    Args:
        folder: private to this server; it runs there, and its log is written to `server.log` in it.
        port: what `command` tells it to listen on.
        lease: descriptor of the machine lease, which the server inherits.
    """
    log = folder / "server.log"
    log.touch()
    inherit = () if lease is None else (lease,)
    order = Order(
        command=tuple(command),
        environment=dict(environment),
        folder=str(folder),
        log=str(log),
        log_bytes=limits.log_bytes,
        stop_seconds=limits.stop,
        inherit=inherit,
    )
    keeper = subprocess.Popen(
        [sys.executable, "-m", "specprefill_repro.engines.keeper"],
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        env=isolated(os.environ),
        pass_fds=inherit,
    )
    assert keeper.stdin is not None and keeper.stdout is not None
    server = Server(keeper, log, port, limits)
    try:
        server._tell(json.dumps(asdict(order)).encode() + b"\n")
        yield server
    finally:
        try:
            server.stop()
        finally:
            keeper.stdin.close()
            try:
                keeper.wait(timeout=limits.stop + 60)
            except subprocess.TimeoutExpired:
                keeper.kill()
                keeper.wait()
            keeper.stdout.close()
