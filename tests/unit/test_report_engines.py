"""Engines side by side: servers that ran SpecPrefill, fell back, or did either, on synthetic records."""

import re
import statistics
from pathlib import Path
from typing import Any

import pytest

from report_inputs import report_data
from specprefill_repro.engines.history import EngineHistory, load_history
from specprefill_repro.project import Project
from specprefill_repro.report import numbers
from specprefill_repro.report.build import render_report
from specprefill_repro.report.data import ReportData, read_embedded
from specprefill_repro.report.engines import EngineSection, Equivalence, Ran, engine_section
from specprefill_repro.report.rows import COLUMNS, dense_over_time
from specprefill_repro.study.engines import EngineSettings, OmlxEngine, VllmMlxEngine
from specprefill_repro.study.plan import ArmKind
from specprefill_repro.study.schema import Comparison, NeedleKind, Prompts, Treatment
from specprefill_repro.trials.table import Trials
from synthetic_records import Fault, World

LENGTH = 1024
REASON = "SpecPrefill failed, falling back to normal path: 'Attention' object has no attribute 'num_heads'"
VLLM: dict[str, EngineSettings] = {
    "paper": VllmMlxEngine(kind="vllm-mlx", version="0.2.9"),
    "newest": VllmMlxEngine(kind="vllm-mlx", version="0.6.0"),
}
OMLX: dict[str, EngineSettings] = {"mine": OmlxEngine(kind="omlx", checkout="omlx")}


@pytest.fixture(scope="module")
def history(real_project: Project) -> EngineHistory:
    return load_history(real_project.config)


def side_by_side(
    engines: dict[str, EngineSettings],
    *faults: Fault,
    blocks: int = 2,
    history: EngineHistory | None = None,
    **world: Any,
) -> ReportData:
    """A study of our engine and these servers; none of its cells' answers is lost unless `world` says so."""
    truth = {"answers_lost": {"*": 0.0}, "versions": {"mine": "0.3.9.dev1"}} | world
    return report_data(
        world=World(faults=faults, **truth),
        verdicts=(),
        history=history,
        prompts=Prompts(kinds=(NeedleKind.NUMBER,), begin_reply=False),
        engines=engines,
        comparisons=tuple(
            Comparison(
                pair="padded",
                engine=engine,
                treatment=Treatment.SPECULATIVE,
                lengths=(LENGTH,),
                keep=(0.2,),
                blocks=blocks,
            )
            for engine in (None, *engines)
        ),
    )


def section_of(data: ReportData) -> EngineSection:
    section = engine_section(data, Trials.of_records(data.records))
    assert section is not None
    return section


def equivalence_of(data: ReportData) -> Equivalence:
    (found,) = section_of(data).equivalences
    return found


def test_a_server_that_ran_it_and_one_that_fell_back_are_told_apart(history: EngineHistory) -> None:
    data = side_by_side(VLLM, Fault("fallback", "*-on-newest", reason=REASON), history=history)
    section = section_of(data)
    (table,) = section.tables
    ours, paper, newest = table.rows
    assert [row.ran.word for row in table.rows] == [Ran.SPARSE, Ran.SPARSE, Ran.DENSE]
    assert (paper.version, newest.version) == ("vllm-mlx 0.2.9", "vllm-mlx 0.6.0")
    for row, name in ((paper, "paper"), (newest, "newest")):
        records = [record for record in data.records if record.cell.endswith(f"-on-{name}")]
        for text, treated in ((row.dense_seconds, False), (row.asked_seconds, True)):
            seconds = statistics.median(record.seconds for record in records if record.treated is treated)
            assert text == numbers.seconds(seconds)
    assert newest.speedup == "no pair counts" and paper.speedup.endswith(numbers.TIMES)
    assert (paper.scored, newest.scored) == ("1,024", "0")
    assert newest.read == "1,024 of 1,024" and paper.read == ours.read != newest.read
    assert paper.dense_answers == newest.dense_answers == paper.sparse_answers == "100\u00a0% of 4"
    assert newest.sparse_answers == numbers.NONE
    assert section.silent == (f"newest (vllm-mlx 0.6.0): read the whole prompt in 4 of 4 trials; fallback: {REASON}",)
    assert section.summary == (
        "paper (vllm-mlx 0.2.9): SpecPrefill ran in 4 of 4 trials; "
        "newest (vllm-mlx 0.6.0): read the whole prompt in 4 of 4 trials"
    )


