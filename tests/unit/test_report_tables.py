"""The twins beside the page hold every trial, readable by another library, and safe in a spreadsheet."""

import io
import json
from pathlib import Path

import pandas as pd

from report_inputs import report_data
from specprefill_repro.estimates.schema import Estimates
from specprefill_repro.files import content_id, read_model
from specprefill_repro.report.tables import trials_csv, write_tables
from specprefill_repro.verdicts.schema import Verdicts


def test_every_trial_is_a_line_with_its_record_and_fields() -> None:
    data = report_data("gain")
    table = pd.read_csv(io.StringIO(trials_csv(data))).set_index("record")
    assert len(table) == len(data.records)
    for record in data.records:
        line = table.loc[content_id(record)]
        assert line["seconds"] == record.seconds
        assert line["evidence.tokens_kept"] == record.evidence.tokens_kept
        assert line["phases.target_prefill"] == record.phases.target_prefill
        assert json.loads(line["evidence.kept_ranges"]) == [list(pair) for pair in record.evidence.kept_ranges]


def test_an_answer_is_no_formula() -> None:
    table = pd.read_csv(io.StringIO(trials_csv(report_data("gain", answer_text='=HYPERLINK("x","y")'))))
    assert set(table["answer_text"]) == {'\'=HYPERLINK("x","y")'}


def test_no_trial_gives_an_empty_table() -> None:
    assert trials_csv(report_data("not run")).strip() == ""


def test_the_twins_lie_beside_the_page(tmp_path: Path) -> None:
    data = report_data("gain")
    write_tables(data, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["estimates.json", "trials.csv", "verdicts.json"]
    assert read_model(tmp_path / "estimates.json", Estimates) == data.estimates
    assert read_model(tmp_path / "verdicts.json", Verdicts) == data.verdicts
