"""One claim, many machines: the summary against closed forms and simulation, and what may not be summed up."""

import base64
import bz2
import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats
from typer.testing import CliRunner

from published_reports import STUDY, small_report
from report_inputs import report_data
from specprefill_repro import stages
from specprefill_repro.cli import app
from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.estimates.schema import Interval
from specprefill_repro.files import content_id, write_text
from specprefill_repro.merge.claims import merge_claims
from specprefill_repro.merge.page import plain, render_merged, write_merged
from specprefill_repro.merge.random_effects import random_effects
from specprefill_repro.merge.sources import Source
from specprefill_repro.project import Project
from specprefill_repro.report.build import render_report
from specprefill_repro.report.data import ReportData, read_embedded
from specprefill_repro.verdicts.schema import ConditionMatch, Word

EFFECTS = st.lists(st.tuples(st.floats(-2, 2), st.floats(0.01, 1)), min_size=2, max_size=8)


def paule_mandel(effects: np.ndarray, errors: np.ndarray) -> float:
    """The tau^2 at which the weighted sum of squares is what it should be; 0 when it is less at 0 already."""

    def excess(tau2: float) -> float:
        weights = 1 / (errors**2 + tau2)
        mean = (weights * effects).sum() / weights.sum()
        return float((weights * (effects - mean) ** 2).sum() - (len(effects) - 1))

    return float(optimize.brentq(excess, 0, 1e4)) if excess(0) > 0 else 0.0


@settings(max_examples=60, deadline=None)
@given(EFFECTS)
def test_the_summary_is_the_one_of_its_formulas(pairs: list[tuple[float, float]]) -> None:
    effects, errors = (np.array(values) for values in zip(*pairs, strict=True))
    found = random_effects(effects.tolist(), errors.tolist())
    tau2 = paule_mandel(effects, errors)
    assert found.tau2 == pytest.approx(tau2, rel=1e-3, abs=1e-5)
    weights = 1 / (errors**2 + found.tau2)
    mean = (weights * effects).sum() / weights.sum()
    scatter = (weights * (effects - mean) ** 2).sum() / (len(effects) - 1)
    error = math.sqrt(max(1.0, scatter) / weights.sum())
    half = stats.t.ppf(0.975, len(effects) - 1) * error
    assert (found.mean, found.error) == pytest.approx((mean, error), rel=1e-6, abs=1e-9)
    assert (found.low, found.high) == pytest.approx((mean - half, mean + half), rel=1e-6, abs=1e-9)
    fixed = 1 / errors**2
    q = (fixed * (effects - (fixed * effects).sum() / fixed.sum()) ** 2).sum()
    assert found.q == pytest.approx(q, rel=1e-6, abs=1e-9)
    assert found.i2 == pytest.approx(max(0.0, 1 - (len(effects) - 1) / q) if q > 1e-9 else 0.0, abs=1e-6)
    if len(effects) < 3:
        assert found.prediction is None
    else:
        wide = stats.t.ppf(0.975, len(effects) - 2) * math.sqrt(found.tau2 + error**2)
        assert found.prediction == pytest.approx((mean - wide, mean + wide), rel=1e-6, abs=1e-9)


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    """500 crowds of six machines that truly differ, from a fixed seed."""
    rng = np.random.default_rng(1)
    inside = predicted = 0
    for _ in range(500):
        errors = rng.uniform(0.02, 0.1, 6)
        found = random_effects(
            (0.5 + 0.15 * rng.standard_normal(6) + errors * rng.standard_normal(6)).tolist(), errors.tolist()
        )
        assert found.prediction is not None
        inside += found.low <= 0.5 <= found.high
        predicted += found.prediction[0] <= 0.5 + 0.15 * rng.standard_normal() <= found.prediction[1]
    assert 0.91 <= inside / 500 <= 0.98
    assert 0.91 <= predicted / 500 <= 0.99


@pytest.mark.parametrize(("effects", "errors"), [([1.0], [0.1]), ([1, 2], [0.1, 0]), ([1, math.nan], [1, 1]), ([], [])])
def test_what_can_not_be_summed_up_is_refused(effects: list[float], errors: list[float]) -> None:
    with pytest.raises(ValueError):
        random_effects(effects, errors)


@pytest.fixture(scope="module")
def report() -> ReportData:
    return report_data("gain", blocks=3)


