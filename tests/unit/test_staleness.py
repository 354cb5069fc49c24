"""What each rule depends on: the parts that no test of the whole workflow edits."""

import shutil
from pathlib import Path

import pytest

from specprefill_repro import staleness
from specprefill_repro.calibration.results import PUBLISHED
from specprefill_repro.files import sha256_file
from specprefill_repro.project import Project
from specprefill_repro.study.plan import plan_cells
from synthetic_records import demo_study


@pytest.fixture
def project(real_project: Project, tmp_path: Path) -> Project:
    """A project with nothing but a lock file of its own."""
    made = Project(tmp_path)
    made.environment_lock.parent.mkdir()
    shutil.copy(real_project.environment_lock, made.environment_lock)
    return made


def test_another_version_of_a_library_makes_what_it_computes_stale(project: Project) -> None:
    study = demo_study()
    rules = {
        "prompts": lambda: staleness.prompts_parts(project, study, "padded", 512),
        "stopping": lambda: staleness.stopping_parts(project, study, plan_cells(study)[0]),
        "estimates": lambda: staleness.estimates_parts(project, study),
        "verdicts": lambda: staleness.verdicts_parts(project, study),
        "report": lambda: staleness.report_parts(project, study),
    }
    before = {name: staleness.parameter(parts()) for name, parts in rules.items()}
    assert before == {name: staleness.parameter(parts()) for name, parts in rules.items()}
    project.environment_lock.write_text(project.environment_lock.read_text().replace("scipy==", "scipy==9."))
    assert [name for name, parts in rules.items() if staleness.parameter(parts()) == before[name]] == []


def test_the_page_depends_on_the_error_rates_that_it_states(project: Project) -> None:
    parts = staleness.report_parts(project, demo_study())
    assert sha256_file(PUBLISHED) in {part.digest for part in parts.values()}
