"""Shipped studies are planned by Snakemake without a download, at full and at tiny scale."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("scale", ["full", "tiny"])
def test_a_dry_run_of_unlocked_hub_models_plans_every_block_and_asks_no_network(scale):
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "snakemake",
            "-n",
            "--forceall",
            "--config",
            "study=issue-gemma4-4bit",
            f"scale={scale}",
        ],
        cwd=ROOT,
        # A Hub that is asked anything would answer with an error.
        env={**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "XDG_CACHE_HOME": os.environ.get("TMPDIR", "/tmp")},
        capture_output=True,
        text=True,
        check=False,
    )
    printed = done.stdout + done.stderr
    assert done.returncode == 0, printed
    folder = "issue-gemma4-4bit" + (".tiny" if scale == "tiny" else "")
    tokens = 8954 if scale == "full" else 280
    for keep in (0.1, 0.2, 0.3):
        assert f"results/studies/{folder}/blocks/e2b-{tokens}-speculative-keep{keep}/0.json" in printed
    assert ("on-vllm-mlx" in printed) == (scale == "full")
    assert f"reports/{folder}/index.html" in printed
