"""What is known about engine releases: the table is valid, and finds what concerns a release and two models."""

import pytest
from packaging.version import Version

from specprefill_repro.engines.history import (
    Effect,
    EngineHistory,
    Trait,
    load_history,
    model_traits,
    release_key,
)

LLAMA = {"model_type": "llama", "rope_theta": 1e5}
LLAMA3 = {"model_type": "llama", "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}
SLIDING = {**LLAMA, "layer_types": ["full_attention", "sliding_attention"]}
QWEN3 = {"model_type": "qwen3"}
GEMMA3 = {"model_type": "gemma3", "vision_config": {}, "text_config": {"model_type": "gemma3_text"}}


@pytest.fixture(scope="module")
def history(real_project) -> EngineHistory:
    return load_history(real_project.config)


def test_all_known_fallbacks_are_in_the_table_once(history):
    assert [fallback.row for fallback in history.fallbacks] == list(range(1, 25))
    assert len({fallback.id for fallback in history.fallbacks}) == 24


def test_every_range_of_releases_holds_something(history):
    for fallback in history.fallbacks:
        for where in fallback.where:
            assert where.before is None or release_key(where.since) < release_key(where.before)


def test_releases_are_ordered_as_packaging_orders_them():
    versions = ["0.2.20", "0.3.0rc1", "0.3.0", "0.3.5.dev1", "0.3.5.dev2", "0.3.5", "0.3.7.dev1", "0.3.7rc1", "0.3.10"]
    assert sorted(versions, key=release_key) == sorted(versions, key=Version) == versions
    assert release_key("0.6") == release_key("0.6.0")
    with pytest.raises(ValueError, match="not a release number"):
        release_key("main")


@pytest.mark.parametrize(
    ("engine", "version", "target", "draft", "ids"),
    [
        ("vllm-mlx", "0.2.9", LLAMA, LLAMA, []),
        ("vllm-mlx", "0.6.0", LLAMA, LLAMA, ["compacted-positions"]),
        ("vllm-mlx", "0.6.0", LLAMA3, LLAMA, []),
        ("vllm-mlx", "0.6.0", LLAMA, None, ["compacted-positions"]),
        ("omlx", "0.3.5.dev1", LLAMA, LLAMA, []),
        ("omlx", "0.3.9.dev1", {"model_type": "glm4"}, LLAMA, ["traditional-rope"]),
        ("omlx", "0.3.9.dev1", {"model_type": "cohere2"}, LLAMA, ["window-kept", "traditional-rope"]),
        ("omlx", "0.5.2", GEMMA3, LLAMA, ["window-kept"]),
        (
            "omlx",
            "0.3.9.dev1",
            {**LLAMA, "layer_types": ["full_attention", "sliding_attention"]},
            LLAMA,
            ["window-kept"],
        ),
        ("omlx", "0.3.9.dev1", {**LLAMA, "rope_traditional": True}, LLAMA, ["traditional-rope"]),
    ],
)
def test_what_no_log_line_tells_is_known_from_release_and_models(history, engine, version, target, draft, ids):
    assert [trap.id for trap in history.silent_traps(engine, version, target, draft)] == ids


def test_what_a_log_line_tells_is_known_too(history):
    found = {trap.id: trap for trap in history.traps("omlx", "0.3.5.dev1", GEMMA3, QWEN3)}
    assert found["norm-without-gate"].effect is Effect.DENSE
    assert found["vision-engine-threshold"].row == 16
    assert "vision-engine-threshold" not in {trap.id for trap in history.traps("omlx", "0.3.5.dev2", GEMMA3, LLAMA)}
    assert "norm-without-gate" not in {trap.id for trap in history.traps("omlx", "0.3.7.dev1", LLAMA, QWEN3)}


def test_mlx_lm_s_own_classes_agree_with_what_config_json_says():
    # The oracle is the module that mlx_lm builds: whether it holds an array, and how it pairs dimensions.
    import mlx.core as mx
    from mlx_lm.models.rope_utils import initialize_rope

    scalings = [
        None,
        {"rope_type": "linear", "factor": 2.0},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 2048,
        },
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048},
        {"rope_type": "proportional", "partial_rotary_factor": 0.5},
    ]
    for scaling in scalings:
        rope = initialize_rope(16, 1e4, False, scaling, 4096)
        holds = any(isinstance(value, mx.array) for value in rope.values())
        traits = model_traits({"model_type": "llama", "rope_scaling": scaling})
        assert (Trait.ARRAY_ROPE in traits) is holds, scaling
        assert (Trait.PLAIN_ROPE in traits) is not holds


def test_the_change_behind_a_break_is_named(history):
    (stop,) = history.changes_between("vllm-mlx", "0.2.9", "0.3.0")
    assert stop.effect == "stops" and stop.commit == "d256d37"
    assert stop == history.changes_between("vllm-mlx", "0.3.0", "0.2.9")[0]
    mended = history.changes_between("omlx", "0.3.5.dev1", "0.3.7rc1")
    assert [change.commit for change in mended] == ["27a4b90", "0a67559", "a1adf0b"]
