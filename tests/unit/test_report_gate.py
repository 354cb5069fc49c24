"""The page says of every known pitfall what guarded against it, and which check failed."""

import pytest

from report_inputs import report_data
from specprefill_repro.files import content_id
from specprefill_repro.gate.pitfalls import PITFALLS
from specprefill_repro.gate.schema import Check, GateResult
from specprefill_repro.report.build import render_report
from specprefill_repro.report.rows import pitfall_rows


def gate(pair: str, *checks: Check) -> GateResult:
    weights = {"target_weights_sha256": content_id("t"), "draft_weights_sha256": content_id("d")}
    return GateResult(pair=pair, target="t", draft="d", fingerprint="f", checks=checks, **weights)


def check(name: str, *guards: int, passed: bool = True) -> Check:
    return Check(name=name, passed=passed, measured="so", required="so", says=f"About {name}.", guards=guards)


def test_every_pitfall_has_a_row_and_names_its_checks() -> None:
    rows = {row.number: row for row in pitfall_rows({"one": gate("one", check("a", *PITFALLS), check("b", 15))})}
    assert list(rows) == list(PITFALLS)
    assert all(row.fine for row in rows.values())
    assert (rows[1].checks, rows[15].checks) == ("a", "a, b")
    assert all(row.what.endswith(".") for row in rows.values())


def test_a_failed_check_and_a_pitfall_without_a_check_are_not_called_excluded() -> None:
    gates = {"one": gate("one", check("a", *PITFALLS)), "two": gate("two", check("a", 15, passed=False))}
    rows = {row.number: row for row in pitfall_rows(gates)}
    assert not rows[15].fine and rows[15].problem == "a failed for pair two"
    assert not rows[1].fine and rows[1].problem == "not checked for pair two"


def test_without_a_gate_nothing_is_claimed() -> None:
    assert pitfall_rows({}) == []


@pytest.mark.parametrize("passed", [True, False])
def test_the_page_shows_sentences_numbers_and_failures(passed: bool) -> None:
    data = report_data("gain")
    data.gates.update({"padded": gate("padded", check("keys-equal-dense", 15, passed=passed))})
    page = render_report(data)
    assert "About keys-equal-dense." in page and PITFALLS[15].what in page
    assert ("keys-equal-dense failed for pair padded" in page) == (not passed)
