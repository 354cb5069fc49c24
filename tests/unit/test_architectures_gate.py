"""The gate on every architecture: it passes on a right engine, with and without the NumPy oracle, and names faults."""

import json

import mlx.core as mx
import numpy as np
import pytest

from specprefill_repro.gate import scores
from specprefill_repro.gate.checks import CHECKS, run_checks
from specprefill_repro.gate.oracle import LlamaOracle, why_not_covered
from specprefill_repro.gate.pair import load_pair
from specprefill_repro.gate.weights import dequantise
from specprefill_repro.models.schema import LocalSource, Manifest
from specprefill_repro.prefill import look_ahead, positions, sparse, windows
from specprefill_repro.prefill.chunked import new_cache
from specprefill_repro.prefill.look_ahead import Attention
from specprefill_repro.study.schema import Selection
from tiny_architectures import cases, expected, prompt, write

# One of each kind: the others differ in what the gate does not depend on.
LEFT_OUT = {"llama", "llama-yarn", "qwen3_next", "qwen3_5_moe", "gemma4_text-dense", "phi3-longrope"}
CASES = sorted(set(cases()) - LEFT_OUT)
COVERED = ["llama", "llama-llama3", "llama-longrope", "llama-yarn", "qwen2", "qwen3"]


@pytest.fixture(autouse=True, scope="module")
def no_compilation():
    """Compiling small functions for the CPU takes most of the time otherwise; it changes no result."""
    mx.disable_compile()
    yield
    mx.enable_compile()


def manifest(folder):
    return Manifest(
        name=folder.name.replace("_", "-"),
        source=LocalSource(kind="local", path=str(folder)),
        locked=False,
        model_type=json.loads((folder / "config.json").read_text())["model_type"],
        layers=2,
        vocabulary=96,
        context=1024,
        parameters=1,
        weight_bytes=1,
        dtype="float32",
        quantization=None,
        tokenizer_sha256="a" * 64,
        weights_sha256="b" * 64,
        fingerprint="f" * 64,
        files=(),
    )


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    made = {}

    def folder_of(case, **options):
        key = (case, *options.values())
        if key not in made:
            made[key] = write(case, tmp_path_factory.mktemp("models") / case, **options)
        return made[key]

    return folder_of


def load(target, draft):
    return load_pair(manifest(target), manifest(draft), target, draft, Selection(look_ahead=4))


def results(pair):
    return {check.name: check for check in run_checks(pair)}


def failures(pair, beginning=("scores", "gapped", "windows", "keys")):
    """Of the checks that tell where tokens stand and what is scored; the others are in test_gate.py."""
    chosen = [named for named in CHECKS if named.name.startswith(beginning) and named.applies(pair)]
    return {named.name for named in chosen if not named.check(pair).passed}


def applying(pair):
    return {named.name for named in CHECKS if named.applies(pair)}


@pytest.mark.parametrize("case", CASES)
def test_a_right_engine_passes_the_gate_with_any_model_as_target_and_draft(case, folder_of):
    folder = folder_of(case)
    found = results(load(folder, folder))
    assert {name: check.measured for name, check in found.items() if not check.passed} == {}
    covered = case in COVERED
    assert ("gapped-selection-equals-oracle" in found) == ("scores-equal-oracle" in found) == covered
    assert ("gapped-equals-one-by-one" in found) == ("scores-equal-kernel" in found) == (not covered)
    if not covered:
        assert "in place of the NumPy oracle (it does not know" in found["gapped-equals-one-by-one"].measured
    assert ("windows-count-positions" in found) == ("sliding_attention" in json.dumps(cases()[case]))
    # What is special about a model is told where a reader of the gate's result sees it.
    assert ("windows-count-positions" in found) == ("sliding windows" in found["layers-read-kept-tokens"].measured)
    recurrent_first = case in ("qwen3_5", "nemotron_h")
    assert ("keys-equal-one-by-one" in found) == recurrent_first == ("keys-equal-dense" not in found)


@pytest.mark.parametrize(("case", "outer"), [("gemma4_text", "gemma4"), ("ministral3", "mistral3")])
def test_a_multimodal_checkpoint_passes_the_gate_with_a_draft_of_another_architecture(case, outer, folder_of):
    assert failures(load(folder_of(case, outer=outer), folder_of("qwen3"))) == set()


@pytest.mark.parametrize(("case", "bits"), [("llama-llama3", 4), ("qwen3", 8)])
def test_a_quantised_model_is_held_against_the_oracle_too(case, bits, folder_of):
    pair = load(folder_of(case, bits=bits), folder_of(case, bits=bits))
    assert "gapped-selection-equals-oracle" in applying(pair)
    assert failures(pair) == set()


def test_quantised_weights_that_numpy_does_not_read_are_left_to_the_other_checks(folder_of):
    folder = folder_of("llama", bits=3)
    assert "quantised with 3.0 bits" in why_not_covered(folder)
    pair = load(folder, folder)
    assert {"gapped-equals-one-by-one", "scores-equal-kernel"} < applying(pair)
    assert failures(pair) == set()


