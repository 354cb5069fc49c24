"""Examples that a reader copies from the documentation must be accepted as they stand."""

import re
from pathlib import Path

import pytest

from specprefill_repro.files import read_yaml_model
from specprefill_repro.schema import Frozen
from specprefill_repro.study.schema import Study

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
