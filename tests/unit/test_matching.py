"""Which measurement speaks to which claim: condition by condition, and never by a loose comparison of names."""

from typing import Any

import pytest

from specprefill_repro.estimates.build import build_estimates
from specprefill_repro.estimates.schema import CellEstimate
from specprefill_repro.study.schema import Comparison, Pair, Study, Treatment
from specprefill_repro.verdicts.matching import (
    EngineFacts,
    Facts,
    ModelFacts,
    closest_cell,
    facts_of,
    is_full_match,
    match_conditions,
    model_key,
    same_model,
    same_text,
)
from specprefill_repro.verdicts.schema import Claim, ClaimKind, Conditions, Rule
from synthetic_records import demo_study, synthetic_study_records

STUDY = demo_study(
    pairs={"big": Pair(target="big", draft="small")},
    comparisons=(
        Comparison(pair="big", treatment=Treatment.SPECULATIVE, lengths=(8000, 16384), keep=(0.2, 0.3), blocks=1),
        Comparison(pair="big", treatment=Treatment.PLACEBO, lengths=(8192,), blocks=1),
    ),
)
FACTS = Facts(
    hardware="Apple M2 Ultra",
    memory_gib=128.0,
    engines={"mlx-lm": EngineFacts("mlx-lm", "0.32.2")},
    models={
        "big": ModelFacts("mlx-community/Qwen3.5-122B-A10B-5bit", "5-bit"),
        "small": ModelFacts("mlx-community/Qwen3.5-2B-4bit", "4-bit"),
    },
)
SAID: dict[str, Any] = {
    "hardware": "Apple M2 Ultra",
    "memory_gib": 128.0,
    "target": "Qwen3.5-122B-A10B",
    "draft": "Qwen3.5-2B",
    "target_quantization": "5-bit",
    "draft_quantization": "4-bit",
    "keep": 0.2,
    "prompt_tokens": 8192,
    "prompt_tokens_stated": "8K (nominal)",
}


def claim(metric: str = "ttft_speedup", **said: Any) -> Claim:
    return Claim(
        id="c",
        kind=ClaimKind.AUTHOR_CLAIM,
        statement="It is faster.",
        source="A paper",
        source_url="https://example.org",
        location="Table 1",
        access="primary",
        metric=metric,
        value=3.71,
        unit="x",
        trials=5,
        spread="not stated",
        rule=Rule.AT_LEAST,
        conditions=Conditions(**(SAID | said)),
    )


@pytest.fixture(scope="module")
def cells() -> tuple[CellEstimate, ...]:
    return build_estimates(STUDY, *synthetic_study_records(STUDY, 1)).cells


def rows(cells: tuple[CellEstimate, ...], study: Study = STUDY, facts: Facts = FACTS, **said: Any) -> dict[str, Any]:
    card = claim(**said)
    cell = closest_cell(card.conditions, cells)
    assert cell is not None
    found = match_conditions(card, cell, study, facts)
    return {row.condition: row for row in found} | {"full": is_full_match(found)}


def test_a_claim_whose_every_condition_is_met_matches(cells: tuple[CellEstimate, ...]) -> None:
    found = rows(cells)
    assert found["full"]
    assert found["prompt length"].claimed == "8K (nominal), 8,192 tokens" and found["prompt length"].here.startswith(
        "8,0"
    )
    assert found["engine"].matches is None and found["engine"].claimed == "not stated"


@pytest.mark.parametrize(
    "condition, said",
    [
        ("hardware", {"hardware": "Apple M1 Ultra"}),
        ("memory", {"memory_gib": 192.0}),
        ("target", {"target": "Qwen3.5-35B-A3B"}),
        ("draft", {"draft": "Qwen3.5-4B"}),
        ("target quantisation", {"target_quantization": "4-bit"}),
        ("draft quantisation", {"draft_quantization": "6-bit"}),
        ("keep rate", {"keep": 0.21}),
        ("prompt length", {"prompt_tokens": 8500}),
        ("engine", {"engine": "omlx"}),
        ("engine version", {"engine_version": "0.31.2"}),
        ("metric", {"metric": "decode_rate"}),
        ("other", {"other": "KV cache K8/V4"}),
    ],
)
def test_one_different_condition_is_enough_to_get_no_verdict(
    cells: tuple[CellEstimate, ...], condition: str, said: dict[str, Any]
) -> None:
    found = rows(cells, **said)
    assert not found["full"]
    assert [name for name, row in found.items() if name != "full" and row.matches is False] == [condition]


@pytest.mark.parametrize("tokens, matches", [(7620, True), (8400, True), (8421, True), (7600, False), (8430, False)])
def test_prompt_lengths_match_within_five_percent(cells: tuple[CellEstimate, ...], tokens: int, matches: bool) -> None:
    found = rows(cells, prompt_tokens=tokens)
    assert found["prompt length"].matches is matches


