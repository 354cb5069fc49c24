"""Every shipped study loads and plans, at full and at tiny scale, and each of its cells speaks to a claim."""

import re
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import pytest

from specprefill_repro.errors import ReproError
from specprefill_repro.estimates.schema import CellEstimate
from specprefill_repro.files import read_yaml_model
from specprefill_repro.models.schema import HubSource, ModelsFile, Padded, Synthetic
from specprefill_repro.project import Project
from specprefill_repro.staleness import models_of
from specprefill_repro.study.given import GivenEngines, GivenOmlx, give_engine, given_engines, with_given
from specprefill_repro.study.load import load_study, study_names
from specprefill_repro.study.plan import Cell, plan_cells
from specprefill_repro.study.scale import SHORTEST, at_tiny_scale, scaled_name
from specprefill_repro.study.schema import Study, Treatment
from specprefill_repro.verdicts.claims import load_claims, study_claims
from specprefill_repro.verdicts.matching import EngineFacts, Facts, ModelFacts, match_conditions

ROOT = Path(__file__).parents[2]
PROJECT = Project(ROOT)
STUDIES = study_names(PROJECT)
CLAIMS = load_claims(PROJECT)
MODELS = read_yaml_model(PROJECT.models_file, ModelsFile).models

OWN_QUESTIONS = {"demo", "engines-demo", "rules", "small-mac"}
"""No published figure is about these; the demo's own cards are."""
VARIED = {"draft-size": {"draft"}, "keep-rate": {"keep rate"}}
"""What an ablation varies, and so may differ from the claim that its other conditions repeat."""
PROBABLY = {
    "Nemotron-H 120B": "mlx-community/NVIDIA-Nemotron-3-Super-120B-A12B-4bit",
    "Nano-4B": "mlx-community/NVIDIA-Nemotron-3-Nano-4B-4bit",
}
"""Names of the paper that no repository has; a study says which model it takes for them."""
ELSEWHERE = {"metric", "hardware", "memory", "engine", "engine version"}
"""The machine's and the server's conditions, and what was counted: not a study's to set."""

shipped = pytest.mark.parametrize("name", STUDIES)


@cache
def whole(name: str) -> Study:
    """As in the file, with oMLX given."""
    study = read_yaml_model(ROOT / "config" / "studies" / f"{name}.yaml", Study)
    return with_given(study, GivenEngines(omlx=GivenOmlx(command="omlx")))


def groups(name: str) -> list[tuple[str, str]]:
    """(comment above, text) of every comparison in the file."""
    text = (ROOT / "config" / "studies" / f"{name}.yaml").read_text()
    body = text[text.index("\ncomparisons:") :]
    found, comment, fresh = [], "", True
    for line in body.splitlines():
        if line.startswith("  #"):
            comment = line[3:] if fresh else comment + line[3:]
            fresh = False
        elif line.startswith("  - {"):
            found.append((comment, line))
            fresh = True
        elif line and not line.startswith(" ") and found:
            break
    return found


def named_in(comment: str) -> list[str]:
    """Ids of the cards that a comment names."""
    words = re.findall(r"[a-z0-9]+-[A-Za-z0-9.*-]*[A-Za-z0-9*]", comment)
    return [claim for word in words for claim in CLAIMS if fnmatchcase(claim, word)]


def facts(study: Study) -> Facts:
    """What a run on any machine would know of the study's models."""
    models = {}
    for name in {name for pair in study.pairs.values() for name in (pair.target, pair.draft)}:
        definition = MODELS[name]
        if isinstance(definition.source, HubSource):
            bits = definition.published.bits if definition.published else None
            models[name] = ModelFacts(definition.source.repository, f"{bits}-bit")
    return Facts(models=models, engines={"mlx-lm": EngineFacts("mlx-lm", None)})


def estimate(cell: Cell) -> CellEstimate:
    empty = dict.fromkeys(
        "actual_keep speedup interval95 interval90 dense_median_seconds treated_median_seconds predicted_speedup "
        "answers_lost_interval first_token_agreement median_kl_nats".split()
    )
    return CellEstimate(
        cell=cell.id,
        pair=cell.pair,
        engine=cell.engine,
        treatment=cell.treatment,
        length=cell.length,
        nominal_keep=cell.keep,
        pairs=(),
        dense_phases={},
        treated_phases={},
        answers_dense=0,
        answers_treated=0,
        answers_lost=0,
        problems=(),
        **empty,
    )


def differing(claim_id: str, cell: Cell, study: Study, name: str) -> list[str]:
    """Conditions of a claim that a cell does not meet, the machine's and the server's aside."""
    claim = CLAIMS[claim_id]
    conditions = claim.conditions
    said = {
        "target": PROBABLY.get(conditions.target or "", conditions.target),
        "draft": PROBABLY.get(conditions.draft or "", conditions.draft),
    }
    claim = claim.model_copy(update={"conditions": conditions.model_copy(update=said)})
    rows = match_conditions(claim, estimate(cell), study, facts(study))
    may = ELSEWHERE | VARIED.get(name, set())
    # A draft's quantisation varies with the draft.
    may |= {"draft quantisation"} if "draft" in may else set()
    return [row.condition for row in rows if row.matches is False and row.condition not in may]


