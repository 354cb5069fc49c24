"""The manifest: hashes that mean what they say, and numbers that are those of the files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.models.manifest import describe, tokenizer_sha256
from specprefill_repro.models.schema import LocalSource, Manifest
from tiny_model import write_tiny_model

VOCABULARY: dict[str, Any] = {
    "added_tokens": [{"id": 0, "content": "<s>", "special": True}, {"id": 1, "content": "<e>", "special": True}],
    "model": {"type": "BPE", "vocab": {"<s>": 0, "<e>": 1, "a": 2, "b": 3, "ab": 4}, "merges": ["a b"]},
}


def changed(**changes: Any) -> dict[str, Any]:
    return {**VOCABULARY, "model": {**VOCABULARY["model"], **changes}}


def describe_folder(folder: Path) -> Manifest:
    return describe(folder, "tiny", LocalSource(kind="local", path="x"), locked=False, fingerprint="0" * 64)


@pytest.mark.parametrize(
    "same",
    [
        changed(merges=[["a", "b"]]),
        changed(vocab=dict(reversed(VOCABULARY["model"]["vocab"].items()))),
        {**VOCABULARY, "added_tokens": VOCABULARY["added_tokens"][::-1]},
        {**VOCABULARY, "version": "1.0", "padding": None},
    ],
    ids=["merges-as-pairs", "order-of-tokens", "order-of-added", "other-keys"],
)
def test_equal_vocabularies_have_equal_hashes(same: dict[str, Any]) -> None:
    assert tokenizer_sha256(same) == tokenizer_sha256(VOCABULARY)


@pytest.mark.parametrize(
    "other",
    [
        changed(vocab={"<s>": 0, "<e>": 1, "a": 3, "b": 2, "ab": 4}),
        changed(merges=["b a"]),
        changed(merges=[]),
        {**VOCABULARY, "added_tokens": VOCABULARY["added_tokens"][:1]},
        {**VOCABULARY, "added_tokens": [{**VOCABULARY["added_tokens"][0], "special": False}]},
    ],
    ids=["ids-swapped", "merge-reversed", "no-merges", "one-special-less", "not-special"],
)
def test_different_vocabularies_have_different_hashes(other: dict[str, Any]) -> None:
    assert tokenizer_sha256(other) != tokenizer_sha256(VOCABULARY)


def test_manifest_tells_what_the_model_is(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "m", layers=3)
    manifest = describe_folder(folder)
    config = json.loads((folder / "config.json").read_text())
    # 600 x 64 embeddings, and by layer q, o 64 x 64, k, v 32 x 64, three of 128 x 64, two norms; a last norm.
    by_layer = 2 * 64 * 64 + 2 * 32 * 64 + 3 * 128 * 64 + 2 * 64
    assert manifest.parameters == config["vocab_size"] * 64 + 3 * by_layer + 64
    assert (manifest.layers, manifest.vocabulary, manifest.context) == (3, config["vocab_size"], 8192)
    assert (manifest.dtype, manifest.quantization) == ("float16", None)
    assert manifest.weight_bytes == (folder / "model.safetensors").stat().st_size


def test_packed_weights_count_as_the_values_they_stand_for(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization": {"bits": 4, "group_size": 32}}))
    packed = {
        "model.x.weight": np.zeros((8, 64 * 4 // 32), np.uint32),
        "model.x.scales": np.zeros((8, 64 // 32), np.float16),
        "model.x.biases": np.zeros((8, 64 // 32), np.float16),
    }
    save_file(packed, folder / "model.safetensors")
    manifest = describe_folder(folder)
    assert manifest.parameters == 8 * 64
    assert manifest.quantization == "4-bit, group 32"


def test_model_that_brings_its_own_code_is_refused(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "m")
    marker = tmp_path / "ran"
    (folder / "evil.py").write_text(f"open({str(marker)!r}, 'w')")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_file": "evil.py"}))
    with pytest.raises(ReproError, match=r"Python code of its own .*evil\.py") as caught:
        describe_folder(folder)
    assert caught.value.exit_code == Exit.VERIFICATION
    assert not marker.exists()


@pytest.mark.parametrize("content", ["", "[]", "{", '"text"', "[" * 100_000])
def test_damaged_config_is_refused(tmp_path: Path, content: str) -> None:
    folder = write_tiny_model(tmp_path / "m")
    (folder / "config.json").write_text(content)
    with pytest.raises(ReproError, match="not a JSON object"):
        describe_folder(folder)


@pytest.mark.parametrize("key", ["num_hidden_layers", "vocab_size", "max_position_embeddings", "model_type"])
def test_config_without_a_needed_key_is_refused(tmp_path: Path, key: str) -> None:
    folder = write_tiny_model(tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    del config[key]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ReproError, match=key):
        describe_folder(folder)
