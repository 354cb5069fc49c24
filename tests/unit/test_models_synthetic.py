"""Synthetic models: of the right shape, the same from the same seed, and refused when mlx_lm can't make them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from specprefill_repro.errors import ReproError
from specprefill_repro.files import read_yaml_model
from specprefill_repro.models.schema import ModelsFile
from specprefill_repro.models.schema import Synthetic as SyntheticSource
from specprefill_repro.models.synthetic import synthesize, synthetic_bytes
from specprefill_repro.project import Project
from tiny_model import write_tiny_model

CONFIG: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("borrowed") / "model")


def made(tokenizer: Path, out: Path, seed: int = 1, **changes: Any) -> Path:
    out.mkdir()
    synthesize(tokenizer, out, {**CONFIG, **changes}, seed)
    return out


def test_mlx_lm_loads_it_and_its_vocabulary_is_the_tokenizers(tokenizer: Path, tmp_path: Path) -> None:
    import mlx.core as mx
    from mlx_lm import load

    model, words = load(str(made(tokenizer, tmp_path / "m")))
    ids = words.encode("the secret number")
    logits = model(mx.array([ids]))
    assert logits.shape[-1] == json.loads((tokenizer / "config.json").read_text())["vocab_size"]
    assert bool(mx.isfinite(logits).all())


def test_equal_seeds_give_equal_bytes_and_others_do_not(tokenizer: Path, tmp_path: Path) -> None:
    one, two, other = (
        (made(tokenizer, tmp_path / name, seed) / "model.safetensors").read_bytes()
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert one == two
    assert one != other


def test_weights_are_spread_as_said_and_differ_between_tensors(tokenizer: Path, tmp_path: Path) -> None:
    weights = load_file(made(tokenizer, tmp_path / "m") / "model.safetensors")
    one = weights["model.layers.0.mlp.up_proj.weight"]
    assert one.std() == pytest.approx(0.02, rel=0.05)
    assert not np.array_equal(one, weights["model.layers.1.mlp.up_proj.weight"])
    assert (weights["model.norm.weight"] == 1).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_announced_size_and_dtype_are_the_real_ones(tokenizer: Path, tmp_path: Path, dtype: str) -> None:
    import mlx.core as mx

    path = made(tokenizer, tmp_path / "m", torch_dtype=dtype) / "model.safetensors"
    header = int.from_bytes(path.read_bytes()[:8], "little") + 8
    vocabulary = json.loads((tokenizer / "config.json").read_text())["vocab_size"]
    assert synthetic_bytes({**CONFIG, "torch_dtype": dtype}, vocabulary) == path.stat().st_size - header
    assert {array.dtype for array in mx.load(str(path)).values()} == {getattr(mx, dtype)}


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "no_such_model"},
        {"model_type": "../../os"},
        {"model_type": "base"},
        {"hidden_size": "many"},
        {"torch_dtype": "float8"},
        {"num_attention_heads": 0},
    ],
)
def test_impossible_model_is_refused(tokenizer: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ReproError, match="cannot make a synthetic model"):
        made(tokenizer, tmp_path / "m", **changes)
    assert list((tmp_path / "m").iterdir()) == []


def test_missing_setting_is_named(tokenizer: Path, tmp_path: Path) -> None:
    with pytest.raises(ReproError, match="rms_norm_eps"):
        synthesize(tokenizer, tmp_path, {key: CONFIG[key] for key in CONFIG if key != "rms_norm_eps"}, 1)


PROJECT = Project(Path(__file__).parents[2])
DEFINED = read_yaml_model(PROJECT.models_file, ModelsFile).models
TINY = {name: d.source for name, d in DEFINED.items() if isinstance(d.source, SyntheticSource)}


@pytest.mark.parametrize("name", TINY)
def test_a_stand_in_of_tiny_scale_computes_something_of_its_prompt(name: str, tokenizer: Path, tmp_path: Path) -> None:
    """A scale that is left at zero switches a whole layer off, and every prompt has the same answer."""
    import mlx.core as mx

    from specprefill_repro.prefill.loading import load_model

    out = tmp_path / "m"
    out.mkdir()
    synthesize(tokenizer, out, dict(TINY[name].config), TINY[name].seed)
    model, _ = load_model(out)
    mx.disable_compile()  # compiling small functions for the CPU takes most of the time otherwise
    first, second = (np.array(model(mx.array([ids]))[0, -1]) for ids in ([3, 7, 11, 20], [9, 2, 5, 20]))
    mx.enable_compile()
    assert np.isfinite(first).all() and first.std() > 0
    assert not np.allclose(first, second, rtol=1e-4, atol=0)
