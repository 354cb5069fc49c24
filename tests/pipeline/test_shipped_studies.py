"""Shipped studies are planned by Snakemake without a download, and run to a report at tiny scale."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from specprefill_repro.project import Project
from specprefill_repro.study.load import load_study, study_names
from specprefill_repro.study.plan import plan_cells
from specprefill_repro.study.scale import scaled_name
from specprefill_repro.verify import verify_page

ROOT = Path(__file__).resolve().parents[2]
PROJECT = Project(ROOT)


def run(folder: Path, *command: str) -> str:
    """What a command printed; a Hub that was asked anything would answer with an error."""
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        env={
            **os.environ,
            "HF_ENDPOINT": "http://127.0.0.1:9",
            "PYTHONPATH": str(folder / "src"),
            "XDG_CACHE_HOME": os.environ.get("TMPDIR", "/tmp"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize(("name", "scale"), [*((name, "full") for name in study_names(PROJECT)), ("small-mac", "tiny")])
def test_a_dry_run_plans_every_block_and_asks_no_network(name, scale):
    printed = run(ROOT, "snakemake", "-n", "--forceall", "--config", f"study={name}", f"scale={scale}")
    study = load_study(PROJECT, scaled_name(name, scale))
    for cell in plan_cells(study):
        assert f"results/studies/{study.name}/blocks/{cell.id}/0.json" in printed
    assert f"results/studies/{study.name}/report.json" in printed


def test_a_study_of_models_that_this_machine_cannot_hold_runs_to_a_report_at_tiny_scale(tmp_path, smollm2_folder):
    folder = tmp_path / "a project"
    ignored = shutil.ignore_patterns("__pycache__", "results", "reports", ".*", "tests")
    shutil.copytree(ROOT, folder, ignore=ignored, symlinks=True)
    # Whose tokenizer the random models have.
    manifest = smollm2_folder.with_name(f"{smollm2_folder.name}.json")
    (folder / "results/models").mkdir(parents=True)
    shutil.copytree(smollm2_folder, folder / "results/models" / smollm2_folder.name)
    shutil.copy(manifest, folder / "results/models" / manifest.name)
    printed = run(folder, "specprefill_repro", "run", "small-mac", "--scale", "tiny", "--offline")
    assert "Report: reports/small-mac.tiny/index.html" in printed
    page = folder / "reports/small-mac.tiny/index.html"
    before_the_evidence = page.read_text().partition('<section id="evidence">')[0]
    assert "Tiny scale." in before_the_evidence and "small random models" in before_the_evidence
    assert verify_page(page).cells == len(plan_cells(load_study(PROJECT, "small-mac.tiny")))
    assert "Nothing to be done" in run(folder, "snakemake", "-n", "--config", "study=small-mac", "scale=tiny")
