"""Load a model folder with mlx_lm, without the two seconds that importing transformers costs."""

import importlib
import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from specprefill_repro.errors import Exit, ReproError


def load_model(folder: Path) -> tuple[nn.Module, dict[str, Any]]:
    """Load weights and config of an MLX model folder; safetensors only, no code from the folder is run.

    On the CPU, 16-bit weights become float32 in memory: nothing else is fast there. Elsewhere they stay as they are.

    Returns:
        The model, its weights evaluated, and the content of its config.json.

    Raises:
        ReproError: mlx_lm can't load it.
    """
    try:
        model, config = _mlx_lm_utils().load_model(folder, lazy=True, trust_remote_code=False)
    except (ValueError, KeyError, TypeError, OSError, RuntimeError) as error:
        raise ReproError(
            f"The model in {folder} could not be loaded: {' '.join(str(error).split())[:300]}",
            "Its config.json does not fit its weights, or the installed mlx_lm does not know its type.",
            "Check the model's source in config/models.yaml.",
            Exit.VERIFICATION,
        ) from error
    if mx.default_device() == mx.Device(mx.cpu) and "quantization" not in config:
        model.set_dtype(mx.float32)
    mx.eval(model.parameters())
    mx.synchronize()
    model.eval()
    return model, config


def _mlx_lm_utils() -> Any:
    """The module mlx_lm.utils.

    `import mlx_lm` imports transformers and huggingface_hub, for tokenizers and downloads that are not used here. So
    the package object is put into sys.modules without running its __init__, and empty modules stand in for those two
    while mlx_lm.utils is imported. Where that fails (another version of mlx_lm), the ordinary import is the fallback.
    """
    if "mlx_lm" in sys.modules:
        return importlib.import_module("mlx_lm.utils")
    spec = importlib.util.find_spec("mlx_lm")
    if spec is None:
        raise ImportError("mlx_lm is not installed")
    package = types.ModuleType("mlx_lm")
    package.__path__ = list(spec.submodule_search_locations or [])
    package.__spec__ = spec
    stand_ins = {
        "mlx_lm": package,
        "mlx_lm.tokenizer_utils": _module("mlx_lm.tokenizer_utils", TokenizerWrapper=object, load=None),
        "huggingface_hub": _module("huggingface_hub", snapshot_download=None),
    }
    before = {name: sys.modules[name] for name in stand_ins if name in sys.modules}
    sys.modules.update(stand_ins)
    try:
        return importlib.import_module("mlx_lm.utils")
    except ImportError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "mlx_lm"]:
            del sys.modules[name]
        del sys.modules["huggingface_hub"]
        sys.modules.update(before)
        return importlib.import_module("mlx_lm.utils")
    finally:
        if sys.modules.get("huggingface_hub") is stand_ins["huggingface_hub"]:
            del sys.modules["huggingface_hub"]
        sys.modules.update(before)


def _module(name: str, **attributes: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    vars(module).update(attributes)
    return module
