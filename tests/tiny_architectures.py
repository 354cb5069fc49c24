"""Tiny models of every architecture, with weights from a seed; and what transformers computes for them.

`tests/reference/architectures/README.md` says how the reference was made. Weights are not stored: names and shapes are,
and each tensor is drawn from a generator that its name seeds.
"""

import json
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FOLDER = Path(__file__).parent / "reference" / "architectures"
COMMON = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
}
PROMPT = 300
DECODED = 32


def cases() -> dict[str, dict[str, Any]]:
    """By name: the class in transformers, and config.json as a checkpoint on the Hub has it."""
    found = json.loads((FOLDER / "cases.json").read_text())
    return {name: {**case, "config": {**COMMON, **case["config"]}} for name, case in found.items()}


def prompt() -> tuple[list[int], list[int], list[int]]:
    """Token ids of the prompt, the kept positions (gaps longer and shorter than a window of 40), and decoded tokens."""
    ids = draw("prompt", (PROMPT + DECODED,), 48, 48).astype(int).tolist()
    kept = [*range(6), *range(30, 38), 51, 53, *range(90, 100), *range(131, 133), *range(180, 196), *range(230, 240)]
    return ids[:PROMPT], [*kept, 265, *range(280, 283), *range(293, PROMPT)], ids[PROMPT:]


def draw(name: str, shape: tuple[int, ...], centre: float, width: float) -> NDArray[np.float32]:
    """Uniform between centre - width and centre + width."""
    random = np.random.Generator(np.random.PCG64(zlib.crc32(name.encode())))
    return (centre + width * (2 * random.random(shape) - 1)).astype(np.float32)


def weights(case: str) -> dict[str, NDArray[np.float32]]:
    """The tensors of a checkpoint, as transformers names them."""
    shapes = json.loads((FOLDER / "shapes.json").read_text())[case]
    return {name: draw(f"{case}/{name}", tuple(shape), centre, width) for name, shape, centre, width in shapes}


@cache
def expected() -> dict[str, NDArray[np.float32]]:
    """By case: logits of the last prompt token and of each decoded token but the last, (1 + 32, vocabulary)."""
    with np.load(FOLDER / "expected.npz") as arrays:
        return {name: arrays[name] for name in arrays.files}


def mlx_config(case: str, outer: str | None = None) -> dict[str, Any]:
    """config.json of a case; with `outer`, of a multimodal checkpoint of that type with the case inside."""
    config = {**cases()[case]["config"]}
    if outer is not None:
        return {"model_type": outer, "text_config": config, "vocab_size": config["vocab_size"]}
    # mlx_lm has no name of its own for the text part of these.
    config["model_type"] = config["model_type"].replace("qwen3_5_text", "qwen3_5").replace("moe_text", "moe")
    return config


def build(case: str, outer: str | None = None) -> Any:
    """The model as mlx_lm builds and loads it; with `outer`, as the text part of a multimodal model of that type."""
    import mlx.core as mx

    # As the engine imports it: without transformers.
    from specprefill_repro.prefill.loading import _mlx_lm_utils

    config = mlx_config(case, outer)
    tensors = {name: mx.array(value) for name, value in weights(case).items()}
    tensors = _as_mlx_expects(cases()[case]["config"], tensors)
    if outer is not None:
        tensors = {f"language_model.{name}": value for name, value in tensors.items()}
    model_class, arguments = _mlx_lm_utils()._get_classes(config)
    model = model_class(arguments.from_dict(json.loads(json.dumps(config))))
    sanitized = model.sanitize(tensors) if hasattr(model, "sanitize") else tensors
    model.load_weights(list(sanitized.items()), strict=True)
    model.eval()
    mx.eval(model.parameters())
    return model


def _as_mlx_expects(config: dict[str, Any], tensors: dict[str, Any]) -> dict[str, Any]:
    """What mlx_lm reads only in the form that the published checkpoints have, and transformers writes differently."""
    if config["model_type"] == "gpt_oss":
        return {new: value for name, old in tensors.items() for new, value in _gpt_oss(name, old)}
    if config["model_type"] == "qwen3_5_moe_text":
        return _experts_together(tensors, config["num_experts"])
    return tensors


def _gpt_oss(name: str, value: Any) -> list[tuple[str, Any]]:
    """Unpacked experts: rows of gate and up alternate, as in the packed ones that mlx_lm splits."""
    if "experts" not in name:
        return [(name, value)]
    stem, end = (name.removesuffix("_bias"), ".bias") if name.endswith("_bias") else (name, ".weight")
    rows = value if end == ".bias" else value.swapaxes(1, 2)
    if "gate_up_proj" not in name:
        return [(stem + end, rows)]
    parts = ("gate_proj", rows[:, 0::2]), ("up_proj", rows[:, 1::2])
    return [(stem.replace("gate_up_proj", part) + end, split) for part, split in parts]


def _experts_together(tensors: dict[str, Any], experts: int) -> dict[str, Any]:
    """All experts of a layer in one array, gate and up one after the other."""
    import mlx.core as mx

    found = {name: value for name, value in tensors.items() if ".experts." not in name}
    for name in [name for name in tensors if name.endswith(".experts.0.down_proj.weight")]:
        stem = name.removesuffix(".0.down_proj.weight")
        gate, up, down = (
            mx.stack([tensors[f"{stem}.{expert}.{part}.weight"] for expert in range(experts)])
            for part in ("gate_proj", "up_proj", "down_proj")
        )
        found[f"{stem}.gate_up_proj"] = mx.concatenate([gate, up], axis=1)
        found[f"{stem}.down_proj"] = down
    return found


def write(case: str, folder: Path, outer: str | None = None, bits: int | None = None) -> Path:
    """A model folder with config.json and model.safetensors, float32 or quantised in groups of 32; returns it."""
    import mlx.core as mx
    import mlx.nn as nn
    from mlx.utils import tree_flatten

    model = build(case, outer)
    config = mlx_config(case, outer)
    if bits is not None:
        nn.quantize(model, group_size=32, bits=bits, class_predicate=_quantisable)
        config["quantization"] = {"group_size": 32, "bits": bits}
    folder.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _quantisable(_: str, module: Any) -> bool:
    return hasattr(module, "to_quantized") and module.weight.shape[-1] % 32 == 0
