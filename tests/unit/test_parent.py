"""A job ends with its run, and with nothing else."""

import os
import subprocess
import sys
import time

import psutil
import pytest

from specprefill_repro.trials import parent

WAITS = "from specprefill_repro.trials.parent import end_with_run; import time; end_with_run(); time.sleep(600)"


@pytest.fixture
def job(monkeypatch):
    started = []

    def start(named: str) -> "subprocess.Popen[bytes]":
        environment = {**os.environ, parent.RUN_PROCESS: named}
        started.append(subprocess.Popen([sys.executable, "-c", WAITS], env=environment))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_a_job_ends_with_its_run_and_not_before(job):
    run = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    below = job(parent.name_run(run.pid))
    time.sleep(1.0)
    assert below.poll() is None
    run.kill()
    run.wait()
    assert below.wait(timeout=20) == 3


def test_a_later_process_with_the_same_id_is_not_the_run(job):
    assert job(f"{os.getpid()} 1").wait(timeout=20) == 3


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere the system notes the time itself")
def test_a_clock_that_is_set_ends_nothing(monkeypatch):
    before = parent.name_run(os.getpid())
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: time.time() + 3600)
    assert parent.name_run(os.getpid()) == before
