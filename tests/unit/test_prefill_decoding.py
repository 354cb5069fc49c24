"""Decoding after a sparse prefill is the same work as after a dense one: same caches, same kernels, same types."""

import re
from collections import Counter

import mlx.core as mx
import pytest

from specprefill_repro.prefill import dense
from specprefill_repro.prefill.architectures import structure
from specprefill_repro.prefill.arms import Models, Request
from specprefill_repro.prefill.positions import PositionedModel
from specprefill_repro.prefill.sparse import prefill_kept
from specprefill_repro.prefill.windows import WindowCache
from specprefill_repro.study.plan import Arm, ArmKind
from specprefill_repro.study.schema import Selection
from tiny_architectures import build, cases, prompt

CASES = [
    "llama",
    "llama-yarn",
    "ministral3",
    "qwen3",
    "qwen3_5",
    "gemma4_text",
    "nemotron_h",
    "gpt_oss",
    "glm4",
    "phi3",
]


@pytest.fixture(autouse=True, scope="module")
def no_compilation():
    """Compiling small functions for the CPU takes most of the time otherwise; it changes no result."""
    mx.disable_compile()
    yield
    mx.enable_compile()


def read(case, sparse):
    """A model, a cache after a prefill of some tokens, sparse or dense, and how the next token is read."""
    ids, kept, decoded = prompt()
    model = build(case)
    models = Models(model, None)
    if sparse:
        arm = Arm(kind=ArmKind.RANDOM, keep=0.2, selection=Selection())
        context = prefill_kept(models, Request(tuple(ids), arm, 64, ""), kept, [])
    else:
        context = dense.prefill(models, Request(tuple(ids[: len(kept)]), Arm(kind=ArmKind.DENSE), 64, ""))
    with context as prefilled:
        prefilled.decode(decoded[0])
    return model, prefilled.cache, decoded[1]


def kernels(logits, folder):
    """How often each primitive occurs in the graph of an array that was not evaluated yet."""
    mx.export_to_dot(str(folder / "graph.dot"), logits)
    return Counter(re.findall(r'label ="(\w+)", shape=rectangle', (folder / "graph.dot").read_text()))


@pytest.mark.parametrize("case", CASES)
def test_a_decoded_token_costs_the_same_kernels_as_after_a_dense_prefill(case, tmp_path):
    model, cache, token = read(case, sparse=False)
    expected = kernels(model(mx.array([[token]]), cache=cache), tmp_path)
    model, cache, token = read(case, sparse=True)
    positioned = PositionedModel(model, 300)
    positioned.positions.set([301])
    for entry in cache:
        if isinstance(entry, WindowCache):
            entry._positions = positioned.positions
    found = kernels(positioned(mx.array([[token]]), cache=cache), tmp_path)
    assert expected.total() > 20
    if "sliding_attention" not in str(cases()[case]):
        assert found == expected
    for kernel in ("RoPE", "ScaledDotProductAttention", "Matmul", "Softmax", "AsType"):
        assert found[kernel] == expected[kernel]


@pytest.mark.parametrize("case", CASES)
def test_caches_are_of_the_same_kind_and_types_and_hold_fewer_tokens(case):
    _, sparse, _ = read(case, sparse=True)
    model, dense_cache, _ = read(case, sparse=False)
    windows = {layer.cache for layer in structure(model).attention if layer.window is not None}
    for index, (ours, theirs) in enumerate(zip(sparse, dense_cache, strict=True)):
        if index in windows:
            assert isinstance(ours, WindowCache) and ours.keys.shape[2] <= 256
        else:
            assert type(ours) is type(theirs)
        if hasattr(ours, "keys"):
            assert ours.offset == theirs.offset
            assert (ours.keys.dtype, ours.values.dtype) == (theirs.keys.dtype, theirs.values.dtype)
