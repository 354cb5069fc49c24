"""A copy of the project with a tiny study: the real workflow, from start to report, in well under a minute."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tiny_model import write_tiny_model

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
        env=environment(root),
        capture_output=True,
        text=True,
        check=False,
        **options,  # type: ignore[call-overload]
    )


def planned_outputs(root: Path) -> set[str]:
    """What `snakemake -n` would make, as paths below the study's results folder; empty when there is nothing to do."""
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", "-n"],
        cwd=root,
        env=environment(root),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    outputs = re.findall(r"^ +output: (.+)$", done.stdout + done.stderr, re.MULTILINE)
    return {path.strip().removeprefix("results/studies/tiny/") for line in outputs for path in line.split(",")}
