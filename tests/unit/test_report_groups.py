"""Tables about cells: one row a cell, and in a large study one for those that differ in length alone."""

import json
import math
import re
from typing import Any

import pytest

from report_inputs import report_data
from specprefill_repro.estimates.schema import CellEstimate, Interval
from specprefill_repro.estimates.statistics import share_interval
from specprefill_repro.report import figures, numbers, rows, rules
from specprefill_repro.report.answer import answer
from specprefill_repro.report.build import render_report
from specprefill_repro.report.groups import Group, cell_label, groups, outermost, spread
from specprefill_repro.study.schema import Treatment
from specprefill_repro.trials.table import Trials
from specprefill_repro.verdicts.schema import Verdicts

DATA = report_data("gain", blocks=3)
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
    assert rows[0].pairs == sum(len(cell.pairs) for cell in rows[0].cells) == 12


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


@pytest.mark.parametrize(("blocks", "told"), [(1, False), (2, False), (3, True)])
def test_an_interval_is_told_only_of_as_many_pairs_as_a_verdict_needs(blocks: int, told: bool) -> None:
    data = report_data("gain", blocks=blocks)
    page = render_report(data)
    for figure in (*figures.speed_figures(data), *figures.control_figures(data)):
        place = figure.columns.index("95 % interval")
        assert {row[place] == "too few pairs" for row in figure.rows} == {not told}, figure.title
    speak = answer(data).cells[0]
    assert (f"95\u00a0%: {numbers.bounds(speak.interval95)}" in page) == told
    assert ("too few pairs of dense against dense" in page) == (not told)


def test_a_placebo_of_two_pairs_gives_no_number_for_the_noise() -> None:
    data = report_data("gain", blocks=1)
    margin = data.estimates.placebo_margin
    assert margin is not None
    page = render_report(data)
    assert f"±{numbers.significant(100 * margin, 2)}" not in page and "no difference is believed here yet" in page


def test_a_lost_answer_is_counted_and_its_share_told_apart() -> None:
    cell = next(c for c in report_data("gain").estimates.cells if c.answers_dense and c.pairs)
    lost = cell.model_copy(
        update={"answers_lost": 1, "answers_dense": 2, "answers_lost_interval": share_interval(1, 2)}
    )
    assert rules._row(lost).lost == "1 of 2: 50\u00a0% (1 to 99\u00a0%)"


def test_a_drift_that_the_scatter_hides_has_no_bounds_below_minus_all() -> None:
    data = report_data("gain")
    wild = data.estimates.drift[0].model_copy(update={"interval95": Interval(low=-1.256, high=1.401, level=0.95)})
    data = data.model_copy(update={"estimates": data.estimates.model_copy(update={"drift": (wild,)})})
    trials = Trials.of_records(data.records)
    (figure,) = figures.drift_figures(data, trials.frame(rows.COLUMNS))
    assert figure.rows[0][3] == "not known: the trials scatter too much"


def test_a_verdict_about_several_cells_says_so_in_a_sentence() -> None:
    data = report_data("gain")
    cells = [c for c in data.estimates.cells if c.pair == "padded" and c.treatment is Treatment.SPECULATIVE][:2]
    first = data.verdicts.verdicts[0]
    told = first.model_copy(update={"cells": tuple(cell.cell for cell in cells)})
    page = render_report(data.model_copy(update={"verdicts": Verdicts(study="demo", verdicts=(told,))}))
    links = " and ".join(f'<a href="#c-{cell.cell}">{cell_label(cell)}</a>' for cell in cells)
    assert f"in {links} together" in page


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"break_even_tokens": 984, "break_even_limit": 8192}, "984 tokens"),
        ({"break_even_limit": 8192, "predicted_speedup": 0.8}, "none up to 8,192 tokens"),
        ({"break_even_limit": 8192, "predicted_speedup": 1.3}, "none: a gain here, but no more at 8,192 tokens"),
        ({"break_even_problem": "a weak baseline"}, "not known: a weak baseline"),
        ({}, "not known"),
    ],
)
def test_a_break_even_that_is_not_there_is_told_from_one_that_is_not_known(fields: dict[str, Any], text: str) -> None:
    cell = report_data("gain").estimates.cells[0]
    none = {"break_even_tokens": None, "break_even_limit": None, "break_even_problem": None}
    assert figures._break_even([cell.model_copy(update=none | fields)]) == text


def test_estimates_without_the_reach_of_the_break_even_can_still_be_read() -> None:
    cell = report_data("gain").estimates.cells[0]
    old = cell.model_dump(mode="json", exclude={"break_even_limit", "break_even_problem"})
    assert CellEstimate.model_validate_json(json.dumps(old)).break_even_limit is None


def test_the_noise_is_the_same_number_wherever_the_page_names_it() -> None:
    data = report_data("inconclusive")
    assert data.estimates.placebo_margin is not None
    share = f"±{100 * math.expm1(data.estimates.placebo_margin):.0f}"
    page = render_report(data)
    assert share in answer(data).sentence
    assert share in page.split('href="#controls">', 1)[1][:20]
    assert share in page.split('<section id="controls">', 1)[1].split("</section>")[0]
