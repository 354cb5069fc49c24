"""Engines as a study names them: what can be set, kind by kind. `config/README.md` explains the keys."""

from typing import Annotated, Literal

from pydantic import Field

from specprefill_repro.schema import Frozen

IN_PROCESS = "mlx-lm"
"""The engine of this package; every study has it under this name."""

Version = Annotated[str, Field(pattern=r"^[0-9][A-Za-z0-9.+-]{0,40}$")]
Threshold = Annotated[int, Field(ge=1, le=2_000_000)]


class MlxLmEngine(Frozen):
    """This package's own, in a process of its own; nothing to set."""

    kind: Literal["mlx-lm"] = "mlx-lm"

    @property
    def environment(self) -> str | None:
        """Name of the environment that is installed for it from envs/NAME.lock; None: it needs none of its own."""
        return None


class VllmMlxEngine(Frozen):
    """The server vllm-mlx from its package, in an environment locked by envs/vllm-mlx-VERSION.lock."""

    kind: Literal["vllm-mlx"]
    version: Version
    threshold: Threshold = 1
    """Prompts of at most this many tokens run dense (`--specprefill-threshold`; the server's own default is 8192)."""

    @property
    def environment(self) -> str | None:
        """Name of the environment that is installed for it from envs/NAME.lock."""
        return f"vllm-mlx-{self.version}"


class OmlxEngine(Frozen):
    """The server oMLX as the user has it: a command, or a checkout of its source."""

    kind: Literal["omlx"]
    command: str | None = None
    """Path or name of the `omlx` command."""
    checkout: str | None = None
    """Folder with its source, run by `python`."""
    python: str | None = None
    """Interpreter whose environment holds what the checkout needs."""
    when_given: bool = False
    """Run only where this machine's user has named one (`--engine omlx=PATH`); left out of the study elsewhere."""
    threshold: Threshold = 1
    """Prompts of at most this many tokens run dense (`specprefill_threshold`; the server's own default is 8192)."""

    @property
    def environment(self) -> str | None:
        """None: it is the user's own."""
        return None


EngineSettings = Annotated[MlxLmEngine | VllmMlxEngine | OmlxEngine, Field(discriminator="kind")]
