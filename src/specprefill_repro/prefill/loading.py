"""Load a model folder with mlx_lm, without the two seconds that importing transformers costs."""

import importlib
import importlib.util
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
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


def keep_resident() -> int | None:
    """Let Metal keep as many bytes resident as the device recommends, as mlx_lm does before it generates.

    Else weights of a large model can be paged in during a prefill, and a baseline measured like that is a weak one.

    Returns:
        The limit in bytes; None where the device knows none (not Metal).
    """
    limit = mx.device_info().get("max_recommended_working_set_size")
    if limit is None:
        return None
    mx.set_wired_limit(limit)
    return int(limit)


@cache
def _mlx_lm_utils() -> Any:
    """The module mlx_lm.utils.

    `import mlx_lm` imports transformers and huggingface_hub, for tokenizers and downloads that are not used here. So
    mlx_lm.utils is imported below a package whose __init__ has not run, with empty modules in place of those two. That
    copy stays in here: whoever asks for more of mlx_lm later in this process gets all of it, with the same model
    classes. Where this fails (another version of mlx_lm), the ordinary import is the fallback.
    """
    if "mlx_lm" in sys.modules:
        return importlib.import_module("mlx_lm.utils")
    spec = importlib.util.find_spec("mlx_lm")
    if spec is None:
        raise ImportError("mlx_lm is not installed")
    package = importlib.util.module_from_spec(spec)
    stand_ins = {
        "mlx_lm": package,
        "mlx_lm.tokenizer_utils": _module("mlx_lm.tokenizer_utils", TokenizerWrapper=object, load=None),
        "huggingface_hub": _module("huggingface_hub", snapshot_download=None),
    }
    try:
        with _replaced(stand_ins):
            utils = importlib.import_module("mlx_lm.utils")
    except ImportError:
        for name in [name for name in sys.modules if name.startswith("mlx_lm.")]:
            del sys.modules[name]
        return importlib.import_module("mlx_lm.utils")
    del sys.modules["mlx_lm.utils"], package.utils
    package.__class__ = _NotYetRun
    sys.modules["mlx_lm"] = package
    return utils


class _NotYetRun(types.ModuleType):
    """The package mlx_lm before its __init__: that runs once somebody asks the package for anything but `models`."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        assert self.__spec__ is not None and self.__spec__.loader is not None
        self.__class__ = types.ModuleType  # type: ignore[assignment]
        loaded = {module: module.removeprefix("mlx_lm.") for module in sys.modules if module.startswith("mlx_lm.")}
        vars(self).update({own: sys.modules[module] for module, own in loaded.items() if "." not in own})
        self.__spec__.loader.exec_module(self)
        return getattr(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        # Modules that are imported meanwhile wait: __init__ gives some of their names to functions.
        if name == "models" or not isinstance(value, types.ModuleType):
            super().__setattr__(name, value)


@contextmanager
def _replaced(modules: dict[str, types.ModuleType]) -> Iterator[None]:
    """Within this, an import finds these modules; afterwards what was there before."""
    before = {name: sys.modules[name] for name in modules if name in sys.modules}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            del sys.modules[name]
        sys.modules.update(before)


def _module(name: str, **attributes: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    vars(module).update(attributes)
    return module