@pytest.mark.parametrize("case", ["llama-llama3", "gpt_oss"])
def test_rotary_settings_that_mlx_lm_overlooks_are_named(case, tmp_path):
    folder = write(case, tmp_path / case)
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"] = {**config.pop("rope_scaling"), "rope_theta": config.pop("rope_theta")}
    (folder / "config.json").write_text(json.dumps(config))
    pair = load(folder, folder)
    assert failures(pair, "rotary") == {"rotary-settings-read"}
    # The oracle reads them, and so says the same in its own way.
    oracle = {"gapped-selection-equals-oracle", "scores-equal-oracle"} if case in COVERED else set()
    assert failures(pair, ("gapped", "scores")) == oracle


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_dequantising_in_numpy_equals_mlx(bits):
    matrix = mx.random.normal((6, 128), key=mx.random.key(bits))
    packed, scales, biases = mx.quantize(matrix, group_size=32, bits=bits)
    ours = dequantise(np.array(packed), np.array(scales, dtype=float), np.array(biases, dtype=float), 32)
    theirs = mx.dequantize(packed, scales, biases, group_size=32, bits=bits)
    np.testing.assert_allclose(ours, np.array(theirs), atol=1e-5)


@pytest.mark.parametrize("case", COVERED)
def test_the_oracle_equals_transformers(case, folder_of):
    ids, kept, decoded = prompt()
    read = [*(ids[position] for position in kept), *decoded]
    places = [*kept, *range(len(ids), len(ids) + len(decoded))]
    found = LlamaOracle(folder_of(case)).forward(read, places, last_only=False).logits[-1 - len(decoded) :]
    assert np.abs(found - expected()[case]).max() < 1e-5 * np.ptp(expected()[case])


@pytest.mark.parametrize("case", ["qwen3_5", "gemma4_text", "gpt_oss", "glm4", "phi3"])
def test_compacted_positions_are_named_without_an_oracle(case, folder_of, monkeypatch):
    def compacted(self, x, offset=0):
        self.seen.append(self.positions.current)
        return self.rotary(x, offset=offset)

    monkeypatch.setattr(positions.PositionedRotary, "__call__", compacted)
    keys = "keys-equal-one-by-one" if case == "qwen3_5" else "keys-equal-dense"
    assert failures(load(folder_of(case), folder_of("qwen3")), ("gapped", "keys")) == {"gapped-equals-one-by-one", keys}


@pytest.mark.parametrize("case", ["mistral-windows", "gemma3_text", "gemma4_text", "gpt_oss"])
def test_windows_that_count_kept_tokens_are_named(case, folder_of, monkeypatch):
    monkeypatch.setattr(positions.PositionedModel, "make_cache", lambda self: self.model.make_cache())
    assert failures(load(folder_of(case), folder_of("qwen3")), "windows") == {"windows-count-positions"}


def test_a_window_that_is_one_too_long_is_named(folder_of, monkeypatch):
    original = windows.WindowCache.make_mask

    def longer(self, tokens, window_size=None, return_array=False):
        self.window += 1
        try:
            return original(self, tokens, None, return_array)
        finally:
            self.window -= 1

    monkeypatch.setattr(windows.WindowCache, "make_mask", longer)
    assert failures(load(folder_of("gpt_oss"), folder_of("qwen3")), "windows") == {"windows-count-positions"}


def test_queries_scaled_by_cache_entries_are_named(folder_of, monkeypatch):
    monkeypatch.setattr(positions.PositionedModel, "_scale_by_position", lambda self, original: original)
    assert failures(load(folder_of("ministral3"), folder_of("qwen3"))) == {"gapped-equals-one-by-one"}


@pytest.mark.parametrize("case", ["gpt_oss", "gemma4_text", "nemotron_h", "qwen3_5"])
def test_queries_from_the_wrong_place_are_named_without_an_oracle(case, folder_of, monkeypatch):
    def shuffled(*args, **more):
        layers, decoded = look_ahead.look_ahead(*args, **more)
        return [Attention(of.queries[:, ::-1], of.keys, of.scale, of.sinks) for of in layers], decoded

    monkeypatch.setattr(scores, "look_ahead", shuffled)
    assert failures(load(folder_of("qwen3"), folder_of(case))) == {"scores-equal-kernel"}


def test_scores_without_the_sinks_are_named(folder_of, monkeypatch):
    def without(*args):
        layers, decoded = look_ahead.look_ahead(*args)
        return [Attention(of.queries, of.keys, of.scale) for of in layers], decoded

    monkeypatch.setattr(scores, "look_ahead", without)
    assert failures(load(folder_of("qwen3"), folder_of("gpt_oss"))) == {"scores-equal-kernel"}


def test_recurrent_layers_that_read_dropped_tokens_are_named(folder_of, monkeypatch):
    """As one port's notes say it of theirs: states of the whole prompt, keys of the kept tokens."""
    folder = folder_of("qwen3_5")
    pair = load(folder, folder)
    original = sparse.read_prompt

    def states_of_all(model, ids, cache, *args):
        scratch = [
            fresh if hasattr(fresh, "keys") else own for fresh, own in zip(new_cache(pair.target), cache, strict=True)
        ]
        pair.target(mx.array([pair.ids]), cache=scratch)
        return original(model, ids, cache, *args)

    monkeypatch.setattr(sparse, "read_prompt", states_of_all)
    assert "layers-read-kept-tokens" in failures(pair, ("layers",))


def test_an_ignored_traditional_layout_is_named(folder_of, monkeypatch):
    """GLM-4 rotates neighbouring elements; the public ports rotate halves, whatever the model says."""
    original = positions.PositionedRotary.__call__

    def halves(self, x, offset=0):
        assert self.rotary.traditional
        self.rotary.traditional = False
        try:
            return original(self, x, offset)
        finally:
            self.rotary.traditional = True

    monkeypatch.setattr(positions.PositionedRotary, "__call__", halves)
    assert failures(load(folder_of("glm4"), folder_of("qwen3")), ("keep", "gapped", "keys")) == {
        "keep-1-equals-dense",
        "gapped-equals-one-by-one",
        "keys-equal-dense",
    }
