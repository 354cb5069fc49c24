"""Write shapes.json and expected.npz: what transformers on PyTorch computes for the tiny models of cases.json.

The README beside this file says how to run it. Nothing of this package or of mlx is used, but for drawing the weights.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file, save_file

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent.parent))

import tiny_architectures as tiny  # noqa: E402


def main() -> None:
    wanted = sys.argv[1:] or list(tiny.cases())
    shapes = json.loads((FOLDER / "shapes.json").read_text()) if (FOLDER / "shapes.json").exists() else {}
    logits = dict(np.load(FOLDER / "expected.npz")) if (FOLDER / "expected.npz").exists() else {}
    for name in wanted:
        case = tiny.cases()[name]
        config = getattr(transformers, configuration(case["class"]))(**case["config"])
        model_class = getattr(transformers, f"{case['class']}ForCausalLM")
        with tempfile.TemporaryDirectory() as folder:
            torch.manual_seed(0)
            model_class(config).save_pretrained(folder)
            shapes[name] = [entry(*item) for item in sorted(load_file(f"{folder}/model.safetensors").items())]
            write_shapes(shapes)
            save_file(tiny.weights(name), f"{folder}/model.safetensors", metadata={"format": "pt"})
            model = model_class.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
        logits[name] = run(model)
        print(name, logits[name].shape, float(np.ptp(logits[name])), getattr(config, "rope_parameters", None))
        np.savez_compressed(FOLDER / "expected.npz", **logits)


def configuration(model: str) -> str:
    """Name of the configuration class; models that also exist with images have one for text."""
    text = ("Qwen3_5", "Qwen3_5Moe", "Gemma3", "Gemma4")
    return f"{model}TextConfig" if model in text else f"{model}Config"


def entry(name: str, value: np.ndarray) -> list:
    """Name, shape, centre and width: vectors stay around what transformers initialises them to."""
    if value.ndim == 1 or value.shape[:-1] == (1,) * (value.ndim - 1):
        return [name, list(value.shape), round(float(value.mean()), 3), 0.3]
    return [name, list(value.shape), 0.0, round(1.7 / np.sqrt(value.shape[-1]), 3)]


def write_shapes(shapes: dict) -> None:
    lines = [f" {json.dumps(name)}: {json.dumps(entries)}" for name, entries in shapes.items()]
    (FOLDER / "shapes.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


@torch.no_grad()
def run(model) -> np.ndarray:
    """One pass over the kept tokens and the decoded ones at their original positions; logits of the last 1 + 32."""
    ids, kept, decoded = tiny.prompt()
    read = torch.tensor([[*(ids[position] for position in kept), *decoded]])
    positions = torch.tensor([[*kept, *range(len(ids), len(ids) + len(decoded))]])
    mask = masks(model.config, positions[0])
    found = model(input_ids=read, position_ids=positions, attention_mask=mask, use_cache=False).logits
    return found[0, len(kept) - 1 :].float().numpy()


def masks(config, positions: torch.Tensor):
    """Windows by original position, spelled out: transformers itself would count tokens.

    Without windows a mask of ones, for causal attention to all tokens that are read. With no mask at all transformers
    would take each gap between positions for the start of another sequence.
    """
    if "sliding_attention" not in (getattr(config, "layer_types", None) or []):
        return torch.ones((1, len(positions)), dtype=torch.long)
    distance = positions[:, None] - positions[None]
    allowed = {
        "full_attention": distance >= 0,
        "sliding_attention": (distance >= 0) & (distance < config.sliding_window),
    }
    low = torch.finfo(torch.float32).min
    return {name: torch.where(seen, 0.0, low)[None, None] for name, seen in allowed.items()}


main()
