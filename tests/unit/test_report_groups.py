"""Tables about cells: one row a cell, and in a large study one for those that differ in length alone."""

import re

import pytest

from report_inputs import report_data
from specprefill_repro.report import numbers
from specprefill_repro.report.build import render_report
from specprefill_repro.report.groups import Group, cell_label, groups, outermost, spread

DATA = report_data("gain", blocks=1)
CELLS = DATA.estimates.cells


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any study is called large."""
    monkeypatch.setattr("specprefill_repro.report.groups.LISTED_CELLS", 0)
    monkeypatch.setattr("specprefill_repro.report.build.LISTED_CELLS", 0)


def test_in_a_usual_study_each_cell_has_a_row_with_its_own_numbers() -> None:
    rows = groups(DATA, CELLS)
    assert [row.cells for row in rows] == [(cell,) for cell in CELLS]
    assert [row.label for row in rows] == [cell_label(cell) for cell in CELLS]
    assert [row.speedup for row in rows] == [numbers.ratio(cell.speedup) for cell in CELLS]
    assert [row.interval for row in rows] == [numbers.bounds(cell.interval95) for cell in CELLS]


@pytest.mark.usefixtures("large")
def test_in_a_large_study_cells_that_differ_in_length_alone_share_a_row() -> None:
    rows = groups(DATA, CELLS)
    assert sorted(cell.cell for row in rows for cell in row.cells) == sorted(cell.cell for cell in CELLS)
    kept = [(row.first.pair, row.first.treatment, row.first.nominal_keep) for row in rows]
    assert len(set(kept)) == len(kept) == len({(c.pair, c.treatment, c.nominal_keep) for c in CELLS})
    assert rows[0].label == "padded · 512 to 1,024 tokens (2 cells) · keep 0.1"
    assert rows[0].pairs == sum(len(cell.pairs) for cell in rows[0].cells) == 4


def test_a_row_of_several_cells_gives_the_smallest_and_the_largest_value() -> None:
    row = Group(CELLS[:6])
    seen = sorted(cell.speedup or 0 for cell in CELLS[:6])
    assert row.speedup == f"{numbers.ratio(seen[0])} to {numbers.ratio(seen[-1])}"
    whole = outermost([cell.interval95 for cell in row.cells])
    assert whole is not None and all(
        whole.low <= cell.interval95.low and cell.interval95.high <= whole.high for cell in row.cells if cell.interval95
    )
    assert spread(numbers.percent, [0.2, None, 0.2004]) == numbers.percent(0.2)
    assert spread(numbers.percent, [None]) == numbers.NONE and outermost([None]) is None


@pytest.mark.usefixtures("large")
def test_the_page_of_a_large_study_is_shorter_and_says_what_its_rows_stand_for() -> None:
    page = render_report(DATA)
    assert "those that differ in prompt length alone share a row" in page
    assert "512 to 1,024 tokens (2 cells)" in page
    assert "share a row" not in (usual := _usual_page())
    assert len(re.findall("<tr", page)) < len(re.findall("<tr", usual))


def _usual_page() -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("specprefill_repro.report.groups.LISTED_CELLS", 1000)
        patch.setattr("specprefill_repro.report.build.LISTED_CELLS", 1000)
        return render_report(DATA)
