"""The gate passes on a right engine, and names each fault that is planted into it."""

import json

import mlx.core as mx
import pytest

from specprefill_repro.gate import checks
from specprefill_repro.models.schema import LocalSource, Manifest
from specprefill_repro.prefill import chunked, dense, look_ahead, positions, selection, sparse, speculative
from specprefill_repro.study.schema import Selection
from tiny_model import write_tiny_model


def manifest(folder, tokenizer="a"):
    config = json.loads((folder / "config.json").read_text())
    return Manifest(
        name=folder.name,
        source=LocalSource(kind="local", path=str(folder)),
        locked=False,
        model_type="llama",
        layers=config["num_hidden_layers"],
        vocabulary=config["vocab_size"],
        context=8192,
        parameters=1,
        weight_bytes=1,
        dtype="float16",
        quantization=None,
        tokenizer_sha256=tokenizer * 64,
        weights_sha256="b" * 64,
        fingerprint="f" * 64,
        files=(),
    )


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gate")
    return write_tiny_model(folder / "target", seed=1, layers=3), write_tiny_model(folder / "draft", seed=2, layers=2)


@pytest.fixture
def pair(folders):
    target, draft = folders
    return checks.load_pair(manifest(target), manifest(draft), target, draft, Selection())


def failures(pair):
    return {check.name for check in checks.run_checks(pair) if not check.passed}


def test_a_right_engine_passes_every_check(pair):
    results = list(checks.run_checks(pair))
    assert [check.name for check in results if not check.passed] == []
    assert len({check.name for check in results}) == len(results) == 12


def test_different_tokenizers_are_named(folders):
    target, draft = folders
    pair = checks.load_pair(manifest(target), manifest(draft, tokenizer="c"), target, draft, Selection())
    assert failures(pair) == {"tokenizers-equal"}


def test_compacted_positions_are_named_though_keep_one_hides_them(pair, monkeypatch):
    def compacted(self, x, offset=0):
        self.seen.append(self.positions.current)
        return self.rotary(x, offset=offset)

    monkeypatch.setattr(positions.PositionedRotary, "__call__", compacted)
    assert failures(pair) == {"gapped-selection-equals-oracle", "keys-equal-dense"}


def test_the_wrong_rotary_layout_is_named(pair, monkeypatch):
    original = positions.PositionedRotary.__call__

    def traditional(self, x, offset=0):
        self.rotary.traditional = True
        try:
            return original(self, x, offset)
        finally:
            self.rotary.traditional = False

    monkeypatch.setattr(positions.PositionedRotary, "__call__", traditional)
    assert {"keep-1-equals-dense", "gapped-selection-equals-oracle", "keys-equal-dense"} <= failures(pair)


def test_rotation_that_changes_the_type_is_named(folders, monkeypatch):
    target, draft = folders
    pair = checks.load_pair(manifest(target), manifest(draft), target, draft, Selection())
    pair.target.set_dtype(mx.bfloat16)
    original = positions.PositionedRotary.__call__
    monkeypatch.setattr(
        positions.PositionedRotary, "__call__", lambda self, x, offset=0: original(self, x, offset).astype(mx.float32)
    )
    assert "types-unchanged" in failures(pair)


def test_queries_from_the_wrong_place_are_named(pair, monkeypatch):
    original = look_ahead.look_ahead

    def unrotated(*args):
        layers, decoded = original(*args)
        wrong = [
            look_ahead.Attention(queries=layer.queries[:, ::-1], keys=layer.keys, scale=layer.scale) for layer in layers
        ]
        return wrong, decoded

    monkeypatch.setattr(checks, "look_ahead", unrotated)
    assert failures(pair) == {"scores-equal-oracle"}


def test_a_dropped_last_token_is_named(pair, monkeypatch):
    original = selection._with_head_and_tail
    monkeypatch.setattr(selection, "_with_head_and_tail", lambda *args: original(*args)[:-1])
    assert "last-token-kept" in failures(pair)


def test_a_wrapper_that_is_left_behind_is_named(pair, monkeypatch):
    installed = positions.PositionedModel._installed
    alive = []  # A context that is garbage collected would put the original back after all.

    class NotPutBack:
        def __init__(self, model):
            self.context = installed(model)
            alive.append(self.context)

        def __enter__(self):
            return self.context.__enter__()

        def __exit__(self, *error):
            return False

    monkeypatch.setattr(positions.PositionedModel, "_installed", NotPutBack)
    assert {"model-untouched", "model-untouched-after-error"} <= failures(pair)


def test_a_reused_cache_is_named(pair, monkeypatch):
    kept = {}

    def reused(model):
        return kept.setdefault(id(model.model), chunked.new_cache(model))

    monkeypatch.setattr(sparse, "new_cache", reused)
    assert "cache-starts-empty" in failures(pair)


def test_a_changed_weight_is_named(pair, monkeypatch):
    original = speculative.prefill_kept

    def scribble(models, *args):
        layer = models.target.layers[0].mlp.down_proj
        layer.weight = layer.weight * 1.5
        return original(models, *args)

    monkeypatch.setattr(speculative, "prefill_kept", scribble)
    assert "model-untouched" in failures(pair)


def test_a_check_that_cannot_be_made_has_failed(pair, monkeypatch):
    def broken(*_):
        raise RuntimeError("kernel not found")

    monkeypatch.setattr(dense, "prefill", broken)
    results = {check.name: check for check in checks.run_checks(pair)}
    assert not results["keep-1-equals-dense"].passed
    assert "kernel not found" in results["keep-1-equals-dense"].measured
