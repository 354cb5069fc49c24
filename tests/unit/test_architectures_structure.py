"""What the table says of each architecture, checked against models; refusals; captured calls; recurrent layers."""

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from specprefill_repro.errors import ReproError
from specprefill_repro.gate.kernel import kernel_calls
from specprefill_repro.prefill.architectures import end_tokens, rotary_width, structure
from specprefill_repro.prefill.arms import Models, Request
from specprefill_repro.prefill.chunked import key_caches, new_cache, read_prompt
from specprefill_repro.prefill.look_ahead import captured_calls
from specprefill_repro.prefill.positions import PositionedModel
from specprefill_repro.prefill.sparse import prefill_kept
from specprefill_repro.study.plan import Arm, ArmKind
from specprefill_repro.study.schema import Selection
from specprefill_repro.trials.evidence import gather_evidence, outcome
from tiny_architectures import build, cases, prompt

# Attention layers, caches with keys, rotary embeddings, windows, recurrent layers; and cautions.
EXPECTED = {
    "llama": ((2, 2, 2, 0, 0), set()),
    "mistral-windows": ((3, 3, 3, 2, 0), {"sliding windows"}),
    "ministral3": ((2, 2, 2, 0, 0), {"queries scaled by position"}),
    "qwen3_moe": ((2, 2, 2, 0, 0), set()),
    "qwen3_5": ((1, 1, 1, 0, 3), {"recurrent layers"}),
    "qwen3_5_moe": ((2, 2, 2, 0, 2), {"recurrent layers"}),
    "qwen3_next": ((2, 2, 2, 0, 2), {"recurrent layers"}),
    "gemma3_text": ((4, 4, 4, 2, 0), {"sliding windows"}),
    "gemma4_text": ((6, 4, 6, 3, 0), {"sliding windows", "keys shared between layers"}),
    "nemotron_h": ((2, 2, 0, 0, 3), {"no rotary embedding", "recurrent layers"}),
    "gpt_oss": ((4, 4, 4, 2, 0), {"sliding windows", "attention sinks"}),
}


@pytest.mark.parametrize("case", EXPECTED)
def test_the_structure_found_is_that_of_the_model(case):
    model = build(case)
    found = structure(model)
    counts = (
        len(found.attention),
        len(key_caches(new_cache(model))),
        len(found.rotary_modules),
        sum(layer.window is not None for layer in found.attention),
        len(found.recurrent),
    )
    assert (counts, set(found.cautions)) == EXPECTED[case]
    assert len(found.caches) == len(new_cache(model))
    assert {layer.window for layer in found.attention} <= {None, 40}


@pytest.mark.parametrize("case", sorted(cases()))
def test_captured_queries_and_keys_are_those_of_the_attention_kernel(case):
    model, ids = build(case), prompt()[0]
    cache = new_cache(model)
    read_prompt(model, ids[:60], cache, 16)
    with kernel_calls() as kernel, captured_calls(model) as captured:
        mx.eval(model(mx.array([[ids[60]]]), cache=cache))
    assert len(kernel) == len(captured) == len(structure(model).attention)
    for ours, theirs in zip(captured, kernel, strict=True):
        np.testing.assert_array_equal(np.array(ours.queries[0]), theirs.queries)
        np.testing.assert_array_equal(np.array(ours.keys[0]), theirs.keys)
        assert ours.scale == theirs.scale
        assert (ours.sinks is None) == (theirs.sinks is None)


@pytest.mark.parametrize("case", ["qwen3_5", "qwen3_next", "nemotron_h"])
def test_a_recurrent_layer_reads_the_kept_tokens_as_if_nothing_lay_between_them(case):
    model = build(case)
    ids, kept, _ = prompt()
    tokens = mx.array([[ids[position] for position in kept]])
    positioned = PositionedModel(model, len(ids))
    positioned.positions.set(kept)
    sparse, alone = new_cache(positioned), new_cache(model)
    positioned_logits, logits = positioned(tokens, cache=sparse), model(tokens, cache=alone)
    # Before the first attention layer nothing depends on positions: the states are the same to the bit.
    assert structure(model).recurrent[0] == 0
    for ours, theirs in zip(sparse[0].cache, alone[0].cache, strict=True):
        np.testing.assert_array_equal(np.array(ours), np.array(theirs))
    # Without a rotary embedding nothing does, in the whole model.
    assert bool(mx.all(positioned_logits == logits)) == (case == "nemotron_h")


