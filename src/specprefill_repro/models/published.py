"""Hold what is published about a model against the files that came."""

from typing import Any

from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.models.schema import Published

BYTES_TOLERANCE = 0.10
"""Sizes are published rounded, and with or without tokenizer and vision part."""

EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts")
"""How the config.json of one model type or another calls the routed experts of a layer."""


def check_published(name: str, published: Published | None, config: dict[str, Any], weight_bytes: int) -> None:
    """Compare the config.json and the total size of the weights with what config/models.yaml states.

    Args:
        name: of the model, for the message.
        published: from the definition; None states nothing.
        config: content of config.json.
        weight_bytes: of all safetensors files.

    Raises:
        ReproError: a value differs (the first five, each with both values; exit code VERIFICATION).
    """
    if published is None:
        return
    found = facts(config)
    stated = published.model_dump(exclude={"weight_bytes", "sources"}, exclude_none=True)
    problems = [
        f"{key}: published {value}, found {found[key] if found[key] is not None else 'nothing'}"
        for key, value in stated.items()
        if found[key] != value
    ]
    about = published.weight_bytes
    if about is not None and abs(weight_bytes - about) > BYTES_TOLERANCE * about:
        problems.append(f"weights: published about {about:,} bytes, found {weight_bytes:,}")
    if problems:
        raise ReproError(
            f"{name} is not the model that config/models.yaml describes:\n  " + "\n  ".join(problems[:5]),
            f"Another model or quantisation was put there, or what was published is wrong ({published.sources[0]}).",
            f"Compare with the model's page; if the files are right, correct `published` of {name} in "
            "config/models.yaml.",
            Exit.VERIFICATION,
        )


def facts(config: dict[str, Any]) -> dict[str, int | str | None]:
    """Model type, layers, experts, vocabulary, bits and group size that a config.json states; None where it doesn't.

    A multimodal model counts as the text model in it; only the type is that of the whole.
    """
    inner = config.get("text_config")
    text = inner if isinstance(inner, dict) else config
    quantization = config.get("quantization")
    settings = quantization if isinstance(quantization, dict) else {}
    experts = next((number for key in EXPERT_KEYS if (number := _integer(text, key)) is not None), 0)
    model_type = config.get("model_type")
    return {
        "model_type": model_type if isinstance(model_type, str) else None,
        "layers": _integer(text, "num_hidden_layers"),
        "experts": experts,
        "vocabulary": _integer(text, "vocab_size"),
        "bits": _integer(settings, "bits"),
        "group_size": _integer(settings, "group_size"),
    }


def _integer(config: dict[str, Any], key: str) -> int | None:
    value = config.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
