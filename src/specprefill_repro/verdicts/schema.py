"""Claim cards and verdicts, as they lie on disk."""

from enum import StrEnum

from pydantic import Field

from specprefill_repro.estimates.schema import Interval
from specprefill_repro.schema import Frozen
from specprefill_repro.study.schema import Treatment


class ClaimKind(StrEnum):
    AUTHOR_CLAIM = "author_claim"
    INDEPENDENT = "independent_measurement"
    FAILED_REPRODUCTION = "failed_reproduction"
    EXPECTATION = "expectation"
    """Of ours, about a control of this package; fixed before the first run."""


class Rule(StrEnum):
    """How a claim is judged; fixed in its card before the first run."""

    AT_LEAST = "at-least"
    """The speed-up is at least the value."""
    EQUAL = "equal"
    """The speed-up is the value, either way within the tolerance."""
    PREDICTED = "predicted"
    """The speed-up is what the measured parts predict, either way within the tolerance; the card holds no value."""
    SLOWER = "slower"
    """The treated arm is slower than dense by more than the tie margin."""
    TIED = "tied"
    """No difference beyond the tie margin."""
    ANSWERS_KEPT = "answers-kept"
    """Fewer than `value` of the answers that dense found are lost."""
    ANSWERS_LOST = "answers-lost"
    """More than `value` of the answers that dense found are lost."""
    SHOWN = "shown"
    """Shown beside the measurement, never judged."""


class Conditions(Frozen):
    """Under which the figure was obtained; None: the source does not say."""

    hardware: str | None = None
    memory_gib: float | None = None
    target: str | None = None
    draft: str | None = None
    quantization: str | None = None
    keep: float | None = None
    prompt_tokens: int | None = None
    prompt_tokens_stated: str | None = None
    """As the source words it, such as `8K (nominal)`."""
    engine: str | None = None
    engine_version: str | None = None
    pair: str | None = None
    """Expectations only: the pair of the study."""
    treatment: Treatment | None = None
    """Expectations only; published claims are about `speculative`."""


class Claim(Frozen):
    """One published figure with its source, or one expectation about a control."""

    id: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    kind: ClaimKind
    statement: str = Field(min_length=1)
    """One sentence for a reader who has not read the source."""
    source: str = Field(min_length=1)
    source_url: str | None
    location: str
    """Place in the source."""
    access: str
    """primary: the file itself was read; excerpt: a part of it; own: an expectation of this package."""
    metric: str
    value: float | None
    unit: str
    trials: int | None
    spread: str | None
    tolerance: float = Field(default=0.15, gt=0, lt=1)
    tie_margin: float = Field(default=0.03, gt=0, lt=1)
    primary: bool = False
    """Corrected together (Holm) with the other primary claims of its study."""
    rule: Rule
    conditions: Conditions
    note: str | None = None


class Word(StrEnum):
    """The verdict (docs/method.md has the rules)."""

    INVALID = "invalid"
    REPRODUCED = "reproduced"
    SMALLER = "reproduced in direction, smaller"
    EXCEEDED = "exceeded"
    TIED = "not reproduced: tied"
    SLOWER = "not reproduced: slower"
    NOT_REPRODUCED = "not reproduced"
    """Of a claim that is not about a speed-up, or about the absence of one."""
    INCONCLUSIVE = "inconclusive"
    NOT_COMPARABLE = "not comparable"
    NOT_RUN = "not run"


class ConditionMatch(Frozen):
    condition: str
    claimed: str
    here: str
    matches: bool | None
    """None: the source does not say, so it cannot be compared."""


class Verdict(Frozen):
    claim: Claim
    word: Word
    sentence: str
    """The reason, with the numbers, in one sentence."""
    cells: tuple[str, ...]
    """Cells it rests on, or that stand beside it."""
    measured: float | None
    interval95: Interval | None
    expected: float | None
    """The value it was held against: the card's, or the prediction from the parts."""
    pairs: int
    conditions: tuple[ConditionMatch, ...] = ()
    attribution: str | None = None
    """Why there is no gain, or less than claimed; from evidence."""
    more_pairs: int | None = None
    """About how many more pairs would settle an inconclusive verdict."""


class Verdicts(Frozen):
    study: str
    verdicts: tuple[Verdict, ...]
