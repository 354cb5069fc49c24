"""Every architecture against transformers on PyTorch, at gapped positions; see tests/reference/architectures."""

from functools import cache

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten

from specprefill_repro.prefill import dense, speculative
from specprefill_repro.prefill.architectures import ARCHITECTURES, structure
from specprefill_repro.prefill.arms import Models, Request
from specprefill_repro.prefill.chunked import cached_tokens
from specprefill_repro.prefill.loading import load_model
from specprefill_repro.prefill.sparse import prefill_kept
from specprefill_repro.study.plan import Arm, ArmKind
from specprefill_repro.study.schema import Selection
from tiny_architectures import DECODED, PROMPT, build, cases, expected, prompt, write

CASES = sorted(cases())
# Of the range of the logits; float32 rounding of both sides.
TOLERANCE = 3e-5
LENGTH = 100
"""Of the prompts that have no reference: more than two windows."""
INSIDE = {
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_text-dense",
    "mistral3": "ministral3",
    "mistral3 ": "mistral-windows",
    "qwen3_5": "qwen3_5",
    "qwen3_5_moe": "qwen3_5_moe",
}


@pytest.fixture(autouse=True, scope="module")
def no_compilation():
    """Compiling small functions for the CPU takes most of the time otherwise; it changes no result."""
    mx.disable_compile()
    yield
    mx.enable_compile()


@cache
def model(case):
    return build(case)


def read(target, step=16):
    """Logits of the last kept token and of 32 decoded ones, (33, vocabulary)."""
    ids, kept, decoded = prompt()
    with prefill_kept(Models(target=target, draft=None), request(ids, step=step), kept, []) as prefilled:
        rows = [prefilled.logits, *(prefilled.decode(token) for token in decoded)]
    return np.stack([np.array(row.astype(mx.float32)) for row in rows])


def request(ids, kind=ArmKind.RANDOM, keep=0.2, step=16):
    selection = Selection(head=8, tail=8, chunk=16, look_ahead=4)
    arm = Arm(kind=kind) if kind is ArmKind.DENSE else Arm(kind=kind, keep=keep, selection=selection)
    return Request(ids=tuple(ids), arm=arm, step=step, seed="test")


def difference(found, reference):
    return float(np.abs(found - reference).max() / np.ptp(reference))


def test_every_supported_model_type_has_a_reference():
    inside = {text for entry in ARCHITECTURES.values() for text in entry.texts}
    tested = {case["config"]["model_type"] for case in cases().values()} | {name.strip() for name in INSIDE}
    assert {name for name in ARCHITECTURES if name not in inside} | inside == tested - {"qwen3_5_moe_text"}


@pytest.mark.parametrize("case", CASES)
def test_a_gapped_selection_and_32_decoded_tokens_equal_transformers(case):
    assert len(expected()[case]) == 1 + DECODED
    assert difference(read(model(case)), expected()[case]) < TOLERANCE


@pytest.mark.parametrize("outer", INSIDE)
def test_the_text_part_of_a_multimodal_checkpoint_reads_as_the_model_itself(outer):
    case = INSIDE[outer]
    assert difference(read(build(case, outer=outer.strip())), expected()[case]) < TOLERANCE


@pytest.mark.parametrize("case", ["llama", "mistral-windows", "qwen3_5", "gemma4_text", "gpt_oss", "nemotron_h"])
def test_the_step_of_the_prefill_does_not_matter(case):
    assert difference(read(model(case), step=1000), expected()[case]) < TOLERANCE
    assert difference(read(model(case), step=3), expected()[case]) < TOLERANCE


@pytest.mark.parametrize("case", CASES)
def test_keep_1_equals_dense_and_the_draft_may_be_of_any_architecture(case):
    ids, decoded = prompt()[0][:LENGTH], prompt()[2]
    models = Models(target=model(case), draft=model(case))
    with dense.prefill(models, request(ids, ArmKind.DENSE)) as prefilled:
        reference = [np.array(prefilled.logits), *(np.array(prefilled.decode(token)) for token in decoded[:4])]
    with speculative.prefill(models, request(ids, ArmKind.SPECULATIVE, keep=1.0)) as prefilled:
        found = [np.array(prefilled.logits), *(np.array(prefilled.decode(token)) for token in decoded[:4])]
        assert prefilled.kept == list(range(LENGTH))
        assert prefilled.tokens_scored == LENGTH
        assert cached_tokens(prefilled.cache) == {LENGTH + 4}
    assert difference(np.stack(found), np.stack(reference)) < 5e-6


