"""The manifest of a model: how it is made from the files, and the proof that the files are still the same."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.files import MAX_CONFIG_BYTES, content_id, read_limited, read_model
from specprefill_repro.models.hashes import hash_files, require_same
from specprefill_repro.models.local import wanted_files
from specprefill_repro.models.progress import Progress, silent
from specprefill_repro.models.safetensors_file import Tensor, read_safetensors
from specprefill_repro.models.schema import LockedFile, Manifest, Source
from specprefill_repro.project import Project

MAX_TOKENIZER_BYTES = 200_000_000

INNER_MANIFEST = ".manifest.json"
"""The manifest inside the model's folder: it moves with the folder, so the two can't disagree."""


def load_manifest(project: Project, name: str) -> Manifest:
    """Read results/models/NAME.json.

    Raises:
        ReproError: the model has not been made yet, or the manifest is damaged.
    """
    path = project.model_manifest(name)
    if not path.exists():
        raise ReproError(
            f"The model {name!r} is not there yet: {path} is missing.",
            "It has not been fetched, or the results folder was cleared.",
            "Run the study that uses it: ./reproduce STUDY",
        )
    return read_model(path, Manifest)


def check_untouched(project: Project, name: str, progress: Progress = silent, *, full: bool = False) -> Manifest:
    """Make sure that a model's files are those of its manifest, and return the manifest.

    Files whose inode, size and time stamp are as they were are not read again, so this takes milliseconds; with
    `full` every byte is read.

    Raises:
        ReproError: a file was changed, cut off, removed or added; shows both hashes (exit code VERIFICATION).
    """
    manifest = load_manifest(project, name)
    if full:
        stamps_file(project, name).unlink(missing_ok=True)
    verify(project, manifest, progress)
    return manifest


def verify(project: Project, manifest: Manifest, progress: Progress = silent) -> None:
    """As `check_untouched`, of a manifest that was read already."""
    folder = project.model_folder(manifest.name)
    again = f"rm -f '{folder / INNER_MANIFEST}'   and run the same command again; the model is then made anew."
    expected = {file.path: file for file in manifest.files}
    found = {path.name for path in folder.glob("[!.]*")} if folder.is_dir() else set()
    changed = [
        # Sizes first: a truncated or missing file is found without reading gigabytes.
        file.path
        for file in manifest.files
        if file.path in found and (folder / file.path).stat().st_size != file.size
    ]
    names = changed[:1] or sorted(found & expected.keys())
    hashed = hash_files(folder, names, stamps_file(project, manifest.name) if not changed else None, progress)
    if changed:
        expected = {path: file for path, file in expected.items() if path in names}
    strangers = [LockedFile(path=path, size=0, sha256="0" * 64) for path in sorted(found - expected.keys())]
    require_same(
        f"{manifest.name} is not what its manifest says",
        expected.values(),
        [*hashed, *([] if changed else strangers)],
        f"A file in {folder} was changed, cut off, added or removed after the model was made.",
        again,
    )


def stamps_file(project: Project, name: str) -> Path:
    """Where the hashes of a model's files are kept with their time stamps."""
    return project.results / "models" / f".{name}.stamps.json"


