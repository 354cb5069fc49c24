"""Studies and plans: bad input is refused with its place; the order of trials obeys its laws."""

import copy
import json
import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from specprefill_repro.errors import ReproError
from specprefill_repro.project import Project
from specprefill_repro.study.load import load_study
from specprefill_repro.study.plan import block_trials, plan_cells, prompts_needed
from specprefill_repro.study.schema import Selection, Study

STUDY = {
    "name": "small",
    "title": "t",
    "question": "q",
    "seed": 1,
    "pairs": {"pair": {"target": "big", "draft": "small"}},
    "prompts": {"kinds": ["number", "city"]},
    "comparisons": [
        {"pair": "pair", "treatment": "speculative", "lengths": [512, 1024], "keep": [0.1, 0.2], "blocks": 3},
        {"pair": "pair", "treatment": "placebo", "lengths": [512], "blocks": 2},
    ],
}


@pytest.fixture
def project(tmp_path):
    (tmp_path / "config" / "studies").mkdir(parents=True)
    return Project(tmp_path)


@pytest.fixture
def load(project):
    def from_values(values, name="small"):
        project.study_file(name).write_text(yaml.safe_dump(json.loads(json.dumps(values))))
        return load_study(project, name)

    return from_values


@pytest.mark.parametrize(("lengths", "keep", "cells"), [(2001, 1, "2,001"), (50, 41, "2,050"), (100_000, 1, "100,000")])
def test_more_cells_than_can_be_verified_are_refused_before_any_is_made(load, lengths, keep, cells):
    comparison = {"pair": "pair", "treatment": "speculative", "blocks": 1}
    made = {"lengths": list(range(128, 128 + lengths)), "keep": [0.1 + i / 1000 for i in range(keep)]}
    with pytest.raises(ReproError, match=f"{cells} cells, more than 2,000 cells") as error:
        load({**STUDY, "comparisons": [{**comparison, **made}]})
    assert error.value.exit_code == 2


def test_as_many_cells_as_can_be_verified_are_allowed(load):
    most = {"pair": "pair", "treatment": "placebo", "lengths": list(range(128, 2128)), "blocks": 1}
    assert len(plan_cells(load({**STUDY, "comparisons": [most]}))) == 2000


def test_cells_are_every_length_and_keep_rate(load):
    cells = plan_cells(load(STUDY))
    assert [cell.id for cell in cells] == [
        "pair-512-speculative-keep0.1",
        "pair-512-speculative-keep0.2",
        "pair-1024-speculative-keep0.1",
        "pair-1024-speculative-keep0.2",
        "pair-512-placebo",
    ]
    assert cells[-1].treated.kind == "dense"
    assert prompts_needed(load(STUDY), "pair", 512) >= 6


def edited(path, value):
    values = copy.deepcopy(STUDY)
    place = values
    for key in path[:-1]:
        place = place[key]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return values


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("comparisons", 0, "keep"), [0.0], "keep"),
        (("comparisons", 0, "keep"), [1.5], "keep"),
        (("comparisons", 0, "keep"), [-0.1], "keep"),
        (("comparisons", 0, "keep"), ["0.2"], "keep"),
        (("comparisons", 0, "keep"), [float("nan")], ".nan"),
        (("comparisons", 0, "keep"), ..., "keep"),
        (("comparisons", 1, "keep"), [0.2], "placebo"),
        (("comparisons", 0, "pair"), "other", "other"),
        (("comparisons", 0, "treatment"), "magic", "treatment"),
        (("comparisons", 0, "lengths"), [12], "lengths"),
        (("comparisons", 0, "lengths"), [], "lengths"),
        (("comparisons", 0, "blocks"), 0, "blocks"),
        (("comparisons",), [], "comparisons"),
        (("comparisons",), [STUDY["comparisons"][1]] * 2, "twice"),
        (("seed",), "one", "seed"),
        (("seed",), True, "seed"),
        (("pairs",), {}, "pairs"),
        (("pairs",), {"pair": {"target": "big"}}, "draft"),
        (("pairs",), {"../escape": {"target": "big", "draft": "small"}}, "escape"),
        (("prompts", "kinds"), ["rhyme"], "kinds"),
        (("colour",), "red", "colour"),
        (("title",), ..., "title"),
        (("selection",), {"pool": 12}, "pool"),
        (("selection",), "theirs", "theirs"),
        (("selection",), {"preset": "theirs"}, "theirs"),
        (("selection",), {"preset": "ours", "colour": 1}, "colour"),
        (("comparisons", 1, "selection"), "ours", "placebo"),
        (("comparisons",), [STUDY["comparisons"][0] | {"selection": "ours"}] * 2, "twice with ours"),
    ],
)
def test_bad_values_are_refused_with_their_place(load, path, value, named):
    with pytest.raises(ReproError) as error:
        load(edited(path, value))
    assert named in error.value.what


