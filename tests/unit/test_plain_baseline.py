"""Plain mlx_lm as a second baseline: a gain over a dense arm that is slower than what users already have is no gain."""

import pytest
from pydantic import ValidationError

from report_inputs import report_data
from specprefill_repro.report.build import render_report
from specprefill_repro.report.data import ReportData
from specprefill_repro.study.engines import VllmMlxEngine
from specprefill_repro.study.plan import ArmKind, plan_cells
from specprefill_repro.study.schema import Comparison, NeedleKind, Prompts, Treatment
from specprefill_repro.verdicts.attribution import attribute
from synthetic_records import World, demo_study

PLAIN = Comparison(pair="padded", treatment=Treatment.PLAIN, lengths=(512,), blocks=5)


def measured(ratio: float) -> ReportData:
    """The demo's study with plain mlx_lm `ratio` times as fast as the dense arm."""
    world = World(true_ratio={"padded-512-plain": ratio})
    return report_data("gain", world=world, comparisons=(*demo_study().comparisons, PLAIN))


def test_where_plain_mlx_lm_is_faster_the_baseline_of_that_target_is_weak() -> None:
    data = measured(1.2)
    cells = {cell.cell: cell for cell in data.estimates.cells}
    for name, cell in cells.items():
        weak = cell.pair == "padded" and not cell.treatment.reads_all
        assert ("plain mlx_lm read the same 512 tokens" in (cell.baseline_problem or "")) == weak, name
    found = attribute(data.study, cells["padded-1024-speculative-keep0.2"], 0.05, 3.0)
    assert found is not None and "weak baseline" in found.sentence and "plain mlx_lm" in found.sentence
    assert "plain mlx_lm read the same 512 tokens 1.2 times as fast as the dense arm" in render_report(data)


@pytest.mark.parametrize("ratio", [0.8, 1.0, 1.03])
def test_a_dense_arm_as_fast_as_plain_mlx_lm_is_a_sound_baseline(ratio: float) -> None:
    data = measured(ratio)
    assert all(cell.baseline_problem is None for cell in data.estimates.cells)
    page = render_report(data)
    assert "dense against plain mlx_lm" in page and "padded · 512 tokens · plain mlx_lm" in page


def test_trials_of_plain_mlx_lm_are_no_dense_times_and_no_noise_of_the_placebo() -> None:
    """Else a slow loop of mlx_lm would predict larger gains, or widen the margin within which all is a tie."""
    slow, level = measured(0.5).estimates, measured(1.0).estimates
    assert slow.placebo_margin == level.placebo_margin and slow.drift == level.drift
    predicted = [(cell.cell, cell.predicted_speedup) for cell in slow.cells]
    assert predicted == [(cell.cell, cell.predicted_speedup) for cell in level.cells]


def test_a_plain_cell_reads_everything_and_selects_nothing() -> None:
    (cell,) = plan_cells(demo_study(comparisons=(PLAIN,)))
    assert (cell.id, cell.treated.kind, cell.keep) == ("padded-512-plain", ArmKind.PLAIN, 1.0)
    for wrong in ({"keep": (0.2,)}, {"selection": {"chunk": 16}}):
        with pytest.raises(ValidationError, match=r"plain (keeps everything|selects nothing)"):
            Comparison.model_validate({**PLAIN.model_dump(), **wrong})


def test_a_server_has_no_plain_arm() -> None:
    with pytest.raises(ValidationError, match="is a server; `plain` compares mlx-lm with mlx_lm itself"):
        demo_study(
            prompts=Prompts(kinds=(NeedleKind.NUMBER,), begin_reply=False),
            engines={"served": VllmMlxEngine(kind="vllm-mlx", version="0.2.9")},
            comparisons=(PLAIN.model_copy(update={"engine": "served"}),),
        )