def describe(
    folder: Path,
    name: str,
    source: Source,
    *,
    locked: bool,
    fingerprint: str,
    stamps: Path | None = None,
    progress: Progress = silent,
) -> Manifest:
    """Make the manifest of an MLX model directory from its files; mlx is not needed.

    The hashes are kept in the file `stamps`, so that they need not be computed again (see `hash_files`).

    Raises:
        ReproError: the folder is no such directory, or would run code of its own when it is loaded.
    """
    names = wanted_files(folder)
    config = read_json_object(folder / "config.json", MAX_CONFIG_BYTES)
    if config.get("model_file") is not None:
        raise ReproError(
            f"{name}: its config.json asks for Python code of its own (model_file: {config['model_file']!r}).",
            "Code that comes with a model is never run here.",
            "Choose a model whose architecture is part of mlx_lm.",
            Exit.VERIFICATION,
        )
    tokenizer = read_json_object(folder / "tokenizer.json", MAX_TOKENIZER_BYTES)
    weights = [path for path in names if path.endswith(".safetensors")]
    tensors = [tensor for path in weights for tensor in read_safetensors(folder / path)]
    files = hash_files(folder, names, stamps, progress)
    text = config["text_config"] if isinstance(config.get("text_config"), dict) else config
    bits, group = _quantization(config)
    return Manifest(
        name=name,
        source=source,
        locked=locked,
        model_type=str(_setting(name, config, "model_type")),
        layers=int(_setting(name, text, "num_hidden_layers")),
        vocabulary=int(_setting(name, text, "vocab_size")),
        context=int(_setting(name, text, "max_position_embeddings")),
        parameters=_parameters(tensors, group),
        weight_bytes=sum(file.size for file in files if file.path in weights),
        dtype=_dtype(tensors),
        quantization=f"{bits}-bit, group {group}" if bits else None,
        tokenizer_sha256=tokenizer_sha256(tokenizer),
        weights_sha256=content_id([[file.path, file.sha256] for file in files if file.path in weights]),
        fingerprint=fingerprint,
        files=files,
    )


def tokenizer_sha256(tokenizer: dict[str, Any]) -> str:
    """SHA-256 of the vocabulary in a tokenizer.json: tokens with ids, merges in order, special and added tokens.

    Equal vocabularies give equal hashes however the file is formatted; both ways of writing a merge are one.
    """
    model = tokenizer.get("model") or {}
    merges = [merge.split(" ", 1) if isinstance(merge, str) else merge for merge in model.get("merges") or []]
    added = [
        [token["id"], token["content"], bool(token.get("special"))] for token in tokenizer.get("added_tokens") or []
    ]
    return content_id({"vocab": model.get("vocab"), "merges": merges, "added": sorted(added)})


def read_json_object(path: Path, limit: int) -> dict[str, Any]:
    """Read a JSON file that holds an object.

    Raises:
        ReproError: missing, larger than `limit` bytes, or another kind of file.
    """
    try:
        value = json.loads(read_limited(path, limit))
    except (ValueError, RecursionError) as error:
        value = error
    if isinstance(value, dict):
        return value
    raise ReproError(
        f"{path} is not a JSON object.",
        "The file was damaged, or is another kind of file.",
        f"Look at it with: head -c 300 '{path}'",
        Exit.VERIFICATION,
    )


def _setting(name: str, config: dict[str, Any], key: str) -> Any:
    value = config.get(key)
    if not isinstance(value, int | str) or isinstance(value, bool):
        raise ReproError(
            f"{name}: config.json has no usable {key} ({value!r}).",
            "The folder is not an MLX model directory of a text model, or is of a kind not met yet.",
            "Look at its config.json.",
        )
    return value


def _quantization(config: dict[str, Any]) -> tuple[int, int]:
    """Bits and group size of mlx_lm's key `quantization`; zeros without it."""
    settings = config.get("quantization")
    if not isinstance(settings, dict):
        return 0, 0
    return int(settings.get("bits", 4)), int(settings.get("group_size", 64))


def _parameters(tensors: list[Tensor], group: int) -> int:
    """Weights of the model: a packed tensor counts as the values it stands for, its scales and biases not at all."""
    sizes = {tensor.name: tensor.size for tensor in tensors}
    total = 0
    for tensor in tensors:
        stem, _, part = tensor.name.rpartition(".")
        scales = sizes.get(f"{stem}.scales", 0)
        if part == "weight" and scales:
            total += scales * group
        elif not (part in ("scales", "biases") and scales):
            total += tensor.size
    return total


def _dtype(tensors: list[Tensor]) -> str:
    """The dtype of most weights that are not packed integers, as mlx names it."""
    names = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
    counts = Counter[str]()
    for tensor in tensors:
        if tensor.dtype in names:
            counts[names[tensor.dtype]] += tensor.size
    return counts.most_common(1)[0][0] if counts else "unknown"
