"""Padded models compute exactly what their base computes; cut ones exactly what its first layers compute."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from specprefill_repro.errors import ReproError
from specprefill_repro.models.derived import derived_bytes, first_layers, padded
from specprefill_repro.models.manifest import describe
from specprefill_repro.models.schema import LocalSource
from tiny_model import write_tiny_model

IDS = [1, 87, 85, 263, 201, 406, 86, 332, 261, 397, 317, 223, 22, 26, 20, 19]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("base") / "model", layers=4)


def logits(folder: Path, layers: int | None = None) -> np.ndarray[Any, Any]:
    """Of all positions, by mlx_lm; with `layers`, after dropping the later layers of the loaded model."""
    import mlx.core as mx
    from mlx_lm.utils import load_model

    model, _ = load_model(folder)
    if layers is not None:
        model.model.layers = model.model.layers[:layers]
    return np.array(model(mx.array([IDS])).astype(mx.float32))


def quantised(base: Path, out: Path) -> Path:
    """A 4-bit copy of a model, made by mlx_lm, with one module in 8 bits."""
    from mlx_lm.utils import load_model, quantize_model, save_model

    model, config = load_model(base)
    special = {"model.layers.1.mlp.down_proj": {"group_size": 32, "bits": 8}}
    model, config = quantize_model(model, config, 32, 4, quant_predicate=lambda path, module: special.get(path, True))
    out.mkdir()
    save_model(out, model)
    (out / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (out / name).write_bytes((base / name).read_bytes())
    return out


@pytest.mark.parametrize("layers", [5, 8, 11])
def test_padded_model_gives_exactly_the_logits_of_its_base(base: Path, tmp_path: Path, layers: int) -> None:
    padded(base, tmp_path, layers)
    assert np.abs(logits(tmp_path) - logits(base)).max() == 0.0
    assert json.loads((tmp_path / "config.json").read_text())["num_hidden_layers"] == layers


def test_padding_of_a_quantised_model_is_exact_too(base: Path, tmp_path: Path) -> None:
    packed = quantised(base, tmp_path / "packed")
    (tmp_path / "out").mkdir()
    padded(packed, tmp_path / "out", 7)
    assert np.abs(logits(tmp_path / "out") - logits(packed)).max() == 0.0
    settings = json.loads((tmp_path / "out" / "config.json").read_text())["quantization"]
    assert settings["model.layers.5.mlp.down_proj"]["bits"] == 8


def test_added_layers_are_copies_of_real_ones_but_for_two_projections(base: Path, tmp_path: Path) -> None:
    padded(base, tmp_path, 10)
    old, new = load_file(base / "model.safetensors"), load_file(tmp_path / "model.safetensors")
    zero = ("self_attn.o_proj.weight", "mlp.down_proj.weight")
    for layer in range(10):
        for name in [name for name in old if name.startswith("model.layers.0.")]:
            part = name.removeprefix("model.layers.0.")
            here, there = new[f"model.layers.{layer}.{part}"], old[f"model.layers.{layer % 4}.{part}"]
            if layer >= 4 and part in zero:
                assert not here.any()
                assert here.shape == there.shape
            else:
                np.testing.assert_array_equal(here, there, strict=True)


@pytest.mark.parametrize("layers", [1, 3])
def test_first_layers_compute_what_they_compute_in_the_base(base: Path, tmp_path: Path, layers: int) -> None:
    first_layers(base, tmp_path, layers)
    assert np.abs(logits(tmp_path) - logits(base, layers)).max() == 0.0
    assert np.abs(logits(tmp_path) - logits(base)).max() > 1e-3


@pytest.mark.parametrize(("make", "layers"), [(padded, 9), (first_layers, 2)])
def test_announced_size_is_the_real_one(base: Path, tmp_path: Path, make: Any, layers: int) -> None:
    make(base, tmp_path, layers)
    header = int.from_bytes((tmp_path / "model.safetensors").read_bytes()[:8], "little") + 8
    assert derived_bytes(base, layers) == (tmp_path / "model.safetensors").stat().st_size - header


def test_derived_model_keeps_the_tokenizer(base: Path, tmp_path: Path) -> None:
    padded(base, tmp_path, 6)
    source = LocalSource(kind="local", path="x")
    two = [describe(folder, "m", source, locked=False, fingerprint="0" * 64) for folder in (base, tmp_path)]
    assert two[0].tokenizer_sha256 == two[1].tokenizer_sha256
    assert two[1].layers == 6


@pytest.mark.parametrize(("make", "layers"), [(padded, 4), (padded, 2), (first_layers, 4), (first_layers, 5)])
def test_impossible_number_of_layers_is_refused(base: Path, tmp_path: Path, make: Any, layers: int) -> None:
    with pytest.raises(ReproError, match=r"asked for, and the base model has 4"):
        make(base, tmp_path, layers)
    assert list(tmp_path.iterdir()) == []


def test_layers_of_several_kinds_are_refused(base: Path, tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    odd = write_tiny_model(tmp_path / "odd", layers=3)
    weights = load_file(odd / "model.safetensors")
    weights["model.layers.1.linear_attn.in_proj.weight"] = np.ones((4, 4), np.float16)
    save_file(weights, odd / "model.safetensors")
    with pytest.raises(ReproError, match="not all of one kind"):
        padded(odd, tmp_path, 6)
