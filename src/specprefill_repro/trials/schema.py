"""The record of a trial and the receipt of a block, as they lie on disk."""

from typing import Any

from pydantic import Field

from specprefill_repro.schema import Frozen
from specprefill_repro.study.plan import Arm
from specprefill_repro.study.schema import NeedleKind

PHASES = ("draft_prefill", "look_ahead", "scoring", "selection", "target_prefill", "first_token")
NOMINAL = "nominal"
"""The thermal pressure of a machine that heat does not slow down."""


class Phases(Frozen):
    """Seconds of each phase between handing over the token ids and knowing the first token on the host."""

    draft_prefill: float = Field(default=0.0, ge=0)
    look_ahead: float = Field(default=0.0, ge=0)
    scoring: float = Field(default=0.0, ge=0)
    selection: float = Field(default=0.0, ge=0)
    target_prefill: float = Field(ge=0)
    first_token: float = Field(ge=0)

    @property
    def total(self) -> float:
        return float(sum(getattr(self, phase) for phase in PHASES))


def _absent(value: Any) -> bool:
    """Fields that a record does not have are not written, so that older records keep their hash."""
    return value is None or value == () or value == {}


class PromptFacts(Frozen):
    """Of the prompt that was read; its text is in the prompt set."""

    id: str
    sha256: str
    tokens: int
    kind: NeedleKind
    depth: float
    answer: str
    compressed_share: float | None = Field(default=None, exclude_if=_absent)
    """Of the bytes of its text, those that zlib leaves: a few percent where sentences are repeated."""


class Evidence(Frozen):
    """What proves which computation ran in a process of our own. Filled by the worker, never inferred from a time."""

    tokens_scored: int
    """Prompt tokens that the draft read; 0 without a draft."""
    tokens_kept: int
    """Prompt tokens that the target read."""
    kept_ranges: tuple[tuple[int, int], ...]
    """Kept positions as half-open ranges."""
    kept_sha256: str
    """Of the canonical JSON of the list of kept positions."""
    rotary_positions_sha256: str | None
    """The same hash over the positions that the target's rotary embedding really saw; None when it was not wrapped."""
    rotary_modules: int
    """Attention modules whose rotary embedding was wrapped (and saw those positions)."""
    rotary_modules_expected: int | None = None
    """How many the target has: 0 for a model without rotary embeddings; None in records from before this was noted."""
    rotary_modules_restored: int
    cache_tokens_before: int
    """Tokens in the target's KV cache when its prefill began; must be 0."""
    draft_cache_tokens_before: int | None = Field(default=None, exclude_if=_absent)
    """The same of the draft; 0 where none is read, None in records from before this was noted."""
    cache_tokens_after: int
    """Entries per attention layer after prefill; equals tokens_kept."""
    key_dtype: str
    logits_dtype: str
    look_ahead_tokens: tuple[int, ...]
    selection_seed: str | None
    needle_kept: float
    """Share of the needle's tokens among the kept ones."""
    first_token: int
    logits_sha256: str
    """Of the float32 log-probabilities of the first token, kept in the store."""


class ServerEvidence(Frozen):
    """What a server's log and answer say about one request. Which positions it kept, no server tells."""

    prompt_tokens: int
    """As the server counted them; must be the prompt's own number."""
    tokens_scored: int
    """Prompt tokens that the draft read, by the log; 0 without a line that says so."""
    tokens_kept: int
    """Prompt tokens that the target read, by the log; all of them when nothing was left out."""
    keep_logged: float | None
    """Keep rate that was in effect, by the log."""
    threshold_logged: int | None
    """Threshold that was in effect, by the log."""
    cached_tokens: int | None
    """Prompt tokens that came from a cache; None: this engine has none on the way that a request takes here."""
    draft_cached_tokens: int
    """Prompt tokens that the draft had from a cache, by the log."""
    completion_tokens: int
    finish_reason: str
    first_text: str
    """Of the first event with content; how many tokens it holds is up to the server."""
    lines: tuple[str, ...]
    """Log lines that decide, secrets and paths removed: of loading the draft, and of this request."""
    server_seconds: dict[str, float]
    """What the server says that its parts took; a cross-check of the client's clock, never the measurement."""
    log_sha256: str
    """Of the server's whole log (gzip), kept in the store."""

    @property
    def cache_tokens_before(self) -> int:
        """Tokens that were cached when the clock started, the draft's included."""
        return (self.cached_tokens or 0) + self.draft_cached_tokens


