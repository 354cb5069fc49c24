"""A block and its store: what is damaged is measured again and said so, what others are writing is left alone."""

import itertools
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from specprefill_repro.calibration.chain import prepare, usual_study
from specprefill_repro.calibration.worlds import COSTS, claim
from specprefill_repro.engines.scripted import ScriptedEngine, World
from specprefill_repro.prompts.text import prose
from specprefill_repro.study.plan import plan_cells
from specprefill_repro.trials import block, progress
from specprefill_repro.trials.block import _compressed_share
from specprefill_repro.trials.schema import BlockReceipt
from specprefill_repro.trials.store import Store


@pytest.fixture
def measure(tmp_path: Path) -> Callable[[], BlockReceipt]:
    study = usual_study(lengths=(512,))
    project = prepare(tmp_path, study, [claim()])
    cell, engine = plan_cells(study)[0], ScriptedEngine(World(COSTS), 1, 100)
    return lambda: block.run_block(project, study, cell, 0, engine)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "results" / "store")


@pytest.mark.parametrize("damaged", ["receipt", "record"])
def test_a_damaged_block_is_measured_again_and_kept_aside_with_a_word(measure, store, capsys, monkeypatch, damaged):
    warned: list[str] = []
    monkeypatch.setattr(progress, "report_warning", warned.append)
    first = measure()
    path = store.receipt_path(first.fingerprint)
    assert measure() == first and not warned
    broken = path if damaged == "receipt" else store.record_path(first.records[0])
    content = bytearray(broken.read_bytes())
    content[len(content) // 2] ^= 0x80
    broken.write_bytes(content)
    receipt = path.read_bytes()

    second = measure()
    assert store.get_receipt(first.fingerprint) == second and second.records != first.records
    assert path.with_name(f"{path.name}.damaged").read_bytes() == receipt
    if damaged == "record":
        assert broken.read_bytes() == content
    said = [line for line in capsys.readouterr().err.splitlines() if "measured again" in line]
    assert said == [line for line in warned if "measured again" in line]
    assert len(said) == 1 and str(broken) in said[0] and f"{path}.damaged" in said[0]


def test_a_receipt_under_another_ones_name_is_damaged_too(measure, store):
    first = measure()
    moved = store.receipt_path("0" * 64)
    store.receipt_path(first.fingerprint).rename(moved)
    assert store.find_receipt("0" * 64) is None
    measure()
    assert moved.exists(), "another block's receipt is not this block's business"


def test_only_this_machines_dead_working_folders_are_deleted(measure, store, monkeypatch):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    zombie = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    zombie.stdout.read()
    while psutil.Process(zombie.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    mine = block._folder_prefix()
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("socket.gethostname", lambda: "another")
        others = block._folder_prefix()
    assert others != mine
    gone = [f"{mine}{dead.pid}-x", f"{mine}{zombie.pid}-x", f"{mine}{os.getpid()}-x"]
    stay = [f"{mine}{os.getppid()}-x", f"{others}{dead.pid}-x", "block-notes"]
    for name in gone + stay:
        (store.folder / name).mkdir(parents=True)
    measure()
    zombie.communicate()
    assert sorted(path.name for path in store.folder.glob("block-*")) == sorted(stay)


def test_what_zlib_leaves_of_a_prompt_tells_prose_from_repetition():
    stream = prose(random.Random("1"))
    varied = _compressed_share("".join(itertools.islice(stream, 60)))
    repeated = _compressed_share("The quick brown fox jumps over the lazy dog. " * 60)
    assert varied is not None and repeated is not None and repeated < 0.05 < 0.3 < varied < 1
    assert _compressed_share("") is None


def test_no_damaged_receipt_replaces_another(store):
    name = "f" * 64
    folder = store.receipt_path(name).parent
    folder.mkdir(parents=True)
    for content in (b"one", b"two", b"three"):
        store.receipt_path(name).write_bytes(content)
        store.set_aside(name)
    kept = {file.name.removeprefix(name): file.read_bytes() for file in folder.iterdir()}
    assert kept == {".json.damaged": b"one", ".json.damaged-2": b"two", ".json.damaged-3": b"three"}
