"""What a worker process is told, on its standard input, and what it answers."""

from specprefill_repro.schema import Frozen
from specprefill_repro.study.plan import Arm
from specprefill_repro.trials.schema import Evidence, MachineState, Phases


class Job(Frozen):
    """One trial, with everything it needs; paths are absolute."""

    target_folder: str
    draft_folder: str | None
    """None for arms that read no draft."""
    arm: Arm
    ids: tuple[int, ...]
    needle_tokens: tuple[int, int]
    warmup_ids: tuple[int, ...]
    step: int
    answer_tokens: int
    seed: str
    logits_file: str
    """Where the worker writes the float32 log-probabilities of the first token."""


class Measurement(Frozen):
    """What the worker measured; the parent makes the record of it."""

    seconds: float
    phases: Phases
    load_seconds: float
    warmup_seconds: float
    ready_seconds: float
    tokens: tuple[int, ...]
    """Generated tokens, the first included."""
    decode_seconds: float
    peak_memory_bytes: int
    peak_mlx_bytes: int
    outcome: str
    evidence: Evidence
    before: MachineState
    after: MachineState
    suspended_seconds: float
    started_at: str
    environment: dict[str, str]


class Failure(Frozen):
    """Why there is no measurement: the three parts of an error, and its exit code."""

    what: str
    why: str
    next: str
    exit_code: int


class Answer(Frozen):
    measurement: Measurement | None = None
    failure: Failure | None = None
