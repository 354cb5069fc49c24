"""A study that is read by several processes gives, to the byte, what one process makes of it."""

from pathlib import Path

import pytest

from specprefill_repro import stages
from specprefill_repro.calibration.results import run_case
from specprefill_repro.calibration.worlds import TRUE_WORLDS
from specprefill_repro.engines.scripted import NAME
from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.files import read_model
from specprefill_repro.project import Project
from specprefill_repro.study.load import load_study
from specprefill_repro.study.plan import plan_cells
from specprefill_repro.trials.schema import BlockReceipt
from specprefill_repro.trials.store import Store


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return run_case(TRUE_WORLDS[0], tmp_path_factory.mktemp("cells"))[0]


def written(project: Project) -> list[bytes]:
    files: list[Path] = [project.estimates(NAME), project.trials(NAME), project.blocks(NAME)]
    return [file.read_bytes() for file in files]


def test_several_processes_write_what_one_writes(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = written(project)
    for file in (project.estimates(NAME), project.trials(NAME), project.blocks(NAME)):
        file.unlink()
    monkeypatch.setattr("specprefill_repro.estimates.cells.MANY_TRIALS", 0)
    stages.estimates(NAME, project)
    assert written(project) == alone


def test_a_changed_record_is_named_by_whichever_process_finds_it(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = plan_cells(load_study(project, NAME))[2]
    receipt = read_model(project.block_receipt(NAME, cell.id, 1), BlockReceipt)
    path = Store(project.store).record_path(receipt.records[1])
    content, before = path.read_bytes(), written(project)
    path.write_bytes(content.replace(b'"seconds":', b'"seconds":1', 1))
    monkeypatch.setattr("specprefill_repro.estimates.cells.MANY_TRIALS", 0)
    try:
        with pytest.raises(ReproError, match="was changed") as caught:
            stages.estimates(NAME, project)
    finally:
        path.write_bytes(content)
    assert path.name in caught.value.what and caught.value.exit_code is Exit.VERIFICATION
    assert written(project) == before
