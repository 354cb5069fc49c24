"""Servers that behave badly: every wait is bounded, the reason is named, and nothing is left running."""

import dataclasses
import gzip
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from specprefill_repro.engines import server_trial
from specprefill_repro.engines.chat import ask
from specprefill_repro.engines.keeper import MARK, Order
from specprefill_repro.engines.server import HOST, Limits, Server, free_port, running_server, server_environment
from specprefill_repro.engines.server_log import cleaned, keep_log
from specprefill_repro.errors import Exit, ReproError
from vllm_mlx_stand_in import PROMPT, installed, make_job, measured, stand_in, write_model

SHORT = Limits(ready=20.0, answer=3.0, stop=5.0, log_bytes=300_000)


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("models")
    return write_model(folder / "target"), write_model(folder / "draft")


@pytest.fixture
def job(models, tmp_path, monkeypatch):
    installed(monkeypatch)
    return make_job(tmp_path, *models)


@pytest.fixture(autouse=True)
def nothing_is_left():
    """No process that a keeper started, and no keeper, outlives a test."""
    yield
    # A keeper whose parent was killed may still be about to end.
    deadline = time.monotonic() + 10
    while left_running() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left_running() == []


def left_running() -> list[str]:
    found = []
    for process in psutil.process_iter():
        try:
            mine = process.environ().get("SPECPREFILL_TEST") == str(os.getpid())
            if (MARK in process.environ() and mine) or (
                mine and "specprefill_repro.engines.keeper" in process.cmdline()
            ):
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found


@pytest.fixture(autouse=True)
def _marked(monkeypatch):
    """Tells this test run's servers from those of whoever else uses the machine."""
    monkeypatch.setenv("SPECPREFILL_TEST", str(os.getpid()))
    before = server_environment
    named = {"SPECPREFILL_TEST": str(os.getpid())}
    monkeypatch.setattr(server_trial, "server_environment", lambda home: {**before(home), **named})


BEHAVIOURS = {
    "crashes-at-start": r"ended with status 1 before it was ready\. It last printed: .*libmlx\.dylib",
    "dies-mid-answer": r"not whole: .*; 1 pieces of text had come\. The server had ended with status 137",
    "dies-slowly": r"not whole: .*; 1 pieces of text had come\. The server had ended with status 137",
    "hangs": r"The server hangs: no text came within 3 seconds",
    "half-event": r"can't be used: .*inside an event|not whole: the connection broke",
    "not-json": r"an event is not JSON",
    "other-model": r"comes from the model 'another-model', not from 'target'",
    "no-content": r"the answer holds no text",
    "no-finish": r"the stream ended before its end mark",
    "no-usage": r"does not say how many prompt tokens it read",
    "error-event": r"the server reports an error: .*process memory limit exceeded",
    "refuses": r"refused the request with status 400: .*Prompt too long",
    "floods-log": r"printed more than 300,000 bytes while it answered and was ended",
}


@pytest.mark.parametrize("fault", BEHAVIOURS)
def test_a_server_that_behaves_badly_is_a_failed_trial_with_its_reason(fault, job, capfd):
    with pytest.raises(ReproError, match=BEHAVIOURS[fault]) as error:
        measured(stand_in("0.2.9", faults=(fault,)), job, SHORT)
    assert error.value.exit_code is Exit.TRIAL
    log = capfd.readouterr().err
    assert "SimpleEngine loaded" in log or fault == "crashes-at-start"
    assert job.target_folder not in log + str(error.value)


@pytest.mark.parametrize("fault", ["never-ready", "unhealthy"])
def test_a_server_that_never_becomes_ready_is_waited_for_only_so_long(fault, job):
    limits = Limits(ready=2.0, stop=5.0)
    with pytest.raises(ReproError, match="not ready after 2 seconds"):
        measured(stand_in("0.2.9", faults=(fault,)), job, limits)


@pytest.mark.parametrize("fault", ["ignores-sigterm", "leaves-child", "leaves-detached-child"])
def test_whatever_it_leaves_is_ended_with_it(fault, job):
    limits = Limits(ready=20.0, answer=20.0, stop=0.5)
    assert measured(stand_in("0.2.9", faults=(fault,)), job, limits).outcome == "sparse"


def test_heartbeats_and_empty_chunks_are_no_first_token(job):
    slow = ("--prompt-tokens", str(PROMPT), "--cost", "0.0005")
    seen = measured(stand_in("0.2.9", faults=("heartbeats",), own=slow), job)
    # Scoring takes a quarter of a prefill, then 183 tokens are read: at least 0.16 s, asleep and not busy.
    assert seen.seconds > 0.16 and seen.evidence.first_text


def test_a_taken_port_is_another_try_on_another_port(job, monkeypatch):
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        ports = iter([taken.getsockname()[1], free_port()])
        monkeypatch.setattr(server_trial, "free_port", lambda: next(ports))
        assert measured(stand_in("0.2.9"), job).outcome == "sparse"


def test_a_port_that_is_taken_again_and_again_is_named(job, monkeypatch):
    monkeypatch.setattr(server_trial, "STARTS", 1)
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        monkeypatch.setattr(server_trial, "free_port", lambda: taken.getsockname()[1])
        with pytest.raises(ReproError, match="could not listen on port"):
            measured(stand_in("0.2.9"), job, Limits(ready=20.0, stop=5.0))


def test_a_command_that_does_not_exist_is_named(tmp_path):
    port = free_port()
    with (
        pytest.raises(ReproError, match="no-such-server could not be started"),
        running_server(["no-such-server"], server_environment(tmp_path), tmp_path, port, SHORT) as server,
    ):
        server.wait_until_ready()