def test_the_change_behind_a_release_that_stops_working_is_named_with_its_source(history: EngineHistory) -> None:
    data = side_by_side(VLLM, Fault("fallback", "*-on-newest", reason=REASON), history=history)
    works, broken = section_of(data).versions
    assert (works.version, works.turn, broken.version, broken.turn) == ("0.2.9", "", "0.6.0", "stops working")
    assert [change.sentence.split(":")[0] for change in works.changes] == ["0.2.7 starts", "0.2.8 mends"]
    assert [change.sentence.split(":")[0] for change in broken.changes] == ["0.3.0 stops", "0.4.0 changes"]
    assert broken.changes[0].source == "vllm-mlx, pull request 441, commit d256d37, 2026-04-28"


def test_a_turn_without_a_known_change_says_so() -> None:
    data = side_by_side(VLLM, Fault("fallback", "*-on-paper"))
    broken, works = section_of(data).versions
    assert (broken.turn, works.turn) == ("", "starts working")
    assert "No change between them is known" in works.changes[0].sentence


def test_a_version_that_is_no_release_number_comes_last_and_claims_no_change(history: EngineHistory) -> None:
    engines = {**OMLX, "fork": OmlxEngine(kind="omlx", checkout="fork")}
    data = side_by_side(engines, history=history, versions={"mine": "0.3.9.dev1", "fork": "main"})
    assert [(row.version, bool(row.changes)) for row in section_of(data).versions] == [
        ("0.3.9.dev1", True),
        ("main", False),
    ]


def test_a_server_that_fell_back_now_and_then_is_neither() -> None:
    section = section_of(side_by_side(VLLM, Fault("fallback", "*-on-paper", block=1, reason=REASON)))
    row = section.tables[0].rows[1]
    assert row.ran.word == Ran.MIXED
    assert row.outcomes == f"2 of 4 fallback: {REASON}, 2 of 4 sparse"
    assert row.read == "288 to 1,024 of 1,024"
    assert section.silent == (f"paper (vllm-mlx 0.2.9): read the whole prompt in 2 of 4 trials; fallback: {REASON}",)


def test_an_omlx_that_does_as_the_paper_s_implementation_does_is_equivalent() -> None:
    found = equivalence_of(side_by_side({**VLLM, **OMLX}))
    assert found.engine == "mine (omlx 0.3.9.dev1)" and found.answer.word.startswith("yes")
    assert len(found.conditions) == 5 and all(condition.holds for condition in found.conditions)


@pytest.mark.parametrize(
    ("world", "differs"),
    [
        ({"faults": (Fault("fallback", "*-on-mine", block=0),)}, "SpecPrefill runs whenever it is asked for"),
        ({"faults": (Fault("keeps-all", "*-on-mine"),)}, "as many prompt tokens are read"),
        ({"answers_lost": {"*-on-mine": 1.0, "*": 0.0}}, "sparse answers change no more"),
    ],
)
def test_an_omlx_that_does_something_else_is_not(world: dict[str, Any], differs: str) -> None:
    faults = world.pop("faults", ())
    found = equivalence_of(side_by_side({**VLLM, **OMLX}, *faults, **world))
    assert found.answer.word == "no" and differs in found.sentence


def test_a_doubt_about_answers_stands_on_the_page() -> None:
    data = side_by_side({**VLLM, **OMLX}, answers_lost={"*-on-mine": 1.0, "*": 0.0})
    assert "it may not keep the positions of kept tokens" in render_report(data)


