"""Random weights of a real mlx_lm architecture from a seed: what they cost is real, what they say is not."""

import importlib
import json
import re
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from specprefill_repro.errors import ReproError
from specprefill_repro.models.safetensors_file import Tensor, write_safetensors

STANDARD_DEVIATION = 0.02
"""Of the weights; the `initializer_range` of most models."""

SCALES = (".weight", ".layer_scalar", ".D")
"""Ends of the names of vectors that multiply: norms, the scale of a Gemma 4 layer, the skip of a Mamba layer."""

DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


def synthesize(
    tokenizer: Path,
    out: Path,
    config: dict[str, Any],
    seed: int,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write a model of random weights, with the tokenizer of the model in `tokenizer`, into the folder `out`.

    `config` is mlx_lm's config.json; `torch_dtype` in it chooses float32 (default), float16 or bfloat16. Each
    tensor has its own random stream, from the seed and its name: equal arguments give equal bytes.

    Raises:
        ReproError: mlx_lm does not know the architecture, or does not accept its settings.
    """
    borrowed = json.loads((tokenizer / "config.json").read_bytes())
    config = {"torch_dtype": "float32", **config, "vocab_size": borrowed["vocab_size"]}
    for key in ("bos_token_id", "eos_token_id"):
        if key in borrowed:
            config[key] = borrowed[key]
    dtype = DTYPES.get(str(config["torch_dtype"]))
    if dtype is None:
        raise _refused(f"torch_dtype {config['torch_dtype']!r}; known: {', '.join(DTYPES)}")
    tensors = [_random_tensor(name, shape, dtype, seed) for name, shape in _shapes(config)]
    not_borrowed = ("config.json", "generation_config.json", "model.safetensors.index.json")
    for path in sorted(tokenizer.glob("[!.]*")):
        if path.suffix != ".safetensors" and path.name not in not_borrowed:
            shutil.copyfile(path, out / path.name)
    (out / "config.json").write_text(json.dumps(config, indent=1))
    write_safetensors(out / "model.safetensors", tensors, progress)


def synthetic_bytes(config: dict[str, Any], vocabulary: int) -> int:
    """Bytes of weights that a synthetic model will have.

    Raises:
        ReproError: as `synthesize`.
    """
    item = 4 if config.get("torch_dtype", "float32") == "float32" else 2
    return sum(int(np.prod(shape)) * item for _, shape in _shapes({**config, "vocab_size": vocabulary}))


def _shapes(config: dict[str, Any]) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes of all weights; nothing is computed, since mlx is lazy."""
    from mlx.utils import tree_flatten

    model_type = str(config.get("model_type"))
    if not re.fullmatch(r"[a-z0-9_]{1,60}", model_type):
        raise _refused(f"model_type {model_type!r}")
    try:
        architecture = importlib.import_module(f"mlx_lm.models.{model_type}")
        model = architecture.Model(architecture.ModelArgs.from_dict(config))
    except (ImportError, AttributeError, KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise _refused(f"model_type {model_type!r} with these settings ({error})") from error
    return sorted((name, tuple(array.shape)) for name, array in tree_flatten(model.parameters()))


def _random_tensor(name: str, shape: tuple[int, ...], dtype: str, seed: int) -> Tensor:
    def read() -> bytes:
        if len(shape) == 1:
            # Norms and other scales are one and biases add zero, as in a model before its training.
            values = np.full(shape, 1.0 if name.endswith(SCALES) else 0.0, np.float32)
        else:
            random = np.random.default_rng([seed, zlib.crc32(name.encode())])
            values = random.standard_normal(shape, np.float32) * np.float32(STANDARD_DEVIATION)
        if dtype == "F16":
            return values.astype(np.float16).tobytes()
        if dtype == "BF16":
            return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
        return values.tobytes()

    return Tensor(name, dtype, shape, read)


def _refused(what: str) -> ReproError:
    return ReproError(
        f"mlx_lm cannot make a synthetic model of {what}.",
        "The architecture is not one of mlx_lm's, or a setting of its config.json is missing or of the wrong kind.",
        "Correct the key `config` of the model in config/models.yaml; it holds what mlx_lm reads from config.json.",
    )
