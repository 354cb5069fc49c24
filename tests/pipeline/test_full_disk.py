"""A disk that fills while a block is measured: said in three parts, nothing half-written, the same command goes on."""

import os
import shutil
import subprocess

import pytest

from small_project import command, make_small_project


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mount"), reason="needs root to mount a small file system")
def test_a_full_disk_stops_the_run_in_words_and_loses_nothing(tmp_path):
    root = make_small_project(tmp_path / "full disk")
    store = root / "results" / "store"
    store.mkdir(parents=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", store], check=False).returncode != 0:
        pytest.skip("mounting a tmpfs is not allowed here")
    try:
        done = command(root, "run", "tiny")
        assert done.returncode == 3
        assert "the disk is full" in done.stderr and "next:" in done.stderr
        assert "Traceback" not in done.stderr
        assert list(store.rglob("*.json")) == []
    finally:
        subprocess.run(["umount", "-l", store], check=True)
    done = command(root, "run", "tiny")
    assert done.returncode == 0, done.stderr
    assert len(list((store / "blocks").glob("*.json"))) == 2