def on(
    report: ReportData, chip: str, speedup: float, word: Word | None = None, differs: tuple[str, ...] = ()
) -> Source:
    """The report as if another machine had measured `speedup`, with an interval of a tenth either way.

    Its records have other hashes than those of any other machine or speed-up.
    """
    interval = Interval(low=speedup / 1.1, high=speedup * 1.1, level=0.95)
    cells = tuple(
        cell.model_copy(
            update={
                "speedup": speedup,
                "interval95": interval,
                "degrees": 5,
                "pairs": tuple(
                    pair.model_copy(
                        update={
                            "dense_record": content_id([chip, speedup, pair.dense_record]),
                            "treated_record": content_id([chip, speedup, pair.treated_record]),
                        }
                    )
                    for pair in cell.pairs
                ),
            }
        )
        for cell in report.estimates.cells
    )
    conditions = tuple(
        ConditionMatch(condition=name.rstrip("?"), claimed="a", here="b", matches=None if name.endswith("?") else False)
        for name in differs
    )
    verdicts = tuple(
        verdict.model_copy(
            update={"measured": speedup, "interval95": interval, "conditions": conditions, "word": word or verdict.word}
        )
        for verdict in report.verdicts.verdicts
    )
    engines = {
        name: engine.model_copy(update={"environment": {**engine.environment, "chip": (chip,)}})
        for name, engine in report.estimates.engines.items()
    }
    return Source(
        chip,
        report.model_copy(
            update={
                "estimates": report.estimates.model_copy(update={"cells": cells, "engines": engines}),
                "verdicts": report.verdicts.model_copy(update={"verdicts": verdicts}),
            }
        ),
    )


def test_machines_are_the_units_and_each_has_the_error_of_its_interval(report: ReportData) -> None:
    merged = merge_claims([on(report, "A", 1.2), on(report, "B", 1.5), on(report, "C", 2.0)])
    claim = next(each for each in merged if each.effects)
    assert claim.machines == 3 and claim.effects is not None and claim.effects.prediction is not None
    error = math.log(1.1) / stats.t.ppf(0.975, 5)
    assert all(row.error == pytest.approx(error, rel=1e-6) for row in claim.rows)
    assert claim.effects.mean == pytest.approx(np.mean(np.log([1.2, 1.5, 2.0])), rel=1e-6)


def test_two_reports_of_one_kind_of_machine_count_as_one(report: ReportData) -> None:
    same = merge_claims([on(report, "A", 1.4), on(report, "A", 1.5)])
    assert all(each.effects is None and each.machines <= 1 for each in same)
    mixed = merge_claims([on(report, "A", 1.4), on(report, "A", 1.5), on(report, "B", 2.0)])
    assert {each.effects.units for each in mixed if each.effects} == {2}


def named(source: Source, name: str) -> Source:
    """The same report under another title, and from another place."""
    study = source.data.study.model_copy(update={"title": name})
    return Source(name, source.data.model_copy(update={"study": study}))


def test_the_same_trials_count_once_whatever_the_report_calls_itself(report: ReportData) -> None:
    machines = [on(report, "A", 1.2), on(report, "B", 1.5)]
    once = merge_claims(machines)
    again = merge_claims([*machines, named(machines[0], "A again"), named(machines[1], "B again")])
    assert any(each.effects for each in once)
    assert [each.effects for each in again] == [each.effects for each in once]
    copies = [row for each in again for row in each.rows if row.source.endswith("again") and row.again]
    assert {row.left_out for row in copies} == {"its trials count already in A", "its trials count already in B"}
    assert not any(row.again for each in once for row in each.rows)


def test_a_report_with_some_trials_of_another_does_not_count_them_again(report: ReportData) -> None:
    whole, other = on(report, "A", 1.2), on(report, "A", 1.3)
    cells = tuple(
        cell.model_copy(update={"pairs": (mine.pairs[0], *cell.pairs[1:])}) if cell.pairs else cell
        for cell, mine in zip(other.data.estimates.cells, whole.data.estimates.cells, strict=True)
    )
    estimates = other.data.estimates.model_copy(update={"cells": cells})
    overlapping = Source("overlapping", other.data.model_copy(update={"estimates": estimates}))
    rows = [row for each in merge_claims([whole, overlapping]) for row in each.rows if row.source == "overlapping"]
    assert any(row.again for row in rows)
    assert all(row.effect is None and re.match(r"2 of its \d+ trials count already in A", row.left_out or "")
               for row in rows if row.again)  # fmt: skip


@pytest.mark.parametrize(
    ("word", "differs", "counts"),
    [
        (Word.INVALID, (), False),
        (Word.NOT_RUN, (), False),
        (Word.NOT_COMPARABLE, ("hardware", "memory"), True),
        (Word.NOT_COMPARABLE, ("hardware", "target"), False),
        # Not stated: a verdict needs the draft, and not the engine's version.
        (Word.NOT_COMPARABLE, ("hardware", "engine version?"), True),
        (Word.NOT_COMPARABLE, ("hardware", "draft?"), False),
        (Word.NOT_COMPARABLE, (), False),
        (Word.SLOWER, (), True),
    ],
)
def test_what_differs_in_more_than_the_machine_does_not_count(
    report: ReportData, word: Word, differs: tuple[str, ...], counts: bool
) -> None:
    merged = merge_claims([on(report, "A", 1.2, word, differs), on(report, "B", 1.5, word, differs)])
    assert any(each.effects for each in merged) is counts
    assert all(row.left_out for each in merged for row in each.rows if row.effect is None)


def test_cards_that_differ_are_different_claims(report: ReportData) -> None:
    one, other = on(report, "A", 1.2), on(report, "B", 1.5)
    verdicts = tuple(
        verdict.model_copy(update={"claim": verdict.claim.model_copy(update={"tolerance": 0.5})})
        for verdict in other.data.verdicts.verdicts
    )
    changed = other.data.model_copy(update={"verdicts": other.data.verdicts.model_copy(update={"verdicts": verdicts})})
    assert not any(each.effects for each in merge_claims([one, Source("B", changed)]))