SLEEPER = "import subprocess, sys, time; subprocess.Popen(['sleep', '600'], start_new_session=True); time.sleep(600)"


def test_a_killed_parent_takes_server_and_children_with_it(tmp_path):
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from specprefill_repro.engines.server import Limits, running_server, server_environment\n"
        f"folder = Path({str(tmp_path)!r})\n"
        f"with running_server([sys.executable, '-c', {SLEEPER!r}], server_environment(folder), folder, 1, "
        "Limits(stop=5.0)) as server:\n"
        "    server.mark()\n"
        "    print(server.pid, flush=True)\n"
        "    time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    server = psutil.Process(int(parent.stdout.readline()))
    deadline = time.monotonic() + 20
    while not server.children() and time.monotonic() < deadline:
        time.sleep(0.05)
    family = [server, *server.children()]
    assert len(family) == 2
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert psutil.wait_procs(family, timeout=20)[1] == []


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux ends a child with its parent")
def test_a_killed_keeper_takes_the_server_with_it(tmp_path):
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    with running_server(command, server_environment(tmp_path), tmp_path, 1, SHORT) as server:
        server.mark()
        process = psutil.Process(server.pid)
        process.parent().kill()
        assert psutil.wait_procs([process], timeout=10)[1] == []
        assert server.stop().stubborn


def test_marks_cut_the_log_exactly(tmp_path):
    code = "import sys, time\nprint('one')\nsys.stdout.write('half')\nsys.stdout.flush()\ntime.sleep(600)"
    with running_server([sys.executable, "-c", code], server_environment(tmp_path), tmp_path, 1, SHORT) as server:
        deadline = time.monotonic() + 20
        while server.mark() < 8 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert server.log(0, 4) == "one\n" and server.log(4) == "half"
        end = server.stop()
    assert (end.asked, end.stubborn, end.left) == (True, False, 0) and end.peak_bytes > 1_000_000


SLOW_TO_END = """
import signal, time
def end(*_):
    time.sleep(1.5)
    raise SystemExit(0)
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
time.sleep(600)
"""


def test_a_server_that_takes_its_time_to_end_is_waited_for(tmp_path):
    """Its memory is known only then; real ones take seconds."""
    command = [sys.executable, "-c", SLOW_TO_END]
    with running_server(command, server_environment(tmp_path), tmp_path, 1, SHORT) as server:
        until_printed(server, "ready")
        end = server.stop()
    assert (end.status, end.asked, end.stubborn) == (0, True, False) and end.peak_bytes > 1_000_000


STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); print('x' * 2000, flush=True); time.sleep(600)"


def test_a_keeper_whose_parent_is_gone_does_not_spin_while_a_stubborn_server_ends(tmp_path):
    seconds = 3.0
    order = Order(
        command=(sys.executable, "-c", STUBBORN),
        environment=server_environment(tmp_path),
        folder=str(tmp_path),
        log=str(tmp_path / "log"),
        log_bytes=1000,
        stop_seconds=seconds,
    )
    keeper = subprocess.Popen(
        [sys.executable, "-m", "specprefill_repro.engines.keeper"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert keeper.stdin is not None and keeper.stdout is not None
    keeper.stdin.write(json.dumps(dataclasses.asdict(order)).encode() + b"\n")
    keeper.stdin.flush()
    assert b"started" in keeper.stdout.readline()
    deadline = time.monotonic() + 20
    while (tmp_path / "log").stat().st_size < 1000 and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.2)  # The server has printed too much, and is being ended.
    before = psutil.Process(keeper.pid).cpu_times()
    keeper.stdin.close()
    end = json.loads(keeper.stdout.readline())
    keeper.stdout.close()
    assert end["stubborn"] and end["too_much"]
    _, _, used = os.wait4(keeper.pid, 0)
    assert used.ru_utime + used.ru_stime - before.user - before.system < seconds / 6


def until_printed(server: Server, text: str) -> None:
    deadline = time.monotonic() + 20
    while text not in server.log(0, server.mark()) and time.monotonic() < deadline:
        time.sleep(0.05)


def test_a_server_gets_no_home_no_network_and_nothing_else_of_ours(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_" + "a" * 30)
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    found = server_environment(tmp_path)
    assert found["HOME"] == str(tmp_path) and found["HF_HUB_OFFLINE"] == "1"
    assert "HF_TOKEN" not in found and "PYTHONPATH" not in found


def test_a_kept_log_holds_no_secret_and_no_private_path(tmp_path):
    key = "0123456789abcdef"
    text = f"key {key} at {Path.home()}/models/x, Authorization: Bearer abcdefgh12345678, hf_{'A' * 30}\n"
    kept = cleaned(text, {key: "[key]"})
    assert key not in kept and str(Path.home()) not in kept and "abcdefgh1234" not in kept and "AAAA" not in kept


def test_a_kept_log_is_small_and_the_same_text_gives_the_same_bytes(tmp_path):
    text = "x" * 5_000_000 + "the end"
    first, second = keep_log(tmp_path / "a.gz", text), keep_log(tmp_path / "b.gz", text)
    assert first == second
    unpacked = gzip.decompress((tmp_path / "a.gz").read_bytes()).decode()
    assert len(unpacked) < 4_000_100 and "1,000,007 characters left out" in unpacked and unpacked.endswith("the end")


def test_nobody_answers_on_a_closed_port():
    with pytest.raises(ReproError, match="not whole: the connection broke"):
        ask(free_port(), {"model": "target"}, 2.0)
