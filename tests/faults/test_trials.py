"""Trials when things go wrong: workers that die, parents that die, disks that fill, records that are touched."""

import json
import mmap
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.files import content_id
from specprefill_repro.study.plan import Arm, ArmKind
from specprefill_repro.study.schema import Selection
from specprefill_repro.trials import lease, trial
from specprefill_repro.trials.job import Job
from specprefill_repro.trials.lease import machine_lease
from specprefill_repro.trials.trial import run_worker, worker_environment
from tiny_model import write_tiny_model

TOKENS = 300


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("models with space")
    return write_tiny_model(folder / "target", seed=1, layers=3), write_tiny_model(folder / "draft", seed=2)


@pytest.fixture
def job(folders, tmp_path):
    def make(kind: ArmKind = ArmKind.SPECULATIVE, **changes: object) -> Job:
        arm = Arm(kind=kind) if kind.reads_all else Arm(kind=kind, keep=0.3, selection=Selection())
        values = {
            "target_folder": str(folders[0]),
            "draft_folder": str(folders[1]) if kind is ArmKind.SPECULATIVE else None,
            "arm": arm,
            "ids": tuple(1 + i * 7 % 500 for i in range(TOKENS)),
            "needle_tokens": ((100, 110),),
            "warmup_ids": tuple(1 + i * 11 % 500 for i in range(160)),
            "step": 64,
            "answer_tokens": 4,
            "seed": "7/cell/prompt",
            "logits_file": str(tmp_path / "logits.f32"),
        }
        return Job(**{**values, **changes})  # type: ignore[arg-type]

    return make


@pytest.mark.parametrize("kind", list(ArmKind))
def test_phases_add_up_and_the_evidence_is_complete(job, kind):
    measured = run_worker(job(kind))
    evidence = measured.evidence
    assert measured.phases.total == pytest.approx(measured.seconds, rel=0.02)
    assert measured.outcome == ("dense" if kind.reads_all else "sparse")
    assert evidence.cache_tokens_before == 0
    assert evidence.cache_tokens_after == evidence.tokens_kept
    assert evidence.kept_ranges[-1][1] == TOKENS
    assert sum(stop - start for start, stop in evidence.kept_ranges) == evidence.tokens_kept
    kept = [position for start, stop in evidence.kept_ranges for position in range(start, stop)]
    assert evidence.kept_sha256 == content_id(kept)
    assert len(measured.tokens) <= 4
    assert measured.paged_in_bytes is not None and measured.paged_in_bytes >= 0
    if kind.reads_all:
        assert evidence.tokens_kept == TOKENS and evidence.rotary_modules == 0
        assert evidence.rotary_positions_sha256 is None
    else:
        assert evidence.tokens_kept < TOKENS
        assert evidence.rotary_positions_sha256 == evidence.kept_sha256
        assert evidence.rotary_modules == evidence.rotary_modules_restored == 3
    assert evidence.tokens_scored == (TOKENS if kind is ArmKind.SPECULATIVE else 0)
    assert (evidence.selection_seed is not None) == (kind is ArmKind.RANDOM)


@pytest.mark.parametrize("preset", ["liu2025", "green2026", "omlx", "ours"])
def test_a_trial_of_a_preset_runs_what_its_rule_says(job, preset):
    rule = Selection(preset=preset)
    measured = run_worker(job(arm=Arm(kind=ArmKind.SPECULATIVE, keep=0.2, selection=rule)))
    evidence = measured.evidence
    assert measured.outcome in ("sparse", "dense")
    assert evidence.tokens_kept == (TOKENS if preset == "omlx" else len(ids_of(evidence.kept_ranges))) <= TOKENS
    assert (evidence.selection_seed is not None) == (rule.temperature > 0)
    if not rule.stop_at_end:
        assert len(evidence.look_ahead_tokens) == rule.look_ahead


def ids_of(ranges):
    return [position for start, stop in ranges for position in range(start, stop)]


def test_the_same_job_gives_the_same_evidence_in_another_process(job):
    first, second = run_worker(job()), run_worker(job())
    assert first.evidence == second.evidence
    assert first.tokens == second.tokens


@pytest.mark.parametrize("kind", [ArmKind.DENSE, ArmKind.PLAIN])
def test_dense_trials_agree_with_mlx_lm_itself(job, folders, tmp_path, kind):
    import mlx.core as mx
    import numpy as np
    from mlx_lm.utils import load_model

    measured = run_worker(job(kind))
    model, _ = load_model(folders[0])
    model.set_dtype(mx.float32)
    logits = model(mx.array([list(job(kind).ids)]))[0, -1]
    expected = np.array(logits - mx.logsumexp(logits))
    found = np.fromfile(tmp_path / "logits.f32", dtype=np.float32)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert measured.tokens[0] == int(expected.argmax())