@pytest.mark.parametrize("needed", ["hardware", "target", "draft", "target_quantization", "keep", "prompt_tokens"])
def test_a_figure_that_cannot_be_repeated_from_its_source_gets_no_verdict(
    cells: tuple[CellEstimate, ...], needed: str
) -> None:
    assert not rows(cells, **{needed: None})["full"]


@pytest.mark.parametrize("unstated", ["memory_gib", "draft_quantization", "engine", "engine_version"])
def test_what_the_source_leaves_open_besides_does_not_prevent_a_verdict(
    cells: tuple[CellEstimate, ...], unstated: str
) -> None:
    assert rows(cells, **{unstated: None})["full"]


def test_unknown_facts_never_match(cells: tuple[CellEstimate, ...]) -> None:
    found = rows(cells, facts=Facts())
    assert not found["full"]
    assert found["hardware"].matches is None and found["target"].matches is False


def test_the_closest_cell_is_speculative_and_near_in_keep_rate_then_length(cells: tuple[CellEstimate, ...]) -> None:
    near = closest_cell(Conditions(keep=0.3, prompt_tokens=131072), cells)
    assert near is not None and near.cell == "big-16384-speculative-keep0.3"
    default = closest_cell(Conditions(), cells)
    assert default is not None and default.cell == "big-16384-speculative-keep0.2"
    assert closest_cell(Conditions(), [cell for cell in cells if cell.treatment is Treatment.PLACEBO]) is None


@pytest.mark.parametrize(
    "one, other",
    [
        ("Qwen3.5-122B-A10B (MoE)", "mlx-community/Qwen3.5-122B-A10B-5bit"),
        ("gemma-4-31b-it", "google/Gemma-4-31B-Instruct-8bit"),
        ("GPT-OSS 120B", "openai/gpt-oss-120b-MXFP4-Q8"),
        ("Qwen3.5-0.8B", "Qwen3.5-0.8B-MLX-4bit-fp16"),
        ("Qwen3.8-27B 4-bit", "Qwen3.8-27B"),
        ("Qwen3.6-35B-A3B-UD-MLX-4bit", "qwen3.6-35b-a3b"),
    ],
)
def test_one_model_under_two_names(one: str, other: str) -> None:
    assert same_model(one, other), (model_key(one), model_key(other))


@pytest.mark.parametrize(
    "one, other",
    [
        ("Qwen3.5-122B-A10B", "Qwen3.5-35B-A3B"),
        ("Qwen3.5-2B", "Qwen3.5-4B"),
        ("Qwen3.5-2B", "Qwen3.5-0.8B"),
        ("Qwen3.5-2B", "Qwen3.6-2B"),
        ("Qwen3.5-35B-A3B", "Qwen3.5-35B"),
        ("Qwen3-0.6B", "Qwen3-6B"),
        ("gemma-4-e2b-it", "gemma-4-e4b-it"),
        ("gemma-4-31b-it", "gemma-4-31b"),
        ("GPT-OSS 20B", "GPT-OSS 120B"),
        ("Nemotron-H 120B", "Nano-4B"),
        ("SmolLM2-135M-Instruct", "smollm2-135m-x4"),
        ("Llama-3.1-8B-Instruct", "Llama-3.2-8B-Instruct"),
        ("model-4b", "model-4bit"),
    ],
)
def test_two_models_never_match(one: str, other: str) -> None:
    assert not same_model(one, other), model_key(one)


def test_text_is_compared_without_case_and_marks_and_otherwise_exactly() -> None:
    assert same_text("Apple M2 Ultra", "apple  m2-ultra")
    assert same_text("Intel(R) Xeon(R) CPU", "Intel Xeon CPU")
    assert not same_text("Apple M2 Ultra", "Apple M2")
    assert not same_text("Apple M2 Ultra", "Apple M1 Ultra")


def test_facts_come_from_what_the_trials_found() -> None:
    study = demo_study(blocks=1)
    made = synthetic_study_records(study, 1)
    facts = facts_of(build_estimates(study, *made), {})
    assert (facts.hardware, facts.memory_gib, facts.engines) == (
        "Synthetic",
        16.0,
        {"mlx-lm": EngineFacts("mlx-lm", "0")},
    )
    for found in ({"chip": "Another"}, {"chip": "Synthetic"}):
        records = [made.records[0].model_copy(update={"environment": found}), *made.records[1:]]
        differing = build_estimates(study, records, *made[1:])
        assert (facts_of(differing, {}).hardware is None) == (found["chip"] == "Another")
        assert facts_of(differing, {}).memory_gib is None
        assert differing.environment["memory_gib"] == ("16", "not recorded")
    assert facts_of(build_estimates(study, [], [], *made[2:]), {}).engines == {}