def test_a_wrong_item_is_the_only_fault_that_is_named(load):
    with pytest.raises(ReproError) as error:
        load(edited(("comparisons",), [STUDY["comparisons"][0] | {"keep": [1.5]}]))
    assert "comparisons.0.keep.0" in error.value.what and "at least 1 item" not in error.value.what
    with pytest.raises(ReproError, match=r"comparisons: .* at least 1 item"):
        load(edited(("comparisons",), []))


def test_an_unknown_study_names_the_known_ones(load, project):
    load(STUDY)
    with pytest.raises(ReproError, match=r"no study 'nothing'; there are: small") as error:
        load_study(project, "nothing")
    assert "./reproduce small" in error.value.next


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "", "small.yaml", "a b"])
def test_a_name_that_is_a_path_is_an_unknown_study(load, project, name):
    load(STUDY)
    with pytest.raises(ReproError, match="There is no study"):
        load_study(project, name)


@pytest.mark.parametrize(("name", "where"), [("merged", "merge"), ("readme.md", "README.md"), ("small.tiny", "tiny")])
def test_a_name_whose_report_would_lie_where_another_page_does_is_refused(load, name, where):
    load(STUDY)
    with pytest.raises(ReproError, match=f"A study can't be called '{re.escape(name)}'") as error:
        load({**STUDY, "name": name}, name=name)
    assert where in error.value.why and f"config/studies/{name}.yaml" in error.value.next


def test_a_renamed_file_is_refused(load):
    with pytest.raises(ReproError, match="calls itself 'small'"):
        load(STUDY, name="other")


@given(st.integers(0, 2**32 - 1), st.integers(0, 50))
def test_a_block_is_mirrored_and_gives_each_prompt_to_both_arms(seed, index):
    cell = plan_cells(Study.model_validate_json(json.dumps(STUDY)))[0]
    trials = block_trials(seed, cell, index)
    arms = [trial.treated for trial in trials]
    assert arms in ([False, True, True, False], [True, False, False, True])
    assert arms == arms[::-1]
    assert [trial.position for trial in trials] == [0, 1, 2, 3]
    for prompt in (2 * index, 2 * index + 1):
        assert sorted(trial.treated for trial in trials if trial.prompt == prompt) == [False, True]
    # A linear drift over the four positions adds the same to both arms.
    assert sum(t.position for t in trials if t.treated) == sum(t.position for t in trials if not t.treated)


def test_the_coin_of_the_first_arm_is_fair_and_seeded(load):
    cell = plan_cells(load(STUDY))[0]
    first = [block_trials(7, cell, index)[0].treated for index in range(400)]
    assert first == [block_trials(7, cell, index)[0].treated for index in range(400)]
    assert 150 < sum(first) < 250