@pytest.mark.parametrize(("draft", "target"), list(zip(CASES, CASES[1:] + CASES[:1], strict=True)))
def test_what_a_draft_keeps_does_not_depend_on_the_target_nor_how_the_target_reads_it_on_the_draft(draft, target):
    """So that every pair that shares a vocabulary is as good as those that are run here."""
    ids = prompt()[0][:LENGTH]
    asked = request(ids, ArmKind.SPECULATIVE)
    with speculative.prefill(Models(model(draft), model(draft)), asked) as alone:
        kept = alone.kept
    with speculative.prefill(Models(model(target), model(draft)), asked) as prefilled:
        found = np.array(prefilled.logits)
        assert prefilled.kept == kept and len(kept) < LENGTH
    with prefill_kept(Models(model(target), None), asked, kept, []) as without_draft:
        np.testing.assert_array_equal(np.array(without_draft.logits), found)


@pytest.mark.parametrize("outer", sorted({name.strip() for name in INSIDE}))
def test_a_checkpoint_with_towers_for_pictures_and_sound_is_loaded_without_them(outer, tmp_path):
    case = INSIDE[outer]
    folder = write(case, tmp_path / "model", outer=outer)
    tensors = mx.load(str(folder / "model.safetensors"))
    towers = {"gemma4": ["audio_tower", "embed_vision"], "qwen3_5": ["model.visual"], "qwen3_5_moe": ["model.visual"]}
    for tower in ["vision_tower", *towers.get(outer, [])]:
        tensors[f"{tower}.blocks.0.weight"] = mx.zeros((4, 4))
    mx.save_safetensors(str(folder / "model.safetensors"), tensors)
    loaded, _ = load_model(folder)
    assert not [name for name, _ in tree_flatten(loaded.parameters()) if "blocks" in name]
    assert difference(read(loaded), expected()[case]) < TOLERANCE


@pytest.mark.parametrize("case", CASES)
def test_two_sequences_that_take_turns_do_not_disturb_each_other(case):
    ids, kept, decoded = prompt()
    models = Models(target=model(case), draft=None)
    other_kept = [*range(3), *range(100, 140), PROMPT - 1]
    with (
        prefill_kept(models, request(ids), kept, []) as first,
        prefill_kept(models, request(ids), other_kept, []) as second,
        dense.prefill(models, request(ids[:50], ArmKind.DENSE)) as third,
    ):
        rows = [first.logits]
        for token in decoded[:4]:
            second.decode(token)
            rows.append(first.decode(token))
            third.decode(token)
    assert difference(np.stack([np.array(row) for row in rows]), expected()[case][:5]) < TOLERANCE


@pytest.fixture
def experts_in_half_precision(monkeypatch):
    """MLX on a CPU multiplies experts in float32 only; here it does so for other types and gives those back."""
    original = mx.gather_mm

    def half(a, b, *args, **kwargs):
        return original(a.astype(mx.float32), b.astype(mx.float32), *args, **kwargs).astype(a.dtype)

    monkeypatch.setattr(mx, "gather_mm", half)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
@pytest.mark.parametrize("case", CASES)
def test_dtypes_of_keys_residual_stream_and_logits_are_those_of_dense(case, dtype, experts_in_half_precision):
    target = build(case)
    target.set_dtype(dtype)
    assert observed_types(target, sparse=True) == observed_types(target, sparse=False)


@pytest.mark.parametrize("case", ["llama-llama3", "qwen3_5", "gemma4_text", "gpt_oss", "nemotron_h"])
def test_dtypes_of_a_4_bit_model_are_those_of_dense(case, experts_in_half_precision):
    target = build(case)
    target.set_dtype(mx.bfloat16)
    nn.quantize(
        target,
        group_size=32,
        bits=4,
        class_predicate=lambda _, module: hasattr(module, "to_quantized") and module.weight.shape[-1] % 32 == 0,
    )
    assert observed_types(target, sparse=True) == observed_types(target, sparse=False)


def observed_types(target, sparse):
    """Of the logits, of every layer's output, and of all keys and values, while reading and while decoding."""
    ids, kept, _ = prompt()
    models = Models(target=target, draft=None)
    layer_class = type(structure(target).text.layers[0])
    original, residual = layer_class.__call__, set()

    def noted(self, *args, **kwargs):
        output = original(self, *args, **kwargs)
        residual.add((output[0] if isinstance(output, tuple) else output).dtype)
        return output

    layer_class.__call__ = noted
    try:
        if sparse:
            context = prefill_kept(models, request(ids), [*kept[:9], PROMPT - 1], [])
        else:
            context = dense.prefill(models, request(ids[:10], ArmKind.DENSE))
        with context as prefilled:
            logits = [prefilled.logits.dtype, prefilled.decode(5).dtype]
            held = [(entry.keys.dtype, entry.values.dtype) for entry in prefilled.cache if hasattr(entry, "keys")]
    finally:
        layer_class.__call__ = original
    return logits, held, residual
