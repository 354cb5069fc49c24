"""A copy of the project with a tiny study: the real workflow, from start to report, in well under a minute."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tiny_model import write_tiny_model

PAGE = "reports/tiny/index.html"
ROOT = Path(__file__).resolve().parent.parent

MODELS = """
models:
  target:
    source: {kind: local, path: weights/target}
    license: none
  draft:
    source: {kind: local, path: weights/draft}
    license: none
"""

STUDY = """
name: tiny
title: A tiny study of random weights
question: Does the workflow run from start to end?
seed: 7
pairs:
  pair: {target: target, draft: draft}
prompts:
  kinds: [number, city]
  answer_tokens: 3
prefill_step: 128
warmup_tokens: 64
selection: {head: 16, tail: 32}
comparisons:
  - {pair: pair, treatment: speculative, lengths: [400], keep: [0.5], blocks: 1}
  - {pair: pair, treatment: placebo, lengths: [400], blocks: 1}
claims: ["demo-*"]
"""


def make_small_project(root: Path) -> Path:
    """Copy what the workflow needs to `root`, with a study called tiny; return `root`."""
    for part in ("src", "workflow"):
        shutil.copytree(ROOT / part, root / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "config" / "claims", root / "config" / "claims")
    (root / "envs").mkdir()
    for name in ("pipeline.lock", "pipeline.yaml"):
        shutil.copy(ROOT / "envs" / name, root / "envs" / name)
    shutil.copy(ROOT / "Snakefile", root / "Snakefile")
    (root / "profiles").symlink_to("workflow/profiles")
    (root / "config" / "studies").mkdir()
    (root / "config" / "config.yaml").write_text("study: tiny\n")
    (root / "config" / "models.yaml").write_text(MODELS)
    (root / "config" / "studies" / "tiny.yaml").write_text(STUDY)
    write_tiny_model(root / "weights" / "target", seed=1, layers=4)
    write_tiny_model(root / "weights" / "draft", seed=2, layers=2)
    return root


def environment(root: Path) -> dict[str, str]:
    """Environment in which the copy's own code runs."""
    return {
        **os.environ,
        "PYTHONPATH": str(root / "src"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "XDG_CACHE_HOME": str(root / ".cache"),
    }


def command(root: Path, *arguments: str, **options: object) -> "subprocess.CompletedProcess[str]":
    """Run `specprefill-repro ARGUMENTS` in the copy."""
    return subprocess.run(
        [sys.executable, "-m", "specprefill_repro", *arguments],
        cwd=root,
        # A profile of the user's must not reach the run.
        env={**environment(root), "SNAKEMAKE_PROFILE": "/nowhere"},
        capture_output=True,
        text=True,
        check=False,
        **options,  # type: ignore[call-overload]
    )


STATUS_THEN_DRY_RUN = """
import json, runpy, sys
from pathlib import Path
from specprefill_repro.project import Project
from specprefill_repro.status import State, study_status
from specprefill_repro.study.load import load_study
project = Project(Path.cwd())
found = study_status(project, load_study(project, "tiny"))
assert "mlx" not in sys.modules and "mlx_lm" not in sys.modules
print(json.dumps({
    project.relative(output): {"why": "; ".join(each.reasons), "seconds": each.seconds}
    for each in found if each.state is not State.FRESH for output in each.step.outputs
}), flush=True)
sys.argv = ["snakemake", "-n"]
runpy.run_module("snakemake", run_name="__main__")
"""


@dataclass(frozen=True)
class Due:
    """An output that is stale or missing, as `status` says."""

    why: str
    seconds: float | None


def due(root: Path) -> dict[str, Due]:
    """What is not fresh, as paths below the study's results folder; `status` and `snakemake -n` must agree on it.

    Without the page, which Snakemake knows by its receipt alone once it is there.
    """
    done = subprocess.run(
        [sys.executable, "-c", STATUS_THEN_DRY_RUN],
        cwd=root,
        env=environment(root),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told, _, printed = done.stdout.partition("\n")
    outputs = re.findall(r"^ +output: (.+)$", printed + done.stderr, re.MULTILINE)
    planned = {path.strip() for line in outputs for path in line.split(",")} - {PAGE}
    stale = {path: Due(**each) for path, each in json.loads(told).items() if path != PAGE}
    assert stale.keys() == planned, stale
    return {path.removeprefix("results/studies/tiny/"): each for path, each in stale.items()}


def planned_outputs(root: Path) -> set[str]:
    """The outputs that are `due`; empty when there is nothing to do."""
    return set(due(root))
