"""Models made from other models' layers: the first k, or all of them followed by identity layers.

Whole tensors are copied, byte for byte and under new layer numbers, so any dtype and any quantisation works.
"""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specprefill_repro.errors import ReproError
from specprefill_repro.models.safetensors_file import Tensor, read_safetensors, write_safetensors

LAYER = re.compile(r"(.*\blayers\.)(\d+)(\..+)")
INTO_RESIDUAL = (".self_attn.o_proj.", ".mlp.down_proj.")
"""The two projections through which a layer adds to the residual stream. All else of it may stay as it is."""


def first_layers(base: Path, out: Path, layers: int, progress: Callable[[int, int], None] | None = None) -> None:
    """Write the model of the first `layers` layers of the model in `base` into the folder `out`.

    Raises:
        ReproError: `base` has not that many layers, or layers of several kinds.
    """
    tensors, count = _base_tensors(base)
    if layers >= count:
        raise ReproError(
            f"The first {layers} layers were asked for, and the base model has {count}.",
            "A model of the first layers must have fewer layers than its base.",
            f"Set `layers` to a number from 1 to {count - 1} in config/models.yaml.",
        )
    kept = [tensor for tensor in tensors if (layer := _layer(tensor.name)) is None or layer < layers]
    _copy_rest(base, out, count, list(range(layers)))
    write_safetensors(out / "model.safetensors", kept, progress)


def padded(base: Path, out: Path, layers: int, progress: Callable[[int, int], None] | None = None) -> None:
    """Write the model in `base`, followed by identity layers up to `layers` in all, into the folder `out`.

    An added layer is a copy of a real one (they are taken in turn) whose attention output and MLP down projections
    are zero. It reads as many weights and does as much arithmetic as a real layer, and adds exactly zero.

    Raises:
        ReproError: `base` has that many layers already, or layers that do not end in those two projections.
    """
    tensors, count = _base_tensors(base)
    if layers <= count:
        raise ReproError(
            f"A padded model of {layers} layers was asked for, and the base model has {count}.",
            "Padding adds layers, so there must be more of them than in the base.",
            f"Set `layers` to more than {count} in config/models.yaml.",
        )
    for part in INTO_RESIDUAL:
        if not any(part in tensor.name for tensor in tensors):
            raise ReproError(
                f"The base model has no {part.strip('.')}, so no identity layer can be made of its layers.",
                "Only layers that add to the residual stream through self_attn.o_proj and mlp.down_proj are known.",
                "Choose another base in config/models.yaml, such as a Llama or a Qwen3.",
            )
    origin = [layer % count for layer in range(layers)]
    added = [
        _identity(tensor, layer)
        for layer in range(count, layers)
        for tensor in tensors
        if _layer(tensor.name) == origin[layer]
    ]
    _copy_rest(base, out, count, origin)
    write_safetensors(out / "model.safetensors", [*tensors, *added], progress)


def derived_bytes(base: Path, layers: int) -> int:
    """Bytes of weights that a derived model of so many layers will have."""
    tensors, count = _base_tensors(base)
    by_layer = [0] * count
    rest = 0
    for tensor in tensors:
        layer = _layer(tensor.name)
        if layer is None:
            rest += tensor.nbytes
        else:
            by_layer[layer] += tensor.nbytes
    return rest + sum(by_layer[layer % count] for layer in range(layers))


def _identity(tensor: Tensor, layer: int) -> Tensor:
    name = LAYER.sub(rf"\g<1>{layer}\g<3>", tensor.name)
    if any(part in name for part in INTO_RESIDUAL):
        # Of a quantised projection this zeroes scales and biases too, and so every weight.
        return Tensor(name, tensor.dtype, tensor.shape, lambda: bytes(tensor.nbytes))
    return Tensor(name, tensor.dtype, tensor.shape, tensor.read)


def _layer(name: str) -> int | None:
    match = LAYER.fullmatch(name)
    return int(match[2]) if match else None


def _base_tensors(base: Path) -> tuple[list[Tensor], int]:
    """All tensors of a model and the number of its layers, which must all be of one kind."""
    tensors = [tensor for path in sorted(base.glob("model*.safetensors")) for tensor in read_safetensors(path)]
    kinds: dict[int, set[str]] = {}
    for tensor in tensors:
        match = LAYER.fullmatch(tensor.name)
        if match:
            kinds.setdefault(int(match[2]), set()).add(match[3])
    alike = kinds and all(kind == kinds[0] for kind in kinds.values()) and sorted(kinds) == list(range(len(kinds)))
    if not alike:
        raise ReproError(
            f"The layers of {base.name} are not all of one kind.",
            "Only models whose layers are alike can be cut or padded; mixtures of attention kinds cannot.",
            "Choose another base in config/models.yaml, such as a Llama or a Qwen3.",
        )
    return tensors, len(kinds)


def _copy_rest(base: Path, out: Path, count: int, origin: list[int]) -> None:
    """Copy tokenizer and config; `origin` says of each new layer which old one it comes from."""
    for path in sorted(base.glob("[!.]*")):
        if path.suffix != ".safetensors" and path.name not in ("model.safetensors.index.json", "config.json"):
            shutil.copyfile(path, out / path.name)
    config = json.loads((base / "config.json").read_bytes())
    if config.get("num_hidden_layers") != count:
        raise ReproError(
            f"{base.name} has {count} layers, and its config.json says {config.get('num_hidden_layers')}.",
            "Only plain text models with `num_hidden_layers` at the top of config.json can be cut or padded.",
            "Choose another base in config/models.yaml.",
        )
    new: dict[str, Any] = {
        key: [value[layer] for layer in origin] if isinstance(value, list) and key == "layer_types" else value
        for key, value in config.items()
    }
    new["num_hidden_layers"] = len(origin)
    for key in ("quantization", "quantization_config"):
        if isinstance(new.get(key), dict):
            new[key] = _renumbered(config[key], origin)
    (out / "config.json").write_text(json.dumps(new, indent=1))


def _renumbered(quantization: dict[str, Any], origin: list[int]) -> dict[str, Any]:
    """Settings of single modules (keys such as model.layers.3.mlp.up_proj) go with their layers."""
    new = {key: value for key, value in quantization.items() if _layer(key) is None}
    for layer, old in enumerate(origin):
        for key, value in quantization.items():
            if _layer(key) == old:
                new[LAYER.sub(rf"\g<1>{layer}\g<3>", key)] = value
    return new