def test_neither_transformers_nor_numpy_is_loaded_by_a_trial(folders):
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from specprefill_repro.trials import worker\n"
        "from specprefill_repro.prefill.loading import load_model\n"
        f"load_model(Path({str(folders[0])!r}))\n"
        "print([name for name in ('transformers', 'numpy', 'huggingface_hub', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_killed_worker_is_explained_and_leaves_nothing(job, monkeypatch, tmp_path):
    # Kills the process as soon as mlx is imported, as the system does when memory runs out.
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "class Killer:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'mlx.core':\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "sys.meta_path.insert(0, Killer())\n"
    )
    environment = {**worker_environment(), "PYTHONPATH": str(tmp_path)}
    monkeypatch.setattr(trial, "worker_environment", lambda: environment)
    with pytest.raises(ReproError, match="was killed") as error:
        run_worker(job())
    assert error.value.exit_code is Exit.TRIAL
    assert "finished blocks are kept" in error.value.next
    assert not (tmp_path / "logits.f32").exists()


@pytest.mark.parametrize("hangs_at", ["mlx.core", "specprefill_repro"])
def test_a_worker_that_hangs_is_ended_and_explained(job, monkeypatch, tmp_path, hangs_at):
    # In its computation, or before it reads its job, which is larger than a pipe holds.
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, time\n"
        "class Sleeper:\n"
        "    def find_spec(self, name, *rest):\n"
        f"        if name == {hangs_at!r}:\n"
        "            print('waiting for a driver', file=sys.stderr, flush=True)\n"
        "            time.sleep(10_000)\n"
        "sys.meta_path.insert(0, Sleeper())\n"
    )
    environment = {**worker_environment(), "PYTHONPATH": str(tmp_path)}
    monkeypatch.setattr(trial, "worker_environment", lambda: environment)
    with pytest.raises(ReproError, match=r"no answer in 2 seconds and was ended") as error:
        run_worker(job(text="long " * 50_000), limit=2.0)
    assert error.value.exit_code is Exit.TRIAL
    assert "finished blocks are kept" in error.value.next
    assert not psutil.Process().children()


@pytest.mark.parametrize(
    ("raised", "out_of_memory"),
    [
        ("RuntimeError('[metal::malloc] Attempting to allocate 99 bytes which is greater than the maximum')", True),
        ("RuntimeError('[malloc_or_wait] Unable to allocate 99 bytes.')", True),
        ("RuntimeError('std::bad_alloc')", True),
        ("RuntimeError('[METAL] Command buffer execution failed: Insufficient Memory (00000008)')", True),
        ("MemoryError()", True),
        ("RuntimeError('[matmul] Last dimension of first input must match')", False),
    ],
)
def test_memory_that_runs_out_is_explained_however_it_is_said(job, monkeypatch, tmp_path, raised, out_of_memory):
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Full:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'mlx.core':\n"
        f"            raise {raised}\n"
        "sys.meta_path.insert(0, Full())\n"
    )
    environment = {**worker_environment(), "PYTHONPATH": str(tmp_path)}
    monkeypatch.setattr(trial, "worker_environment", lambda: environment)
    with pytest.raises(ReproError) as error:
        run_worker(job())
    assert error.value.exit_code is Exit.TRIAL
    assert ("ran out of memory" in error.value.what) == out_of_memory
    assert out_of_memory or "[matmul] Last dimension of first input must match" in error.value.what
    assert ("KV cache together are larger" in error.value.why) == out_of_memory


def test_a_model_that_cannot_be_loaded_is_refused_in_words(job, folders, tmp_path):
    folder = tmp_path / "other"
    folder.mkdir()
    for file in folders[0].iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 7}))
    with pytest.raises(ReproError, match="could not be loaded") as error:
        run_worker(job(target_folder=str(folder)))
    assert str(folder) in error.value.what
    # The worker's own exit code, not that of a trial that died.
    assert error.value.exit_code is Exit.VERIFICATION