@shipped
def test_a_study_is_whole_and_its_models_and_claims_exist(name):
    for study in (load_study(PROJECT, name), whole(name)):
        assert set(models_of(PROJECT, study)) <= set(MODELS)
        assert plan_cells(study)
        assert study_claims(study, CLAIMS) or name in OWN_QUESTIONS


@shipped
def test_every_speculative_cell_meets_a_claim_that_stands_beside_it(name):
    if name in OWN_QUESTIONS:
        pytest.skip("a question of this package's own")
    study = whole(name)
    shown = {claim.id for claim in study_claims(study, CLAIMS)}
    written = groups(name)
    assert len(written) == len(study.comparisons), "every comparison is one line"
    for (comment, _), comparison in zip(written, study.comparisons, strict=True):
        assert comment.strip(), "no comparison without a word on what it speaks to"
        if comparison.treatment is not Treatment.SPECULATIVE:
            assert comment.strip().startswith("Control")
            continue
        cards = named_in(comment)
        assert cards and set(cards) <= shown, f"{comment}: no such cards, or the study does not name them"
        cells = plan_cells(study.model_copy(update={"comparisons": (comparison,)}))
        for cell in cells:
            closest = min((differing(card, cell, study, name) for card in cards), key=len)
            assert not closest, f"{cell.id}: no card of {cards} is about it; differs in {closest}"
        for card in cards:
            speaks = [cell for cell in cells if not differing(card, cell, study, name)]
            # The dense arm of a claim is the baseline of every cell.
            assert speaks or CLAIMS[card].conditions.keep == 1.0 or CLAIMS[card].metric == "quality", card


@pytest.mark.parametrize(
    ("name", "drafts", "lengths", "keeps"),
    [
        ("issue-qwen-122b", {"qwen3.5-2b-6bit", "qwen3.5-0.8b-5bit", "qwen3.5-0.8b-8bit"}, {8035}, {0.2}),
        ("issue-gemma4-4bit", {"gemma-4-e2b-it-4bit"}, {8954}, {0.1, 0.2, 0.3}),
        (
            "issue-gemma4-8bit",
            {"gemma-4-e2b-it-4bit", "gemma-4-e4b-it-4bit"},
            {8954, 5060, 5120, 8192},
            {0.1, 0.2, 0.3},
        ),
        ("green2026-gpt-oss", {"gpt-oss-20b-mxfp4"}, {8192, 16384}, {0.2}),
        ("green2026-35b", {"qwen3.5-4b-4bit"}, {8192, 16384, 32768, 65536}, {0.2}),
    ],
)
def test_drafts_lengths_and_keep_rates_are_those_of_the_source(name, drafts, lengths, keeps):
    cells = [cell for cell in plan_cells(whole(name)) if cell.treatment is Treatment.SPECULATIVE]
    assert {pair.draft for pair in whole(name).pairs.values()} == drafts
    assert {cell.length for cell in cells} == lengths
    assert {cell.keep for cell in cells} == keeps


@pytest.mark.parametrize("family", ["omlx-issue-*", "green-*-*K"])
def test_no_figure_of_the_issue_or_the_paper_is_without_a_cell(family):
    """The other way round: every card about a treated arm has a cell, in some study, that repeats its conditions."""
    cards = [card for card in CLAIMS if fnmatchcase(card, family) and (CLAIMS[card].conditions.keep or 0) < 1]
    cards = [card for card in cards if CLAIMS[card].conditions.draft]
    assert len(cards) > 10
    for card in cards:
        studies = {name: whole(name) for name in STUDIES if card in {c.id for c in study_claims(whole(name), CLAIMS)}}
        assert any(
            cell.treatment is Treatment.SPECULATIVE and not differing(card, cell, study, name)
            for name, study in studies.items()
            if name not in OWN_QUESTIONS
            for cell in plan_cells(study)
        ), card


def test_thresholds_of_the_sweep_are_those_of_the_cards():
    study = whole("issue-gemma4-8bit")
    swept = {
        (length, engine.threshold)
        for each in study.comparisons
        for length in each.lengths
        if each.keep == (0.3,) and (engine := study.engines.get(each.engine or "")) and engine.kind == "omlx"
    }
    default = 8192
    for card, claim in CLAIMS.items():
        if found := re.fullmatch(r"omlx-issue-g4-th[58]k-(\d+|none)", card):
            threshold = default if found[1] == "none" else int(found[1])
            assert (claim.conditions.prompt_tokens, threshold) in swept, card


