"""The twins beside the page hold every trial, readable by another library, and safe in a spreadsheet."""

import io
import json
from pathlib import Path

import pandas as pd
import pytest

from report_inputs import report_data
from specprefill_repro.estimates.schema import Estimates
from specprefill_repro.files import content_id, read_model
from specprefill_repro.report.data import ReportData
from specprefill_repro.report.tables import table_files, tables_of, trials_csv
from specprefill_repro.trials.table import Trials
from specprefill_repro.verdicts.schema import Verdicts

DATA = report_data("gain")


def csv_of(data: ReportData) -> str:
    return trials_csv(Trials.of_records(data.records))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("twins")
    trials = Trials.of_records(DATA.records)
    for name, content in table_files(tables_of(trials, DATA.receipts, DATA.estimates), trials, DATA.verdicts).items():
        (path / name).write_bytes(content)
    return path


def test_the_twins_lie_beside_the_page(folder: Path) -> None:
    names = ["blocks.parquet", "estimates.json", "trials.csv", "trials.parquet", "verdicts.json"]
    assert sorted(path.name for path in folder.iterdir()) == names
    assert read_model(folder / "estimates.json", Estimates) == DATA.estimates
    assert read_model(folder / "verdicts.json", Verdicts) == DATA.verdicts


@pytest.mark.parametrize("name", ["trials.csv", "trials.parquet"])
def test_every_trial_is_a_line_with_its_record_and_fields(folder: Path, name: str) -> None:
    table = pd.read_csv(folder / name) if name.endswith("csv") else pd.read_parquet(folder / name)
    table = table.set_index("record")
    assert len(table) == len(DATA.records)
    for record in DATA.records:
        line = table.loc[content_id(record)]
        assert line["seconds"] == record.seconds
        assert line["evidence.tokens_kept"] == record.evidence.tokens_kept
        assert line["phases.target_prefill"] == record.phases.target_prefill
        ranges, environment = line["evidence.kept_ranges"], line["environment"]
        if name.endswith("csv"):
            ranges, environment = json.loads(ranges), json.loads(environment)
        assert [tuple(pair) for pair in ranges] == list(record.evidence.kept_ranges)
        assert dict(environment) == record.environment
        chunk = record.requested.selection.chunk if record.requested.selection else None
        assert chunk is None if pd.isna(line["requested.selection.chunk"]) else chunk == 32


def test_the_speed_up_can_be_recomputed_from_the_parquet_file_alone(folder: Path) -> None:
    """With pandas: the geometric mean of dense / treated over the pairs of a cell."""
    table = pd.read_parquet(folder / "trials.parquet")
    for cell in DATA.estimates.cells:
        wide = table[table["cell"] == cell.cell].pivot(index="prompt.id", columns="treated", values="seconds")
        ratio = (wide[False] / wide[True]).prod() ** (1 / len(wide))
        assert cell.speedup == pytest.approx(ratio)


def test_every_block_is_a_line_with_its_parts(folder: Path) -> None:
    table = pd.read_parquet(folder / "blocks.parquet").set_index("fingerprint")
    assert len(table) == len(DATA.receipts)
    for receipt in DATA.receipts:
        line = table.loc[receipt.fingerprint]
        assert tuple(line["records"]) == receipt.records and dict(line["parts"]) == receipt.parts


def test_an_answer_is_no_formula() -> None:
    table = pd.read_csv(io.StringIO(csv_of(report_data("gain", answer_text='=HYPERLINK("x","y")'))))
    assert set(table["answer_text"]) == {'\'=HYPERLINK("x","y")'}


def test_no_trial_gives_a_table_of_headings() -> None:
    assert len(csv_of(report_data("not run")).splitlines()) == 1