class MachineState(Frozen):
    """Read just before and just after a trial, never during it."""

    load_1min: float
    swap_out_bytes: int
    available_bytes: int
    cpu_mhz: float | None
    other_cpu_percent: float | None
    """CPU use of other processes over the moment before the trial."""
    thermal_pressure: str | None = Field(default=None, exclude_if=_absent)
    """How much heat slows the machine, see `sensors.Sensors`; of this and what follows, None is not known."""
    throttle_events: int | None = Field(default=None, exclude_if=_absent)
    """How often the processor was slowed for heat since the system was started."""
    memory_pressure: str | None = Field(default=None, exclude_if=_absent)
    vm_swap_out_bytes: int | None = Field(default=None, exclude_if=_absent)
    """Written to swap since the system was started, where `swap_out_bytes` counts something else."""
    compressed_bytes: int | None = Field(default=None, exclude_if=_absent)
    low_power: bool | None = Field(default=None, exclude_if=_absent)


class TrialRecord(Frozen):
    """One trial. Immutable, stored under the hash of its content."""

    schema_version: int = 1
    cell: str
    block: int
    position: int
    """0 to 3 within its block."""
    treated: bool
    requested: Arm
    outcome: str
    """`sparse`, `dense`, or `fallback: REASON`; from the evidence."""
    engine: str
    """Its kind, as claims name it; the cell tells which of a study's engines it was."""
    target: str
    draft: str | None
    target_weights_sha256: str
    draft_weights_sha256: str | None
    prompt: PromptFacts
    seconds: float
    """TTFT: from handing over the token ids to the first token on the host; on a server, from sending the request to
    the first content received."""
    phases: Phases | None = Field(default=None, exclude_if=_absent)
    """None on a server."""
    load_seconds: float | None = Field(default=None, exclude_if=_absent)
    """None on a server: part of `ready_seconds`."""
    warmup_seconds: float
    ready_seconds: float
    """From the start of the process until it could have begun to load weights; of a server until it could answer."""
    answer_text: str
    answer_found: bool
    answer_parts: dict[str, bool] = Field(default_factory=dict, exclude_if=_absent)
    """Which parts of the answer are in it; found means all."""
    answer_ids: tuple[int, ...] = Field(default=(), exclude_if=_absent)
    """The tokens of `answer_text`, special ones included."""
    answer_log_probabilities: tuple[float, ...] = Field(default=(), exclude_if=_absent)
    """Natural logarithms, of each of `answer_ids`: in dense arms, where the study measures perplexity."""
    forced_log_probabilities: tuple[float, ...] = Field(default=(), exclude_if=_absent)
    """Of each token that the pair's dense arm decoded, after the pair's treated prefill: in the pair's second trial."""
    decode_tokens: int
    decode_seconds: float
    """For `decode_tokens` tokens after the first."""
    peak_memory_bytes: int
    """Largest resident size of the process."""
    peak_mlx_bytes: int | None = Field(default=None, exclude_if=_absent)
    """None on a server."""
    paged_in_bytes: int | None = Field(default=None, exclude_if=_absent)
    """Read from disk into the process's memory while the clock ran, at least (one page a major fault); None on a
    server."""
    evidence: Evidence | ServerEvidence = Field(union_mode="left_to_right")
    """A record fits one of the two alone; the second is tried only where the first does not fit."""
    before: MachineState
    after: MachineState
    suspended_seconds: float
    """Difference of two clocks, one of which stops while the machine sleeps."""
    started_at: str
    """UTC, ISO 8601."""
    environment: dict[str, str]
    """Versions, BLAS, chip: what the process found."""


class Canary(Frozen):
    """The same small work, timed before every block: what this machine can do now, whatever is measured on it."""

    product_seconds: float = Field(gt=0)
    """Of a fixed product of matrices; median of a few."""
    prefill_seconds: float = Field(gt=0)
    """Of a fixed short dense prefill of a fixed tiny model of random weights; median of a few."""
    started_at: str
    """UTC, ISO 8601."""


class BlockReceipt(Frozen):
    """Names the records of a block. A block is kept whole or not at all."""

    cell: str
    block: int
    order: str
    """ABBA or BAAB; A is the baseline."""
    fingerprint: str
    """Of everything that can change its numbers."""
    parts: dict[str, str]
    """The parts of the fingerprint by name."""
    records: tuple[str, ...]
    """Content hashes, in the order in which the trials ran; none when void."""
    void: str | None = None
    """Why there are no records."""
    attempts: tuple[str, ...] = ()
    """Reasons for which earlier tries at this block were thrown away, oldest first."""
    canary: Canary | None = Field(default=None, exclude_if=_absent)
    """None in receipts from before there was one, of void blocks, and where it could not be timed."""
