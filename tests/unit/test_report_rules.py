"""Selection rules side by side: one study of several, on synthetic records with a known truth."""

import re

import pytest

from report_inputs import report_data
from specprefill_repro.report import numbers
from specprefill_repro.report.build import render_report
from specprefill_repro.report.rules import rule_tables
from specprefill_repro.study.schema import Comparison, Selection, Treatment
from synthetic_records import World


def comparison(treatment, rule=None, keep=0.2):
    selection = None if rule is None else rule if isinstance(rule, Selection) else Selection(preset=rule)
    return Comparison(pair="padded", treatment=treatment, lengths=(1024,), keep=(keep,), blocks=3, selection=selection)


@pytest.fixture(scope="module")
def data():
    speculative = Treatment.SPECULATIVE
    world = World(true_ratio={"*-ours-*": 2.0, "*-omlx-*": 1.5}, noise=0.002)
    return report_data(
        world=world,
        verdicts=(),
        comparisons=(
            comparison(speculative, "ours"),
            comparison(speculative, "omlx"),
            comparison(speculative, "green2026"),
            comparison(speculative, Selection(preset="ours", chunk=64)),
            comparison(Treatment.HEAD_TAIL, "ours"),
            comparison(Treatment.UNIFORM),
        ),
    )


def test_every_rule_and_control_gets_a_row_with_what_was_measured(data):
    (table,) = rule_tables(data)
    assert table.title == "padded, 1,024 tokens"
    rows = {row.rule: row for row in table.rows}
    assert list(rows) == ["ours", "omlx", "green2026", "ours, chunk 64", "head-tail (ours)", "uniform"]
    assert float(rows["ours"].speedup.rstrip(numbers.TIMES)) == pytest.approx(2.0, abs=0.02)
    assert float(rows["omlx"].speedup.rstrip(numbers.TIMES)) == pytest.approx(1.5, abs=0.02)
    cells = {cell.rule: cell for cell in data.estimates.cells if cell.treatment is Treatment.SPECULATIVE}
    for name, cell in cells.items():
        kept = [r.evidence for r in data.records if r.treated and r.cell == cell.cell]
        needles = sum(evidence.needle_kept == 1 for evidence in kept)
        dropped = sum(evidence.kept_ranges[-1][1] < 1024 for evidence in kept)
        assert rows[name].needles == f"{needles} of 6"
        assert rows[name].last_token == f"{dropped} of 6"
        share = sum(evidence.tokens_kept for evidence in kept) / len(kept) / 1024
        assert rows[name].tokens_read.startswith(f"{100 * share:.0f}")
    assert rows["ours"].last_token == "0 of 6"


def test_the_page_shows_the_table_and_where_each_rule_is_from(data):
    page = render_report(data)
    section = re.search(r'<section id="rules">.*?</section>', page, re.DOTALL).group()
    assert "arXiv" not in section and "pull request 2442" in section and "benchmarks/choose_selection.py" in section
    assert section.count("<tr>") == 7


def test_a_rule_may_drop_the_last_prompt_token_and_the_pair_still_counts(data):
    green = next(cell for cell in data.estimates.cells if cell.rule == "green2026")
    assert len(green.pairs) == 6 and not green.problems
    assert any(not pair.last_token_kept for pair in green.pairs)


def test_one_rule_alone_makes_no_table():
    data = report_data(comparisons=(comparison(Treatment.SPECULATIVE),), verdicts=())
    assert rule_tables(data) == []
    assert 'id="rules"' not in render_report(data)
