"""The issue's four questions: each answer follows the evidence of the run, never what is known from elsewhere."""

from pathlib import Path

import pytest

from report_inputs import report_data
from specprefill_repro.engines.history import load_history
from specprefill_repro.estimates.schema import EngineFound, Interval
from specprefill_repro.report.build import render_report
from specprefill_repro.report.data import read_embedded
from specprefill_repro.report.questions import UNANSWERED, questions
from specprefill_repro.study.engines import OmlxEngine
from specprefill_repro.study.schema import Comparison, Treatment
from specprefill_repro.verdicts.attribution import DRAFT
from specprefill_repro.verdicts.schema import Attribution, Cause

HISTORY = load_history(Path(__file__).parents[2] / "config")


def asked(situation="gain", **more):
    data = report_data(situation, natural=True, questions="omlx-issue", **more)
    return data.model_copy(update={"history": HISTORY})


def with_cells(data, change):
    cells = tuple(change(cell) for cell in data.estimates.cells)
    return data.model_copy(update={"estimates": data.estimates.model_copy(update={"cells": cells})})


def on_servers(data, outcomes, version="0.3.5.dev1"):
    """The cells of pair `padded` as if they had run on servers, one a threshold, that ended as `outcomes` says."""
    engines = {name: OmlxEngine(kind="omlx", threshold=int(name.split("-")[1])) for name in outcomes}
    template = next(c for c in data.estimates.cells if c.cell == "padded-1024-speculative-keep0.2")
    cells = tuple(
        template.model_copy(
            update={
                "cell": f"{template.cell}-on-{name}",
                "engine": name,
                "outcomes": ended,
                "pairs": template.pairs if set(ended) == {"sparse"} else (),
                "interval95": template.interval95 if set(ended) == {"sparse"} else None,
            }
        )
        for name, ended in outcomes.items()
    )
    found = {name: EngineFound(kinds=("omlx",), environment={"omlx": (version,)}) for name in outcomes}
    comparisons = tuple(
        Comparison(pair="padded", engine=name, treatment=Treatment.SPECULATIVE, lengths=(1024,), keep=(0.2,), blocks=3)
        for name in outcomes
    )
    study = data.study.model_copy(update={"engines": engines, "comparisons": comparisons})
    estimates = data.estimates.model_copy(update={"cells": cells, "engines": found})
    return data.model_copy(update={"study": study, "estimates": estimates})


def answers(data):
    return [found.answer for found in questions(data)]


def test_a_study_that_asks_nothing_has_no_such_section():
    data = report_data("gain")
    assert questions(data) == ()
    assert "questions of the issue" not in render_report(data)


def test_a_run_without_trials_answers_nothing_and_still_shows_what_is_known():
    found = questions(asked("not run"))
    assert [each.answer for each in found] == [UNANSWERED] * 4
    assert any("0.3.5.dev1" in text for text in found[3].known)


@pytest.mark.parametrize(("situation", "word"), [("gain", "yes"), ("loss", "no"), ("inconclusive", "not settled")])
def test_the_draft_is_judged_by_what_it_brought(situation, word):
    answer = questions(asked(situation))[0].answer
    assert answer.startswith(f"smollm2-135m: {word}")


def test_a_loss_is_laid_at_the_draft_only_where_the_evidence_does():
    data = asked("loss")
    lost = [c.cell for c in data.estimates.cells if c.treatment is Treatment.SPECULATIVE]

    def blamed(name):
        causes = (Cause(name=name, applies=True, evidence="seen"),)
        found = tuple(Attribution(cell=cell, sentence="s", causes=causes) for cell in lost)
        return data.model_copy(update={"verdicts": data.verdicts.model_copy(update={"attributions": found})})

    assert "costs too much" in questions(blamed(DRAFT))[0].answer
    assert "not the reason" in questions(blamed("noise too large"))[0].answer


def test_a_fallback_is_not_the_papers_path_and_says_nothing_about_the_draft():
    data = on_servers(asked(), {"omlx-512": {"dense": 12}})
    draft, path, _, regression = questions(data)
    assert draft.answer == UNANSWERED
    assert path.answer == "No: not on omlx-512"
    assert "12 ended as dense" in " ".join(path.evidence)
    assert regression.answer.startswith("Yes, of omlx 0.3.5.dev1")
    assert any("threshold" in text for text in regression.evidence)


def test_a_server_that_ran_it_shows_no_regression_whatever_is_known_of_others():
    data = on_servers(asked(), {"omlx-512": {"sparse": 12}})
    assert questions(data)[1].answer == "Yes, on omlx-512"
    assert questions(data)[3].answer.startswith("None shows here")


def test_a_fallback_of_a_release_without_a_known_one_is_called_unknown():
    data = on_servers(asked(), {"omlx-512": {"fallback: draft not loaded": 12}}, version="9.0.0")
    assert questions(data)[3].answer.startswith("None is known of omlx 9.0.0, yet")


def test_without_a_server_the_path_is_known_of_our_engine_alone_and_no_regression_is():
    _, path, _, regression = questions(asked())
    assert "says nothing of a server" in path.answer
    assert regression.answer == UNANSWERED


def test_engines_that_were_left_out_are_named():
    data = asked(left_out=("omlx: not given (--engine omlx=PATH)",))
    assert "Not measured: omlx: not given (--engine omlx=PATH)." in questions(data)[3].evidence


def test_thresholds_matter_where_they_decide_whether_it_ran():
    data = on_servers(asked(), {"omlx-512": {"sparse": 4}, "omlx-8192": {"dense": 4}})
    found = questions(data)[2]
    assert found.answer == "Yes: threshold"
    assert "trials ended as sparse against dense" in found.evidence[0]
    same = on_servers(asked(), {"omlx-512": {"sparse": 4}, "omlx-1024": {"sparse": 4}})
    assert questions(same)[2].answer == "None of those tried shows a difference beyond the noise: threshold"


def test_keep_rates_matter_where_intervals_are_apart_and_not_where_they_overlap():
    def told(width):
        def change(cell):
            if cell.treatment is not Treatment.SPECULATIVE or cell.speedup is None:
                return cell
            low, high = 1 / cell.nominal_keep / width, 1 / cell.nominal_keep * width
            interval = Interval(low=low, high=high, level=0.95)
            return cell.model_copy(update={"speedup": 1 / cell.nominal_keep, "interval95": interval})

        return questions(with_cells(asked(), change))[2].answer

    assert "keep rate" in told(1.01) and told(1.01).startswith("Yes")
    assert told(100).startswith("None of those tried")


def test_the_page_ends_with_the_questions_and_can_be_read_back():
    page = render_report(asked())
    assert page.index('id="trials"') < page.index('<section id="questions">')
    assert "What is known from elsewhere" in page
    again = read_embedded(page)
    assert again.history == HISTORY and questions(again) == questions(asked())


def test_tiny_scale_is_told_on_the_first_screen_and_at_the_answers():
    page = render_report(asked(shrunk=31, left_out=("vllm-mlx: no server",)))
    first = page[: page.index('id="answer"')]
    assert "Tiny scale" in first and "31 times shorter" in first and "vllm-mlx: no server" in first
    assert "about small random models" in page[page.index('<section id="questions">') :]
    assert "Tiny scale" not in render_report(asked())
