"""Faults of server versions that no log line tells: what their models' config.json shows, with the source of each.

A reason from here makes a trial a fallback, whatever its log says; what would make every number of a pair meaningless
is refused before anything runs.
"""

import json
import re
from pathlib import Path
from typing import Any

from specprefill_repro.errors import ReproError
from specprefill_repro.files import read_limited
from specprefill_repro.models.manifest import MAX_TOKENIZER_BYTES, tokenizer_sha256

MAX_CONFIG_BYTES = 10_000_000
SCALED = ("llama3", "yarn", "deepseek_yarn", "telechat3-yarn", "longrope", "su", "proportional")
"""Kinds of rotary scaling whose class in mlx_lm holds an array, which makes it true where `nn.RoPE` is false."""


def version_key(version: str) -> tuple[int, ...]:
    """Leading numbers of a version, to compare by: 0.3.5.dev1 -> (0, 3, 5)."""
    return tuple(int(part) for part in re.findall(r"\d+", re.split(r"[a-z+]", version)[0]))


def unmapped_positions(version: str, target: dict[str, Any]) -> str | None:
    """vllm-mlx from 0.3.0 on (seen up to 0.6.0) tests the target's rotary module by truth value. A plain `nn.RoPE` is
    an empty dict and false: nothing is patched, and kept tokens get the positions 0, 1, 2, ... instead of their own.

    Source: waybarrios/vllm-mlx, commit d256d37 (pull request 441), first in v0.3.0.
    """
    if version_key(version) < (0, 3, 0) or rotary_kind(target) in SCALED:
        return None
    return (
        f"vllm-mlx {version} does not map the positions of kept tokens for a target with a plain rotary embedding "
        "(since 0.3.0, commit d256d37)"
    )


def window_kept_besides(version: str, target: dict[str, Any]) -> str | None:
    """vllm-mlx before 0.2.9 always keeps the last window of a sliding-window target, and logs the number without it.

    Source: waybarrios/vllm-mlx, pull request 291.
    """
    if version_key(version) >= (0, 2, 9) or not _text(target).get("sliding_window"):
        return None
    return f"vllm-mlx {version} keeps the last window of a sliding-window target besides, and logs a number without it"


def refuse_traditional(server: str, folders: dict[str, str]) -> None:
    """Both servers rotate kept tokens by halves, whatever the model says; with `traditional` rotation that is wrong,
    and no error tells.

    Raises:
        ReproError: a model's config asks for traditional rotation. `folders` is {target or draft: folder}.
    """
    for role, folder in folders.items():
        config = _text(read_config(folder))
        if config.get("rope_traditional") is True or config.get("traditional") is True:
            raise ReproError(
                f"The {role} in {folder} has a traditional rotary embedding, which {server} rotates wrongly.",
                "The server pairs the halves of a head where the model pairs neighbours; no error would tell, and "
                "every answer of the speculative arm would be void.",
                "Compare this pair on the engine mlx-lm, or choose another pair.",
            )


def refuse_other_tokenizer(server: str, folders: dict[str, str]) -> None:
    """The target's token ids go straight into the draft; to a draft with another tokenizer they mean something else.

    Raises:
        ReproError: the vocabularies differ. `folders` is {target or draft: folder}.
    """
    found = {
        role: tokenizer_sha256(json.loads(read_limited(Path(folder) / "tokenizer.json", MAX_TOKENIZER_BYTES)))
        for role, folder in folders.items()
    }
    if len(set(found.values())) > 1:
        raise ReproError(
            f"Target and draft have different tokenizers: {', '.join(f'{r} {h[:12]}' for r, h in found.items())}.",
            f"{server} does not compare them; it would score the prompt of another language, and no error would tell.",
            "Use a draft of the target's own family.",
        )


def rotary_kind(config: dict[str, Any]) -> str:
    """Kind of rotary scaling that a config asks for; `default` without one."""
    text = _text(config)
    scaling = text.get("rope_scaling") or text.get("rope_parameters") or {}
    kind = (scaling.get("type") or scaling.get("rope_type")) if isinstance(scaling, dict) else None
    return kind if isinstance(kind, str) else "default"


def read_config(folder: str) -> dict[str, Any]:
    """config.json of a model folder.

    Raises:
        ReproError: missing, or not JSON.
    """
    path = Path(folder) / "config.json"
    try:
        config = json.loads(read_limited(path, MAX_CONFIG_BYTES))
    except ValueError as error:
        raise ReproError(
            f"{path} is not JSON: {error}", "The file is damaged.", "Fetch the model again: delete its folder."
        ) from error
    return config if isinstance(config, dict) else {}


def _text(config: dict[str, Any]) -> dict[str, Any]:
    nested = config.get("text_config")
    return {**config, **nested} if isinstance(nested, dict) else config