def test_a_worker_dies_with_its_parent_even_inside_a_computation(job):
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys\n"
            "from specprefill_repro.trials.job import Job\n"
            "from specprefill_repro.trials.trial import run_worker\n"
            "run_worker(Job.model_validate_json(sys.stdin.read()))",
        ],
        stdin=subprocess.PIPE,
    )
    assert parent.stdin is not None
    parent.stdin.write(job(ids=tuple(1 + i % 500 for i in range(40_000)), step=512).model_dump_json().encode())
    parent.stdin.close()
    worker = _wait_for_child(parent.pid)
    time.sleep(0.5)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    _, alive = psutil.wait_procs([worker], timeout=10)
    assert alive == []


def _wait_for_child(pid: int) -> psutil.Process:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        children = psutil.Process(pid).children()
        if children:
            return children[0]
        time.sleep(0.05)
    raise AssertionError("no worker was started")


def test_only_one_holds_the_machine_and_an_orphan_still_holds_it(tmp_path):
    path = tmp_path / "lease"
    code = "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    with machine_lease(path) as descriptor:
        busy = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, check=False)
        assert busy.returncode != 0
        orphan = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[descriptor])
    busy = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, check=False)
    assert busy.returncode != 0, "the child that inherited the lease must hold it on"
    orphan.kill()
    orphan.wait()
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)


def test_a_lock_file_that_is_a_link_is_refused(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ReproError, match="lock file"), machine_lease(tmp_path / "link"):
        pass


@pytest.mark.parametrize("folder", ["one", "two"])
def test_the_lease_is_the_same_wherever_temporary_files_lie(tmp_path, monkeypatch, folder):
    monkeypatch.delenv(lease.TEST_LEASE)
    monkeypatch.setattr(lease, "SHARED", (tmp_path / "missing", tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path / folder))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / folder))
    assert lease.lease_path() == tmp_path / lease.NAME
    before = os.umask(0o077)
    try:
        told = []
        with machine_lease(tell=told.append):
            assert not told
    finally:
        os.umask(before)
    assert (tmp_path / lease.NAME).stat().st_mode & 0o777 == 0o666, "another user must be able to hold it"


def test_a_machine_without_a_shared_folder_says_so(tmp_path, monkeypatch):
    monkeypatch.delenv(lease.TEST_LEASE)
    monkeypatch.setattr(lease, "SHARED", (tmp_path / "missing",))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    told = []
    with machine_lease(tell=told.append):
        assert told and str(tmp_path) in told[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_holds_the_same_lease(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    for path in (tmp_path, *tmp_path.parents):
        if path.stat().st_mode & 0o001 == 0:
            path.chmod(path.stat().st_mode | 0o011)
    with machine_lease(shared / "lease"):
        pass
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        try:
            with machine_lease(shared / "lease"):
                os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_lock_file_with_a_second_name_or_a_pipe_is_refused(tmp_path):
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "lease").hardlink_to(tmp_path / "precious")
    os.mkfifo(tmp_path / "pipe")
    for path in ("lease", "pipe"):
        with pytest.raises(ReproError, match="lock file"), machine_lease(tmp_path / path):
            pass
    assert (tmp_path / "precious").read_text() == "kept"


def test_waiting_for_another_measurement_says_so_and_for_whom(tmp_path):
    path, told = tmp_path / "lease", []
    code = (
        "import sys, pathlib; from specprefill_repro.trials.lease import machine_lease\n"
        "with machine_lease(pathlib.Path(sys.argv[1])): print('held', flush=True); input()"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"

    def tell(line):
        told.append(line)
        holder.communicate(b"\n")

    with machine_lease(path, tell):
        assert told == [f"Waiting for another measurement on this machine (process {holder.pid}) to end ..."]
    with machine_lease(path, tell):
        assert len(told) == 1, "nobody to wait for"


def test_what_is_read_from_disk_while_the_clock_runs_is_counted(tmp_path):
    from specprefill_repro.trials.worker import _paged_in

    kind = subprocess.run(["stat", "-f", "-c", "%T", tmp_path], capture_output=True, text=True, check=True).stdout
    if kind.strip() in ("tmpfs", "ramfs"):
        pytest.skip("the temporary folder is in memory, so nothing is read from disk")
    path = tmp_path / "weights"
    with path.open("wb") as file:
        file.write(os.urandom(8 << 20))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        # One page a fault, as the system would count them, without reading ahead.
        mapped.madvise(mmap.MADV_RANDOM)
        before = _paged_in()
        for start in range(0, len(mapped), mmap.PAGESIZE):
            mapped[start]
        counted = _paged_in() - before
    assert (8 << 20) / 2 < counted <= 9 << 20
