"""A folder in MLX format as the source of a model, and what such a folder may hold."""

import json
import os
import shutil
from pathlib import Path

from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.files import read_limited
from specprefill_repro.models.hashes import hash_files
from specprefill_repro.models.progress import Progress, silent
from specprefill_repro.models.schema import LocalSource, LockedFile
from specprefill_repro.project import Project

WEIGHTS_INDEX = "model.safetensors.index.json"
"""Says which file holds which tensor, where there are several."""

MAX_INDEX_BYTES = 50_000_000

TEXT_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    WEIGHTS_INDEX,
)
"""All that is taken from a folder beside its weights. Python files never are."""

REFUSED = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib")
"""Pickled weights: loading one can run any code."""


def local_files(
    project: Project, name: str, source: LocalSource, progress: Progress = silent
) -> tuple[LockedFile, ...]:
    """Hash the files that a local source would give; results are kept by time stamp, so a second call is cheap."""
    folder = project.root / source.path
    stamps = project.results / "models" / f".{name}.source.stamps.json"
    return hash_files(folder, wanted_files(folder), stamps, progress)


def copy_local(project: Project, source: LocalSource, out: Path) -> None:
    """Take the files of a local source into `out`: weights as hard links where the file system allows, else copies."""
    folder = project.root / source.path
    for name in wanted_files(folder):
        place(folder / name, out / name)


def place(source: Path, target: Path) -> None:
    """Put a file at `target` without copying large weights, where the file system can do that."""
    if source.suffix == ".safetensors":
        try:
            os.link(source.resolve(), target)
            return
        except OSError:
            pass  # another file system, or one without hard links
    shutil.copyfile(source, target)


def wanted_files(folder: Path) -> list[str]:
    """Names of the files of an MLX model directory that a model is made of, sorted.

    Raises:
        ReproError: not a folder, no config or tokenizer or safetensors weights, not all that the index names, pickled
            weights, or a link that leaves the folder.
    """
    if not folder.is_dir():
        raise ReproError(
            f"There is no model folder {folder}.",
            "The path in config/models.yaml is wrong, or the disk that holds it is not mounted.",
            f"Check it with: ls -l '{folder}'",
        )
    names = sorted(path.name for path in folder.iterdir())
    pickled = [name for name in names if name.lower().endswith(REFUSED)]
    weights = [name for name in names if name.startswith("model") and name.endswith(".safetensors")]
    if pickled:
        raise ReproError(
            f"{folder} holds pickled weights: {', '.join(pickled[:3])}.",
            "Reading a pickle can run any code, so only safetensors are taken.",
            "Convert the model with mlx_lm.convert, or take the pickle files out of the folder.",
            Exit.VERIFICATION,
        )
    missing = [name for name in ("config.json", "tokenizer.json") if name not in names]
    if WEIGHTS_INDEX in names:
        weights = shards(folder / WEIGHTS_INDEX)  # the same weights may lie there in another form too
        missing.extend(name for name in weights if name not in names)
    if not weights:
        missing.append("model*.safetensors")
    if missing:
        raise ReproError(
            f"{folder} is not a model in MLX format: {', '.join(missing)} missing.",
            "A model folder holds config.json, tokenizer.json and weights in model*.safetensors.",
            "Name a folder made by mlx_lm.convert.",
        )
    wanted = [name for name in names if name in TEXT_FILES or name in weights]
    root = folder.resolve()
    for name in wanted:
        if not (folder / name).resolve().is_relative_to(root):
            raise ReproError(
                f"{folder / name} is a link to {(folder / name).resolve()}, outside its folder.",
                "A model's files must lie in its folder, else something else could take their place.",
                f"Copy the folder with its links resolved: cp -RL '{folder}' NEW, and name NEW in config/models.yaml.",
                Exit.VERIFICATION,
            )
        if not (folder / name).is_file():
            raise ReproError(
                f"{folder / name} is not a file.",
                "It is a folder, a device or a broken link.",
                f"Check it with: ls -l '{folder}'",
            )
    return wanted


def shards(index: Path) -> list[str]:
    """Names of the weight files that a model.safetensors.index.json lists, sorted.

    Raises:
        ReproError: too large, not such an index, or it names a file that mlx_lm would not take (exit code
            VERIFICATION).
    """
    try:
        names = set(json.loads(read_limited(index, MAX_INDEX_BYTES))["weight_map"].values())
        if not names:
            raise ValueError("it names no file")
        for name in names:
            if "/" in name or "\\" in name or not (name.startswith("model") and name.endswith(".safetensors")):
                raise ValueError(f"it names {name[:100]!r}")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ReproError(
            f"{index} is not an index of weights that can be used: {error}",
            "It was damaged, or names files that are no safetensors of this folder (model*.safetensors).",
            f"Look at it with: head -c 300 '{index}'",
            Exit.VERIFICATION,
        ) from error
    return sorted(names)