@shipped
def test_tiny_scale_keeps_every_comparison_and_shrinks_it(name):
    full, tiny = load_study(PROJECT, name), load_study(PROJECT, f"{name}.tiny")
    assert tiny.name == f"{name}.tiny" and tiny.shrunk is not None
    servers = {engine for engine, settings in full.engines.items() if settings.environment}
    kept = [each for each in full.comparisons if (each.engine or full.engine) not in servers]
    assert len(plan_cells(tiny)) == sum(len(each.lengths) * max(1, len(each.keep)) for each in kept)
    assert min(cell.length for cell in plan_cells(tiny)) >= min(SHORTEST, min(cell.length for cell in plan_cells(full)))
    for before, after in zip(kept, tiny.comparisons, strict=True):
        assert (before.pair, before.keep, before.treatment) == (after.pair, after.keep, after.treatment)
        assert after.lengths == tuple(round(length / tiny.shrunk) for length in before.lengths)
        assert after.blocks == after.most_blocks or after.most_blocks is None
    assert all(any(text.startswith(engine) for text in tiny.left_out) for engine in servers)
    for pair in tiny.pairs.values():
        for model in (pair.target, pair.draft):
            assert isinstance(MODELS[model].source, Synthetic | Padded)


def test_a_model_and_its_stand_in_are_of_one_architecture():
    for name, definition in MODELS.items():
        if definition.published is None:
            continue
        assert definition.tiny is not None, name
        source = MODELS[definition.tiny].source
        assert isinstance(source, Synthetic)
        # mlx_lm calls the text part of Gemma 4 so.
        assert str(source.config["model_type"]).removesuffix("_text") == definition.published.model_type, name


def test_a_threshold_shrinks_with_the_prompts():
    tiny = at_tiny_scale(whole("issue-gemma4-8bit"), lambda name: name)
    assert tiny.engines["omlx-threshold-8192"].threshold == 8192 // tiny.shrunk
    longer = {name: engine.threshold < 5120 // tiny.shrunk for name, engine in tiny.engines.items()}
    assert longer["omlx-threshold-4096"] and not longer["omlx-threshold-8192"]


def test_scales_are_named_and_others_refused():
    assert scaled_name("demo", None) == scaled_name("demo", "full") == "demo"
    assert scaled_name("demo", "tiny") == scaled_name("demo.tiny", "tiny") == "demo.tiny"
    with pytest.raises(ReproError, match="no scale 'small'"):
        scaled_name("demo", "small")


def test_omlx_runs_where_it_is_given_and_is_named_as_left_out_elsewhere(tmp_path):
    project = Project(tmp_path)
    (tmp_path / "config").mkdir()
    study = read_yaml_model(ROOT / "config/studies/issue-qwen-122b.yaml", Study)
    without = with_given(study, given_engines(project))
    assert "omlx" not in {cell.engine for cell in plan_cells(without)}
    assert without.left_out == ("omlx: not given (--engine omlx=PATH)",)
    (tmp_path / "source" / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / "source" / ".venv" / "bin" / "python").touch()
    give_engine(project, f"omlx={tmp_path / 'source'}")
    given = with_given(study, given_engines(project))
    assert given.left_out == () and given.comparisons == study.comparisons
    assert given.engines["omlx"].checkout == str(tmp_path / "source")
    assert given.engines["omlx"].python == str(tmp_path / "source" / ".venv" / "bin" / "python")
    assert given.engines["omlx"].threshold == 1024


@pytest.mark.parametrize("text", ["omlx", "omlx=", "omlx=/nowhere/at/all", "vllm-mlx=/tmp", ""])
def test_an_engine_that_is_not_there_is_refused_before_anything_is_written(tmp_path, text):
    project = Project(tmp_path)
    (tmp_path / "config").mkdir()
    with pytest.raises(ReproError):
        give_engine(project, text)
    assert not list((tmp_path / "config").iterdir())


def test_a_file_may_not_say_that_it_was_changed(tmp_path):
    (tmp_path / "config" / "studies").mkdir(parents=True)
    text = (ROOT / "config/studies/keep-rate.yaml").read_text()
    (tmp_path / "config/studies/keep-rate.yaml").write_text(text + "shrunk: 3\n")
    with pytest.raises(ReproError, match="shrunk"):
        load_study(Project(tmp_path), "keep-rate")


def test_every_study_has_the_controls_that_the_design_names() -> None:
    """Placebo, plain and random everywhere but in `engines-demo`; a target as its own draft in two studies alone."""
    has, own_draft = {}, set()
    for name in study_names(PROJECT):
        study = load_study(PROJECT, name)
        has[name] = {Treatment.PLACEBO, Treatment.PLAIN, Treatment.RANDOM} <= {c.treatment for c in study.comparisons}
        own_draft |= {name for pair in study.pairs.values() if pair.target == pair.draft}
    assert [name for name, whole in has.items() if not whole] == ["engines-demo"]
    assert own_draft == {"demo", "rules"}
    design = (ROOT / "docs" / "design.md").read_text()
    assert "Controls in every study" not in design and "are in `demo` and `rules` alone" in design
