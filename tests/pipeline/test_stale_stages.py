"""On the real workflow: each edit makes exactly the stages stale that it must, and nothing else."""

import os
import re
from pathlib import Path

import pytest

from small_project import command, make_small_project, planned_outputs
from tiny_model import write_tiny_model

SPECULATIVE = "blocks/pair-400-speculative-keep0.5/0.json"
PLACEBO = "blocks/pair-400-placebo/0.json"
GATE = "gate/pair.json"
PROMPTS = "prompts/pair-400.json"
REPORT = "reports/tiny/index.html"
ESTIMATES = {"estimates.json", "trials.parquet", "blocks.parquet"}
ANALYSIS = {*ESTIMATES, "verdicts.json", REPORT}


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A small project with a finished study; its folder has a space in its name."""
    root = make_small_project(tmp_path_factory.mktemp("finished study"))
    done = command(root, "run", "tiny")
    assert done.returncode == 0, done.stderr + (root / "results/studies/tiny/logs/snakemake.log").read_text()
    assert (root / REPORT).is_file()
    return root


@pytest.fixture
def edit(finished):
    """`edit(path, old, new)` changes a file of the project for the length of a test; an empty `old` is its end."""
    originals: dict[Path, bytes] = {}

    def change(path: str, old: str, new: str) -> None:
        file = finished / path
        originals.setdefault(file, file.read_bytes())
        text = file.read_text()
        assert old in text, f"{path} holds no {old!r}"
        file.write_text(text.replace(old, new) if old else text + new)

    yield change
    for file, content in originals.items():
        file.write_bytes(content)


def test_a_finished_study_has_nothing_to_do(finished):
    assert planned_outputs(finished) == set()


def test_touching_every_file_makes_nothing_stale(finished):
    for file in finished.rglob("*"):
        if file.is_file() and ".snakemake" not in file.parts:
            os.utime(file)
    assert planned_outputs(finished) == set()


def test_comments_and_docstrings_make_nothing_stale(finished, edit):
    edit("src/specprefill_repro/prefill/scoring.py", '"""How much', '"""How very much')
    edit("src/specprefill_repro/prefill/dense.py", "    cache = ", "    # A comment.\n    cache = ")
    assert planned_outputs(finished) == set()


def test_the_report_template_makes_the_report_alone_stale(finished, edit):
    template = next((finished / "src/specprefill_repro/report/templates").rglob("*.html"))
    edit(str(template.relative_to(finished)), "<", " <")
    assert planned_outputs(finished) == {REPORT}


def test_statistics_make_analysis_and_report_stale(finished, edit):
    edit("src/specprefill_repro/estimates/statistics.py", "", "\nADDED = 1\n")
    assert planned_outputs(finished) == ANALYSIS


def test_the_rules_of_verdicts_make_verdicts_and_report_stale(finished, edit):
    edit("src/specprefill_repro/verdicts/attribution.py", "", "\nADDED = 1\n")
    assert planned_outputs(finished) == ANALYSIS - ESTIMATES


def test_scoring_code_makes_the_gate_and_speculative_trials_stale(finished, edit):
    edit("src/specprefill_repro/prefill/scoring.py", "return total / width", "return total * (1 / width)")
    # The placebo's block reads its pair's gate result, so it is looked at again, and found in the store.
    assert planned_outputs(finished) == {GATE, SPECULATIVE, PLACEBO, *ANALYSIS}


def test_target_side_prefill_code_makes_every_trial_stale(finished, edit):
    edit("src/specprefill_repro/prefill/chunked.py", "", "\nADDED = 1\n")
    assert planned_outputs(finished) == {GATE, SPECULATIVE, PLACEBO, *ANALYSIS}


def test_adding_a_keep_rate_runs_its_blocks_alone(finished, edit):
    edit("config/studies/tiny.yaml", "keep: [0.5]", "keep: [0.5, 0.3]")
    assert planned_outputs(finished) == {"blocks/pair-400-speculative-keep0.3/0.json", *ANALYSIS}


def test_removing_a_comparison_runs_the_analysis_alone(finished, edit):
    edit("config/studies/tiny.yaml", "  - {pair: pair, treatment: placebo, lengths: [400], blocks: 1}\n", "")
    assert planned_outputs(finished) == ANALYSIS


def test_a_prompt_parameter_makes_prompts_and_trials_stale(finished, edit):
    edit("config/studies/tiny.yaml", "seed: 7", "seed: 8")
    assert planned_outputs(finished) == {PROMPTS, SPECULATIVE, PLACEBO, *ANALYSIS}


def test_the_environment_lock_makes_all_that_computes_stale(finished, edit):
    edit("envs/pipeline.lock", "mlx-lm==", "mlx-lm ==")
    assert planned_outputs(finished) == {GATE, PROMPTS, SPECULATIVE, PLACEBO, *ANALYSIS}


def test_a_claim_makes_verdicts_and_report_stale(finished, edit):
    file = finished / "config/claims/demo.yaml"
    number = re.search(r"value: ([0-9.]+)", file.read_text())
    assert number is not None
    edit("config/claims/demo.yaml", number.group(0), "value: 0.5")
    assert planned_outputs(finished) == ANALYSIS - ESTIMATES


def test_a_model_file_makes_its_model_and_all_that_reads_it_stale(finished):
    folder = finished / "weights" / "draft"
    before = {file: file.read_bytes() for file in folder.iterdir()}
    try:
        write_tiny_model(folder, seed=3, layers=2)
        assert planned_outputs(finished) == {"models/draft.json", GATE, PROMPTS, SPECULATIVE, PLACEBO, *ANALYSIS}
    finally:
        for file, content in before.items():
            file.write_bytes(content)
    assert planned_outputs(finished) == set()
