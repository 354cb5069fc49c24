"""A run that is killed at any moment goes on with the same command: nothing finished is lost or measured again."""

import os
import random
import signal
import subprocess
import sys
import time

import psutil
import pytest

from small_project import command, environment, make_small_project, planned_outputs


def tree(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def start(root):
    return subprocess.Popen(
        [sys.executable, "-m", "specprefill_repro", "run", "tiny"],
        cwd=root,
        env=environment(root),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def receipts(root) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (root / "results/store/blocks").glob("*.json")}


def records(root) -> set[str]:
    return {path.stem for path in (root / "results/store/records").rglob("*.json")}


def test_killing_the_process_tree_at_random_moments_loses_nothing_finished(tmp_path):
    root = make_small_project(tmp_path / "killed run")
    rng = random.Random(20261130)
    for _ in range(4):
        before_receipts, before_records = receipts(root), records(root)
        process = start(root)
        processes: list[psutil.Process] = []
        deadline = time.monotonic() + rng.uniform(2, 14)
        while time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.05)
            processes = tree(psutil.Process(process.pid)) or processes
        for one in processes:
            try:
                one.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue
        process.wait()
        _, alive = psutil.wait_procs(processes, timeout=10)
        assert alive == []
        assert before_receipts.items() <= receipts(root).items()
        assert before_records <= records(root)

    finished_before = receipts(root)
    done = command(root, "run", "tiny")
    assert done.returncode == 0, done.stderr
    assert finished_before.items() <= receipts(root).items()
    # Two blocks of four trials: nothing was measured twice, and no half of a block was kept.
    assert len(receipts(root)) == 2
    assert len(records(root)) == 8
    assert not list((root / "results/store").glob("block-*"))
    assert planned_outputs(root) == set()


def test_jobs_end_when_the_run_alone_is_killed(tmp_path):
    root = make_small_project(tmp_path / "orphans")
    process = start(root)
    workers: list[psutil.Process] = []
    deadline = time.monotonic() + 300
    while not workers and time.monotonic() < deadline:
        time.sleep(0.1)
        workers = [one for one in tree(psutil.Process(process.pid)) if _is_worker(one)]
    assert workers, "no trial began"
    everything = tree(psutil.Process(process.pid))
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert alive == [], "a worker outlived its run"
    # Snakemake itself finds its jobs failing, and ends by itself.
    _, alive = psutil.wait_procs(everything, timeout=60)
    assert alive == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_run_alone_ends_its_jobs_too(tmp_path, number):
    root = make_small_project(tmp_path / "signalled")
    process = start(root)
    everything: list[psutil.Process] = []
    deadline = time.monotonic() + 300
    while not any(_is_worker(one) for one in everything) and time.monotonic() < deadline:
        time.sleep(0.1)
        everything = tree(psutil.Process(process.pid))
    process.send_signal(number)
    assert process.wait(120) == 130
    _, alive = psutil.wait_procs(everything, timeout=30)
    assert alive == []


def _is_worker(process: psutil.Process) -> bool:
    try:
        return "specprefill_repro.trials.worker" in process.cmdline()
    except psutil.Error:
        return False