@pytest.mark.parametrize("case", ["llama", "gemma4_text", "nemotron_h", "qwen3_5", "gpt_oss"])
def test_the_outcome_is_decided_from_evidence_on_every_kind_of_architecture(case):
    ids, kept, _ = prompt()
    arm = Arm(kind=ArmKind.RANDOM, keep=0.2, selection=Selection())
    model = build(case)
    with prefill_kept(Models(model, None), Request(tuple(ids), arm, 16, ""), kept, []) as prefilled:
        after = {entry.offset for entry in key_caches(prefilled.cache)}

    def evidence(**changes):
        found = gather_evidence(
            prefilled,
            model,
            needle=((0, 1),),
            cached_after=set(after),
            key_dtype="float32",
            logits_sha256="",
        )
        return found.model_copy(update=changes)

    rotaries = len(structure(model).rotary_modules)
    assert outcome(arm, evidence(), len(ids)) == "sparse"
    assert evidence().rotary_modules == evidence().rotary_modules_restored == rotaries
    assert evidence().cache_tokens_after == len(kept)
    assert outcome(arm, evidence(cache_tokens_after=7), len(ids)).startswith("fallback: the KV cache holds 7")
    if rotaries:
        assert evidence().rotary_positions_sha256 == evidence().kept_sha256
        missing = evidence(rotary_modules=rotaries - 1)
        assert "rotary embeddings were watched" in outcome(arm, missing, len(ids))
        prefilled.rotary_seen[-1][0] = mx.array([1, 2, 3])
        assert "saw other positions" in outcome(arm, evidence(), len(ids))
    else:
        assert evidence().rotary_positions_sha256 is None


def test_models_that_are_not_built_as_the_table_says_are_refused(monkeypatch):
    model = build("gpt_oss")
    sinks = model.layers[2].self_attn.sinks
    del model.layers[2].self_attn["sinks"]
    with pytest.raises(ReproError, match=r"layer 2 has no self_attn\.sinks"):
        structure(model)
    model.layers[2].self_attn.sinks = sinks
    model.model_type = "glm4"
    with pytest.raises(ReproError, match=r"it is built by mlx_lm\.models\.gpt_oss"):
        structure(model)
    llama = build("llama")
    llama.layers[0].self_attn.rope = None
    with pytest.raises(ReproError, match=r"layer 0 has no self_attn\.rope"):
        structure(llama)
    llama.layers[0].self_attn.rope = nn.RoPE(16)  # Which is false by truth, and yet there.
    assert not nn.RoPE(16) and structure(llama)
    llama.layers[0].self_attn.sinks = mx.zeros(4)
    with pytest.raises(ReproError, match="layer 0 has attention sinks"):
        structure(llama)


def test_caches_that_do_not_fit_the_layers_are_refused(monkeypatch):
    model = build("gemma3_text")
    made = model.make_cache()
    made[1], made[0] = made[0], made[1]
    monkeypatch.setattr(type(model), "make_cache", lambda self: made)
    with pytest.raises(ReproError, match="layer 1 has a window of None, its cache one of 40"):
        new_cache(PositionedModel(model, 100))
    del made[3]
    with pytest.raises(ReproError, match="its caches are for attention, attention, attention, its layers are"):
        new_cache(PositionedModel(model, 100))


def test_an_unknown_text_part_of_a_multimodal_model_is_refused():
    model = build("ministral3", outer="mistral3")
    model.language_model = build("glm4")
    with pytest.raises(ReproError, match="'mistral3 with glm4 inside' is not supported"):
        structure(model)


def test_an_unknown_rotary_embedding_is_refused():
    class Spiral(nn.Module):
        dims = 16

    with pytest.raises(ReproError, match="Rotary embedding 'Spiral' is not supported"):
        rotary_width(Spiral())
    model = build("llama")
    model.layers[1].self_attn.rope = Spiral()
    with pytest.raises(ReproError, match="Spiral"):
        PositionedModel(model, 100)


def test_dynamic_scaling_takes_its_base_from_the_whole_prompt():
    from mlx_lm.models.rope_utils import initialize_rope

    settings = {"rope_type": "dynamic", "factor": 4.0}
    model = build("llama")
    for layer in model.layers:
        layer.self_attn.rope = initialize_rope(16, 1e4, False, settings, 64)
    assert structure(model).cautions == ("a rotary base that depends on the prompt's length",)
    x = mx.random.normal((1, 2, 200, 16), key=mx.random.key(3))
    # mlx_lm itself, told the whole prompt in one pass, uses the same base for all of it.
    expected = model.layers[0].self_attn.rope(x, offset=0)
    positioned = PositionedModel(model, 200)
    places = [0, 5, 63, 64, 150, 199]
    positioned.positions.set(places)
    found = positioned.rotaries[0](x[:, :, mx.array(places)])
    np.testing.assert_allclose(np.array(found), np.array(expected[:, :, mx.array(places)]), atol=1e-5)


def test_end_tokens_of_a_multimodal_checkpoint_are_those_of_its_text_part():
    assert end_tokens({"text_config": {"eos_token_id": [1, 106]}}) == {1, 106}
    assert end_tokens({"eos_token_id": 5, "text_config": {"eos_token_id": 7}}) == {5}
    assert end_tokens({"text_config": None}) == frozenset()
