"""Examples that a reader copies from the documentation must be accepted as they stand."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from specprefill_repro import stages
from specprefill_repro.files import read_model, read_yaml_model, write_text
from specprefill_repro.gate.schema import GateResult
from specprefill_repro.project import Project
from specprefill_repro.prompts.schema import PromptSet
from specprefill_repro.run import check_study
from specprefill_repro.schema import Frozen
from specprefill_repro.study.load import load_study
from specprefill_repro.study.plan import plan_cells
from specprefill_repro.study.schema import Study
from tiny_model import write_tiny_model

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "config").glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{page.name}-{number}")
    for page in PAGES
    for number, block in enumerate(re.findall(r"^```ya?ml\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S))
]


class Anything(Frozen, extra="allow"):
    """Any mapping: only the YAML itself is looked at."""


@pytest.mark.parametrize("block", BLOCKS)
def test_an_example_is_valid_and_a_whole_study_is_a_study(block, tmp_path):
    file = tmp_path / "example.yaml"
    file.write_text(block, encoding="utf-8")
    whole = block.startswith("name:") and "\ncomparisons:" in block
    read_yaml_model(file, Study if whole else Anything)


def test_there_is_a_whole_study_to_copy():
    assert any("\ncomparisons:" in block.values[0] and block.values[0].startswith("name:") for block in BLOCKS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_calls_python_outside_the_environment(page):
    commands = re.findall(
        r"^    (?:\.venv/bin/)?(python\S* -m pytest|pytest)\b", page.read_text(encoding="utf-8"), re.M
    )
    assert not commands, "after ./reproduce alone there is no pytest: the documented command is ./test"


def test_the_worked_example_holds_for_two_models_in_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both as in the text, but for what the sources are: no test asks the Hub."""
    text = (ROOT / "config" / "README.md").read_text(encoding="utf-8")
    part = text.partition("## My own pair")[2].partition("\n## ")[0]
    models, study = re.findall(r"^```yaml\n(.*?)^```", part, re.M | re.S)
    for number, (name, layers) in enumerate((("my-target", 4), ("my-draft", 2))):
        folder = write_tiny_model(tmp_path / "models" / name, seed=number, layers=layers)
        models, found = re.subn(rf"({name}:\n    source: ){{.*?}}", rf"\1{{kind: local, path: {folder}}}", models)
        assert found == 1
    write_text(tmp_path / "Snakefile", "")
    shutil.copytree(ROOT / "config" / "claims", tmp_path / "config" / "claims")
    shutil.copytree(ROOT / "envs", tmp_path / "envs")
    write_text(tmp_path / "config" / "models.yaml", models)
    write_text(tmp_path / "config" / "studies" / "mine.yaml", study)
    monkeypatch.chdir(tmp_path)
    project = Project(tmp_path)
    loaded = load_study(project, "mine")
    check_study(project, loaded)
    blocks = sum(cell.blocks for cell in plan_cells(loaded))
    assert f"{blocks} blocks, which is {4 * blocks} trials" in part
    for model in ("my-target", "my-draft"):
        stages.model("mine", model)
    stages.prompts("mine", "mine", 2048)
    assert len(read_model(project.prompts("mine", "mine", 2048), PromptSet).prompts) >= 2 * loaded.comparisons[0].blocks
    # In a process of its own, as a run does it: this one may have loaded MLX with another BLAS.
    done = subprocess.run(
        [sys.executable, "-m", "specprefill_repro", "stage", "gate", "mine", "mine"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    gate = read_model(project.gate("mine", "mine"), GateResult)
    assert gate.passed, gate.failures