def test_the_page_shows_summary_prediction_and_heterogeneity(report: ReportData) -> None:
    sources = [on(report, "A", 1.2), on(report, "B", 1.5), on(report, "<b>C</b>", 2.0)]
    merged = [next(each for each in merge_claims(sources) if each.effects)]
    page = render_merged(sources, merged)
    for words in ("on 3 machines", "prediction interval", "I²", "tau²", "&lt;b&gt;C&lt;/b&gt;", "<svg"):
        assert words in page
    assert "<b>C" not in page
    assert plain(merged[0])["summary_of_log_speedups"]["units"] == 3


def test_nothing_to_merge_is_said(tmp_path: Path) -> None:
    write_text(tmp_path / "Snakefile", "")
    with pytest.raises(ReproError, match="nothing to merge"):
        write_merged(Project(tmp_path))


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """One true report of the checkout's own."""
    project = small_report(tmp_path_factory.mktemp("merge"))
    stages.report(STUDY, project)
    return project


def embedding(page: str, content: bytes) -> str:
    """The page with another data block, whose hash fits."""
    block = {
        "data": base64.b64encode(bz2.compress(content)).decode(),
        "encoding": "base64 of bzip2 of JSON (UTF-8)",
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    start, rest = page.split('id="records">')
    return f'{start}id="records">{json.dumps(block)}</script>{rest.partition("</script>")[2]}'


def flattered(page: str) -> str:
    """What the page's records don't say, drawn and sealed as if they did."""
    data = read_embedded(page)
    interval = Interval(low=9.8, high=10.0, level=0.95)
    cells = tuple(c.model_copy(update={"speedup": 9.9, "interval95": interval}) for c in data.estimates.cells)
    return render_report(data.model_copy(update={"estimates": data.estimates.model_copy(update={"cells": cells})}))


def nested(page: str) -> str:
    return page.replace('id="records">', 'id="records">' + "[" * 100_000)


BAD: dict[str, Callable[[str], str]] = {
    "flattered": flattered,
    "edited": lambda page: page.replace("<h1", "<h1 title='better'", 1),
    "nested": nested,
    "nested inside": lambda page: embedding(page, b'{"study":' + b"[" * 100_000),
    "no page": lambda page: "<html></html>",
}


def test_a_page_that_does_not_follow_from_its_records_decides_nothing_and_hides_nothing(
    checkout: Project, tmp_path: Path
) -> None:
    shutil.copytree(checkout.root, tmp_path, dirs_exist_ok=True)
    project = Project(tmp_path)
    alone = write_merged(project)
    assert [source.name for source in alone.sources] == [f"this checkout: {STUDY}"] and alone.left_out == []
    before = json.loads((alone.page.parent / "merged.json").read_text())
    page = project.report(STUDY).read_text()
    for name, change in BAD.items():
        write_text(project.report(name), change(page))
    write_text(project.results / "imported" / ("f" * 16) / "index.html", BAD["flattered"](page))
    write_text(project.results / "imported" / ("0" * 16) / "index.html", page)
    project.report("waits for ever").parent.mkdir()
    os.mkfifo(project.report("waits for ever"))

    merged = write_merged(project)
    assert [source.name for source in merged.sources] == [f"this checkout: {STUDY}"]
    left_out = {each.name: each.why for each in merged.left_out}
    assert left_out.pop(f"imported: {'0' * 16}") == f"It is the same report as this checkout: {STUDY}."
    assert {f"this checkout: {name}" for name in BAD} < left_out.keys() and f"imported: {'f' * 16}" in left_out
    after = json.loads((merged.page.parent / "merged.json").read_text())
    assert after["claims"] == before["claims"] and len(after["left_out"]) == len(merged.left_out)
    for name in left_out:
        assert name in merged.page.read_text()


def test_reports_that_are_all_bad_are_refused_with_their_reasons(
    checkout: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_text(tmp_path / "Snakefile", "")
    (tmp_path / "config" / "studies").mkdir(parents=True)
    write_text(tmp_path / "reports" / "a" / "index.html", nested(checkout.report(STUDY).read_text()))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ReproError, match=r"every report is left out\. this checkout: a: ") as caught:
        write_merged(Project(tmp_path))
    assert caught.value.exit_code is Exit.VERIFICATION
    assert not (tmp_path / "reports" / "merged").exists()


def test_the_command_says_what_it_left_out(checkout: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(checkout.root, tmp_path, dirs_exist_ok=True)
    write_text(tmp_path / "reports" / "bad\x1b[2J" / "index.html", "<html></html>")
    (tmp_path / "config" / "studies").mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(app, ["merge"])
    assert found.exit_code == 0, found.output
    assert "1 reports, each recomputed from its records" in found.output
    assert "Not merged: this checkout: bad⟨U+001B⟩[2J: The page's data block" in found.output