@pytest.mark.parametrize(
    ("engines", "blocks", "word"),
    [
        (VLLM, 2, "not run"),
        (OMLX, 2, "not run"),
        ({"newest": VLLM["newest"], **OMLX}, 2, "not run"),
        ({**VLLM, **OMLX}, 1, "not settled"),
    ],
    ids=["no oMLX", "no paper", "another release than the paper's", "too few prompts"],
)
def test_what_was_not_measured_is_not_answered(engines: dict[str, EngineSettings], blocks: int, word: str) -> None:
    assert equivalence_of(side_by_side(engines, blocks=blocks)).answer.word == word


def test_what_a_server_says_takes_no_effect_on_the_page() -> None:
    hostile = "</td><script>alert(1)</script>\u202e{{ 7 * 7 }}"
    data = side_by_side(OMLX, Fault("fallback", "*-on-mine", reason=hostile), versions={"mine": hostile})
    page = render_report(data)
    section = re.search(r'<section id="engines">.*?</section>', page, re.DOTALL)
    assert section is not None and section[0].count("&lt;script&gt;alert(1)") >= 4
    assert "\u202e" not in page and "<script>alert" not in page and "{{ 7 * 7 }}" in section[0]


def test_the_page_shows_the_section_and_carries_the_changes_that_it_is_made_from(history: EngineHistory) -> None:
    data = side_by_side({**VLLM, **OMLX}, Fault("fallback", "*-on-newest", reason=REASON), history=history)
    page = render_report(data)
    assert page.count('href="#engines"') == 2 and "stops working" in page and "pull request 441" in page
    assert render_report(read_embedded(page)) == page


def test_a_study_of_one_engine_has_no_such_section() -> None:
    data = report_data()
    assert engine_section(data, Trials.of_records(data.records)) is None
    page = render_report(data)
    assert "#engines" not in page and 'id="engines"' not in page


def test_an_engine_that_never_ran_is_shown_as_such() -> None:
    data = side_by_side(VLLM).model_copy(update={"records": ()})
    rows = section_of(data).tables[0].rows
    assert [row.ran.word for row in rows] == [Ran.NOTHING] * 3 and rows[1].version == "vllm-mlx 0.2.9"


def test_the_demo_study_of_engines_is_valid_and_has_the_paper_s_implementation(real_project: Project) -> None:
    from specprefill_repro.study.load import load_study
    from specprefill_repro.study.plan import plan_cells

    study = load_study(real_project, "engines-demo")
    cells = plan_cells(study)
    for name, settings in study.engines.items():
        assert any(cell.engine == name for cell in cells)
        if isinstance(settings, VllmMlxEngine):
            assert (Path(real_project.root) / "envs" / f"{settings.environment}.lock").is_file()
    # Enough prompts for the comparison of answers to say something.
    assert all(2 * cell.blocks >= 4 for cell in cells if cell.length == 640)


def test_drift_is_drawn_engine_by_engine_since_their_clocks_are_not_the_same() -> None:
    """A server's seconds hold its round trip; beside ours they would look like a machine that jumps."""
    data = side_by_side(VLLM)
    records = [
        record.model_copy(update={"seconds": 10 * record.seconds}) if record.cell.endswith("-on-paper") else record
        for record in data.records
    ]
    plain = next(place for place, record in enumerate(records) if not record.treated)
    asked = records[plain].requested.model_copy(update={"kind": ArmKind.PLAIN})
    records[plain] = records[plain].model_copy(update={"requested": asked, "seconds": 1e4})
    points = dense_over_time(data, Trials.of_records(records).frame(COLUMNS))
    assert {series for _, _, series in points} == {
        f"padded{engine}, 1,024 tokens" for engine in ("", " paper", " newest")
    }
    assert len(points) == sum(not record.treated for record in records) - 1
    assert all(0.8 < off < 1.25 for _, off, _ in points)
