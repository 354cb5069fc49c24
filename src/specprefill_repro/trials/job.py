"""What an engine is told of one trial, and what it answers; between worker and parent both travel as JSON."""

from specprefill_repro.schema import Frozen
from specprefill_repro.study.plan import Arm
from specprefill_repro.trials.schema import Evidence, MachineState, Phases, ServerEvidence


class Forced(Frozen):
    """What to do, untimed, after all else: read the prompt as the treated arm did, then the dense arm's tokens.

    The second trial of a pair does it, whichever arm it is: it knows what the first one did.
    """

    arm: Arm
    """The treated one."""
    tokens: tuple[int, ...] | None
    """That the dense arm decoded; None: this trial's own."""
    kept: tuple[tuple[int, int], ...] | None
    """Positions that the treated arm read, as half-open ranges; None: this trial's own."""


class Job(Frozen):
    """One trial, with everything it needs; paths are absolute."""

    target_folder: str
    draft_folder: str | None
    """None for arms that read no draft."""
    arm: Arm
    ids: tuple[int, ...]
    needle_tokens: tuple[tuple[int, int], ...]
    warmup_ids: tuple[int, ...]
    step: int
    answer_tokens: int
    seed: str
    logits_file: str
    """Where an engine that has them writes the float32 log-probabilities of the first token."""
    log_file: str = ""
    """Where an engine that has one writes its server's log (gzip)."""
    text: str = ""
    """The user's message that `ids` are the chat template's rendering of; what a server is sent."""
    warmup_text: str = ""
    """A message of about the length of `warmup_ids`."""
    log_probabilities: bool = False
    """Whether to tell how likely each decoded token was."""
    forced: Forced | None = None
    """Only the in-process engine can do it; servers leave it."""


class Measurement(Frozen):
    """What was measured; the record is made of it."""

    seconds: float
    phases: Phases | None = None
    load_seconds: float | None = None
    warmup_seconds: float
    ready_seconds: float
    tokens: tuple[int, ...] = ()
    """Generated tokens, the first included; empty where an engine answers in text."""
    answer_log_probabilities: tuple[float, ...] = ()
    """Natural logarithms, of each of `tokens`, when they were asked for."""
    forced_log_probabilities: tuple[float, ...] = ()
    """Of each token of the dense arm, after the treated arm's prefill, when that was asked for."""
    text: str = ""
    """The answer, of an engine that answers in text."""
    decode_tokens: int
    """After the first."""
    decode_seconds: float
    peak_memory_bytes: int
    peak_mlx_bytes: int | None = None
    paged_in_bytes: int | None = None
    outcome: str
    evidence: Evidence | ServerEvidence
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
