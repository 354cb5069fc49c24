"""What config/models.yaml says is published about a model, held against what came."""

from pathlib import Path
from typing import Any

import pytest

from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.models.load import load_definition, model_names
from specprefill_repro.models.published import check_published, facts
from specprefill_repro.models.schema import HubSource, Published
from specprefill_repro.prefill.architectures import ARCHITECTURES
from specprefill_repro.project import Project

PROJECT = Project(Path(__file__).resolve().parents[2])
HUB_MODELS = [name for name in model_names(PROJECT) if isinstance(load_definition(PROJECT, name).source, HubSource)]

CONFIG: dict[str, Any] = {
    "model_type": "qwen3_5_moe",
    "text_config": {"num_hidden_layers": 48, "num_experts": 256, "vocab_size": 248320},
    "quantization": {"bits": 5, "group_size": 64, "language_model.lm_head": {"bits": 8, "group_size": 64}},
}
PUBLISHED = Published(
    model_type="qwen3_5_moe",
    layers=48,
    experts=256,
    vocabulary=248320,
    bits=5,
    group_size=64,
    weight_bytes=84_900_000_000,
    sources=("its page",),
)


def test_what_agrees_passes_and_what_is_not_published_is_not_checked() -> None:
    check_published("big", PUBLISHED, CONFIG, 84_500_000_000)
    check_published("big", Published(sources=("nothing",)), CONFIG, 1)
    check_published("big", None, CONFIG, 1)


@pytest.mark.parametrize(
    ("place", "key", "value", "said"),
    [
        (None, "model_type", "qwen3_5", "model_type: published qwen3_5_moe, found qwen3_5"),
        ("text_config", "num_hidden_layers", 47, "layers: published 48, found 47"),
        ("text_config", "num_experts", 128, "experts: published 256, found 128"),
        ("text_config", "vocab_size", 248319, "vocabulary: published 248320, found 248319"),
        ("text_config", "vocab_size", "248320", "vocabulary: published 248320, found nothing"),
        ("quantization", "bits", 4, "bits: published 5, found 4"),
        ("quantization", "group_size", 32, "group_size: published 64, found 32"),
    ],
)
def test_each_fact_that_differs_is_refused_with_both_values(
    place: str | None, key: str, value: object, said: str
) -> None:
    changed = {**CONFIG, key: value} if place is None else {**CONFIG, place: {**CONFIG[place], key: value}}
    with pytest.raises(ReproError, match=said) as caught:
        check_published("big", PUBLISHED, changed, 84_900_000_000)
    assert caught.value.exit_code == Exit.VERIFICATION


@pytest.mark.parametrize("size", [76_000_000_000, 94_000_000_000])
def test_weights_of_another_size_are_refused(size: int) -> None:
    with pytest.raises(ReproError, match=f"about 84,900,000,000 bytes, found {size:,}"):
        check_published("big", PUBLISHED, CONFIG, size)


def test_facts_of_the_ways_in_which_configurations_are_written() -> None:
    assert facts({"num_local_experts": 32, "vocab_size": 5})["experts"] == 32
    assert facts({"n_routed_experts": 512})["experts"] == 512
    assert facts({"text_config": None, "num_hidden_layers": True, "quantization": []}) == {
        "model_type": None,
        "layers": None,
        "experts": 0,
        "vocabulary": None,
        "bits": None,
        "group_size": None,
    }


@pytest.mark.parametrize("name", HUB_MODELS)
def test_shipped_hub_model_states_what_is_published_and_is_of_a_type_that_is_checked(name: str) -> None:
    definition = load_definition(PROJECT, name)
    assert definition.published is not None
    assert definition.published.model_type in ARCHITECTURES
    assert definition.published.vocabulary