def test_a_study_names_a_rule_and_a_comparison_its_own(load):
    first, placebo = STUDY["comparisons"]
    first = first | {"lengths": [512], "keep": [0.2]}
    control = first | {"treatment": "uniform"}
    study = load(
        STUDY
        | {
            "selection": {"preset": "liu2025", "chunk": 16},
            "comparisons": [first, first | {"selection": "omlx"}, control | {"selection": {"tail": 8}}, placebo],
        }
    )
    cells = plan_cells(study)
    assert [cell.id for cell in cells] == [
        "pair-512-speculative-keep0.2",
        "pair-512-speculative-omlx-keep0.2",
        "pair-512-uniform-default-tail-8-keep0.2",
        "pair-512-placebo",
    ]
    assert [cell.rule for cell in cells] == ["liu2025, chunk 16", "omlx", "default, tail 8", None]
    rules = [cell.treated.selection for cell in cells[:3]]
    assert [(rule.chunk, rule.tail, rule.temperature) for rule in rules] == [(16, 0, 0), (32, 512, 0.6), (32, 8, 0)]


def test_a_rule_reads_back_as_it_was_even_when_its_name_means_something_else_by_then():
    rule = Selection(preset="omlx", tail=100)
    again = Selection.model_validate_json(rule.model_dump_json())
    assert again == rule and again.tail == 100


def test_cells_of_rules_with_many_changes_keep_short_and_different_names(load):
    long = {"look_ahead": 3, "prompt_query": False, "temperature": 0.5, "top_p": 0.5, "pool": 5, "chunk": 8, "head": 1}
    first = STUDY["comparisons"][0] | {"lengths": [512], "keep": [0.2]}
    rules = [long, long | {"tail": 3}]
    cells = plan_cells(load(STUDY | {"comparisons": [first | {"selection": rule} for rule in rules]}))
    assert len({cell.id for cell in cells}) == 2
    assert all(len(cell.id) < 120 and re.fullmatch(r"[a-z0-9._-]+", cell.id) for cell in cells)


def server_study(**changes):
    comparison = {"pair": "pair", "treatment": "speculative", "lengths": [512], "keep": [0.2], "blocks": 3}
    values = {
        **STUDY,
        "prompts": {"kinds": ["number"], "begin_reply": False},
        "engines": {"paper": {"kind": "vllm-mlx", "version": "0.2.9"}},
        "comparisons": [comparison, {**comparison, "engine": "paper"}],
    }
    return {**values, **changes}


def test_an_engine_is_part_of_its_cells_ids_where_it_is_not_the_study_s_own(load):
    own, server = plan_cells(load(server_study()))
    assert (own.id, server.id) == ("pair-512-speculative-keep0.2", "pair-512-speculative-keep0.2-on-paper")
    assert (own.engine, server.engine) == ("mlx-lm", "paper")
    # A server chooses by rules of its own; nothing else than the keep rate can be asked of it.
    assert own.treated.selection is not None and server.treated.selection is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"prompts": {"kinds": ["number"]}}, "set `begin_reply: false`"),
        ({"engines": {}}, "no engine 'paper'; there are: mlx-lm"),
        ({"engines": {"paper": {"kind": "vllm"}}}, "vllm"),
        ({"engines": {"paper": {"kind": "vllm-mlx"}}}, "version"),
        ({"engines": {"paper": {"kind": "vllm-mlx", "version": "../x"}}}, "version"),
        ({"engines": {"mlx-lm": {"kind": "mlx-lm"}}}, "redefines 'mlx-lm'"),
        (
            {
                "comparisons": [
                    {
                        "pair": "pair",
                        "engine": "paper",
                        "treatment": "random",
                        "lengths": [512],
                        "keep": [0.2],
                        "blocks": 3,
                    }
                ]
            },
            "none can choose tokens at random",
        ),
    ],
)
def test_what_a_server_can_t_do_is_refused(load, changes, said):
    with pytest.raises(ReproError, match="not a valid study") as error:
        load(server_study(**changes))
    assert said in error.value.what


def test_a_study_without_further_engines_is_written_as_before(load):
    plain = load(STUDY).model_dump(mode="json")
    assert "engines" not in plain and "engine" not in plain["comparisons"][0]
