"""Start and kill a server 100 times, in every way it can end, and count the processes left.

    python benchmarks/server_cycles.py [CYCLES]

Each cycle starts the stand-in of tests/ through the real keeper, waits until it is ready, asks it one question in every
second cycle, and ends it as a turn of: asked to stop, killed from outside, its keeper killed, deaf to SIGTERM, with a
child left behind, with a child in a session of its own. Ends with status 1 when anything is left.
"""

import collections
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import psutil

from specprefill_repro.engines.chat import ask
from specprefill_repro.engines.keeper import MARK
from specprefill_repro.engines.server import Limits, free_port, running_server, server_environment
from specprefill_repro.errors import ReproError

STAND_IN = Path(__file__).resolve().parent.parent / "tests" / "stand_in_server.py"
LIMITS = Limits(ready=60, answer=60, stop=1)
WAYS = ("asked", "killed", "keeper killed", "deaf", "child", "detached child")
FAULTS = {"deaf": "ignores-sigterm", "child": "leaves-child", "detached child": "leaves-detached-child"}


def main(cycles: int) -> int:
    mark = f"cycles-{os.getpid()}"
    counted: collections.Counter[str] = collections.Counter()
    left_by: collections.Counter[str] = collections.Counter()
    begin = time.perf_counter()
    for number in range(cycles):
        way = WAYS[number % len(WAYS)]
        counted[way] += 1
        try:
            cycle(way, mark, number % 2 == 0)
        except ReproError as error:
            if way not in ("killed", "keeper killed"):
                raise
            print(f"cycle {number} ({way}): {error.what[:100]}", file=sys.stderr)
        # What was killed may take a moment to be gone.
        deadline = time.monotonic() + 5
        while (found := left(mark)) and time.monotonic() < deadline:
            time.sleep(0.05)
        left_by[way] += len(found)
        for process in found:
            print(f"cycle {number} ({way}) left {process.pid}: {process.cmdline()}", file=sys.stderr)
            process.kill()
    seconds = time.perf_counter() - begin
    for way in WAYS:
        print(f"{way:15} {counted[way]:4} cycles, {left_by[way]} processes left")
    print(f"{cycles} cycles in {seconds:.0f} s, {sum(left_by.values())} processes left")
    return 1 if sum(left_by.values()) else 0


def cycle(way: str, mark: str, question: bool) -> None:
    """One server, from start to end."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder, port = Path(name), free_port()
        (folder / "model").mkdir()
        (folder / "model" / "config.json").write_text(json.dumps({"model_type": "llama"}))
        fault = ["--fault", FAULTS[way]] if way in FAULTS else []
        command = [sys.executable, str(STAND_IN), *fault, "serve", str(folder / "model"), "--port", str(port)]
        environment = {**server_environment(folder), "SERVER_CYCLES": mark}
        with running_server(command, environment, folder, port, LIMITS) as server:
            server.wait_until_ready()
            if question:
                body = {"model": str(folder / "model"), "messages": [{"role": "user", "content": "x"}], "stream": True}
                ask(port, {**body, "stream_options": {"include_usage": True}}, 30)
            if way == "killed":
                os.kill(server.pid or 0, signal.SIGKILL)
            elif way == "keeper killed":
                psutil.Process(server.pid).parent().kill()


def left(mark: str) -> list[psutil.Process]:
    """Processes that a server of this run started, or was."""
    found = []
    for process in psutil.process_iter():
        try:
            environment = process.environ()
        except (psutil.Error, OSError):
            continue
        if environment.get("SERVER_CYCLES") == mark and MARK in environment:
            found.append(process)
    return found


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100))
