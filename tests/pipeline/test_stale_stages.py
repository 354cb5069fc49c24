"""On the real workflow: each edit makes exactly the stages stale that it must, and nothing else.

`due` holds Snakemake's dry run and `status` against each other in every one of these tests.
"""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from small_project import PAGE, command, due, make_small_project, planned_outputs
from specprefill_repro.project import Project
from specprefill_repro.repair import remove_damaged
from specprefill_repro.study.load import load_study
from tiny_model import write_tiny_model

SPECULATIVE = "blocks/pair-400-speculative-keep0.5/0.json"
PLACEBO = "blocks/pair-400-placebo/0.json"
GATE = "gate/pair.json"
PROMPTS = "prompts/pair-400.json"
REPORT = "report.json"
ESTIMATES = {"estimates.json", "trials.parquet", "blocks.parquet"}
TEMPLATES = "src/specprefill_repro/report/templates"
ANALYSIS = {*ESTIMATES, "verdicts.json", REPORT}


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A small project with a finished study; its folder has a space in its name."""
    root = make_small_project(tmp_path_factory.mktemp("finished study"))
    done = command(root, "run", "tiny")
    assert done.returncode == 0, done.stderr + (root / "results/studies/tiny/logs/snakemake.log").read_text()
    assert (root / PAGE).is_file()
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


def known_seconds(root: Path, block: str) -> float:
    """What the records of a block say that its processes took, but for a little that no clock of theirs covers."""
    receipt = json.loads((root / "results/studies/tiny" / block).read_text())
    records = [next((root / "results/store/records").rglob(f"{name}.json")) for name in receipt["records"]]
    clocks = ("ready_seconds", "load_seconds", "warmup_seconds", "seconds", "decode_seconds")
    return sum(json.loads(record.read_text())[clock] for record in records for clock in clocks)


def assert_as_long_as(price: float, known: float) -> None:
    """A price holds what the clocks of the records saw, and on a busy machine a good deal that they did not."""
    assert 0.5 * known < price < 5 * known


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
    template = next((finished / TEMPLATES).rglob("*.html"))
    edit(str(template.relative_to(finished)), "<", " <")
    stale = due(finished)
    assert stale.keys() == {REPORT}
    assert stale[REPORT].why == f"templates: {template.relative_to(finished / TEMPLATES)} changed"


def test_statistics_make_analysis_and_report_stale(finished, edit):
    edit("src/specprefill_repro/estimates/statistics.py", "", "\nADDED = 1\n")
    stale = due(finished)
    assert stale.keys() == ANALYSIS
    assert "code: estimates/statistics.py: ADDED added" in stale["estimates.json"].why
    assert "reads results/studies/tiny/estimates.json, stale" in stale["verdicts.json"].why


def test_the_rules_of_verdicts_make_verdicts_and_report_stale(finished, edit):
    edit("src/specprefill_repro/verdicts/attribution.py", "", "\nADDED = 1\n")
    assert planned_outputs(finished) == ANALYSIS - ESTIMATES


def test_scoring_code_makes_the_gate_and_speculative_trials_stale(finished, edit):
    edit("src/specprefill_repro/prefill/scoring.py", "return total / width", "return total * (1 / width)")
    stale = due(finished)
    # The placebo's block reads its pair's gate result, so it is looked at again, and found in the store.
    assert stale.keys() == {GATE, SPECULATIVE, PLACEBO, *ANALYSIS}
    assert stale[GATE].why == stale[SPECULATIVE].why.partition("; reads")[0]
    assert stale[GATE].why == "code: prefill/scoring.py: function average_pool changed"
    assert stale[PLACEBO].why == "reads results/studies/tiny/gate/pair.json, stale"
    assert stale[PLACEBO].seconds == 0
    assert_as_long_as(stale[SPECULATIVE].seconds, known_seconds(finished, SPECULATIVE))


def test_target_side_prefill_code_makes_every_trial_stale(finished, edit):
    edit("src/specprefill_repro/prefill/chunked.py", "", "\nADDED = 1\n")
    assert planned_outputs(finished) == {GATE, SPECULATIVE, PLACEBO, *ANALYSIS}


def test_another_warm_up_makes_every_trial_stale(finished, edit):
    edit("src/specprefill_repro/trials/planned_job.py", "[: study.warmup_tokens]", "[: study.warmup_tokens + 1]")
    assert planned_outputs(finished) == {SPECULATIVE, PLACEBO, *ANALYSIS}


def test_adding_a_keep_rate_runs_its_blocks_alone(finished, edit):
    edit("config/studies/tiny.yaml", "keep: [0.5]", "keep: [0.5, 0.3]")
    stale, block = due(finished), "blocks/pair-400-speculative-keep0.3/0.json"
    assert stale.keys() == {block, *ANALYSIS}
    assert stale[block].why == "not run yet"
    # Nothing like it ran before: as long as the others, whose prompts are as long.
    others = [known_seconds(finished, path) for path in (SPECULATIVE, PLACEBO)]
    assert_as_long_as(stale[block].seconds, sum(others) / 2)
    assert "study: comparisons: number 1: keep [0.5] -> [0.5, 0.3]" in stale[REPORT].why


def test_removing_a_comparison_runs_the_analysis_alone(finished, edit):
    edit("config/studies/tiny.yaml", "  - {pair: pair, treatment: placebo, lengths: [400], blocks: 1}\n", "")
    stale = due(finished)
    assert stale.keys() == ANALYSIS
    assert stale["estimates.json"].why == f"no longer reads results/studies/tiny/{PLACEBO}"


def test_a_prompt_parameter_makes_prompts_and_trials_stale(finished, edit):
    edit("config/studies/tiny.yaml", "seed: 7", "seed: 8")
    stale = due(finished)
    assert stale.keys() == {PROMPTS, SPECULATIVE, PLACEBO, *ANALYSIS}
    assert stale[PROMPTS].why == "study: seed 7 -> 8"


def test_the_environment_lock_makes_all_that_computes_stale(finished, edit):
    edit("envs/pipeline.lock", "mlx-lm==", "mlx-lm==1")
    stale = due(finished)
    assert stale.keys() == {GATE, PROMPTS, SPECULATIVE, PLACEBO, *ANALYSIS}
    pinned = re.search(r"^mlx-lm==1(\S+)", (finished / "envs/pipeline.lock").read_text(), re.MULTILINE)
    assert pinned is not None
    assert stale[PROMPTS].why == f"environment: mlx-lm {pinned[1]} -> 1{pinned[1]}"


def test_a_claim_makes_verdicts_and_report_stale(finished, edit):
    file = finished / "config/claims/demo.yaml"
    number = re.search(r"value: ([0-9.]+)", file.read_text())
    assert number is not None
    edit("config/claims/demo.yaml", number.group(0), "value: 0.5")
    stale = due(finished)
    assert stale.keys() == ANALYSIS - ESTIMATES
    assert "config/claims/demo.yaml: claims: demo-" in stale["verdicts.json"].why
    assert f": value {number[1]} -> 0.5" in stale["verdicts.json"].why


def test_a_model_file_makes_its_model_and_all_that_reads_it_stale(finished):
    folder = finished / "weights" / "draft"
    before = {file: file.read_bytes() for file in folder.iterdir()}
    try:
        write_tiny_model(folder, seed=3, layers=2)
        stale = due(finished)
        assert stale.keys() == {"models/draft.json", GATE, PROMPTS, SPECULATIVE, PLACEBO, *ANALYSIS}
        assert "model: files: model.safetensors: sha256 " in stale["models/draft.json"].why
        assert stale[PROMPTS].why == "reads results/studies/tiny/models/draft.json, stale"
    finally:
        for file, content in before.items():
            file.write_bytes(content)
    assert planned_outputs(finished) == set()


def test_a_report_that_fails_leaves_the_last_one_and_the_next_run_makes_it(finished, edit):
    page = finished / PAGE
    before = {file.name: file.read_bytes() for file in page.parent.iterdir()}
    first = (finished / TEMPLATES / "page.html").read_text()[:20]
    edit(f"{TEMPLATES}/page.html", first, "{{ nobody_knows_this }}" + first)
    failed = command(finished, "run", "tiny")
    assert failed.returncode != 0 and f"The last report is as it was: {PAGE}" in failed.stderr
    assert {file.name: file.read_bytes() for file in page.parent.iterdir()} == before
    # A page that somebody removed is missed too.
    page.unlink()
    stale = due(finished)
    assert stale.keys() == {REPORT}
    assert stale[REPORT].why.startswith(f"results/studies/tiny/report.json, {PAGE} is gone")
    edit(f"{TEMPLATES}/page.html", "{{ nobody_knows_this }}", "")
    assert command(finished, "run", "tiny").returncode == 0
    assert planned_outputs(finished) == set()
    assert {file.name: file.read_bytes() for file in page.parent.iterdir()} == before


def change_record(root: Path) -> Path:
    """Edit one digit of a record that a block names."""
    receipt = json.loads((root / "results/studies/tiny" / PLACEBO).read_text())
    record = next((root / "results/store/records").rglob(f"{receipt['records'][1]}.json"))
    record.write_text(re.sub(r'"seconds":0.0*[0-9]', '"seconds":0.9', record.read_text(), count=1))
    return record


def remove_record(root: Path) -> Path:
    record = change_record(root)
    record.unlink()
    return record


def edit_result(path: str, old: str, new: str):
    def change(root: Path) -> Path:
        file = root / "results/studies/tiny" / path
        text, count = re.subn(old, new, file.read_text(), count=1)
        assert count == 1
        file.write_text(text)
        return file

    return change


def remove_result(path: str):
    def change(root: Path) -> Path:
        file = root / "results/studies/tiny" / path
        file.unlink()
        return file

    return change


BLOCKS = {SPECULATIVE, PLACEBO}
DAMAGE = {
    "record edited": (change_record, {PLACEBO, *ANALYSIS}),
    "record gone": (remove_record, {PLACEBO, *ANALYSIS}),
    "block gone": (remove_result(PLACEBO), {PLACEBO, *ANALYSIS}),
    "block edited": (edit_result(SPECULATIVE, r'"void": *null', '"void": "I say so"'), {SPECULATIVE, *ANALYSIS}),
    "gate gone": (remove_result(GATE), {GATE, *BLOCKS, *ANALYSIS}),
    "estimates gone": (remove_result("estimates.json"), ANALYSIS),
    "estimates edited": (edit_result("estimates.json", r'"speedup": *[0-9.]+', '"speedup": 9.9'), ANALYSIS),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_what_was_damaged_is_named_and_taken_away_with_all_that_was_made_from_it(finished, tmp_path, name):
    """A run that sees no reason to do anything would leave the report with numbers that no record gives."""
    root = shutil.copytree(finished, tmp_path / "copy", symlinks=True)
    damage, taken = DAMAGE[name]
    results = root / "results/studies/tiny"
    before = {file for file in results.rglob("*") if file.is_file()}
    file = damage(root)
    (line,) = remove_damaged(Project(root), load_study(Project(root), "tiny"))
    assert " is made again: " in line and file.name in line
    after = {file for file in results.rglob("*") if file.is_file()}
    assert {str(each.relative_to(results)) for each in before - after} == taken
    assert (root / PAGE).is_file()


def test_a_run_makes_again_what_was_damaged(finished):
    page = (finished / PAGE).read_bytes()
    damaged = [DAMAGE[name][0](finished) for name in ("record edited", "block edited", "estimates edited")]
    again = command(finished, "run", "tiny")
    assert again.returncode == 0, again.stderr
    assert all(file.name in again.stderr for file in damaged)
    assert planned_outputs(finished) == set()
    verified = command(finished, "verify", str(finished / PAGE))
    assert verified.returncode == 0, verified.stderr
    assert (finished / PAGE).read_bytes() != page  # One block was measured anew.
