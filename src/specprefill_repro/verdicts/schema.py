"""Claim cards and verdicts, as they lie on disk."""

from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

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
    target_quantization: str | None = None
    """Such as `5-bit`; `none` when the weights are not quantised."""
    draft_quantization: str | None = None
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
    other: str | None = None
    """A condition that no study of this package sets, such as a quantised KV cache: then nothing here matches it."""


class Claim(Frozen):
    """One published figure with its source, or one expectation about a control."""

    id: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    kind: ClaimKind
    statement: str = Field(min_length=1)
    """One sentence for a reader who has not read the source."""
    source: str = Field(min_length=1)
    source_url: str | None = Field(pattern=r"^https://\S+$")
    """None for an expectation alone."""
    location: str
    """Place in the source."""
    access: str
    """primary: the file itself was read; excerpt: a part of it; own: an expectation of this package."""
    metric: str
    value: float | None
    """None: the source gives a range, a count or words; `value_stated` has them."""
    value_stated: str | None = None
    unit: str
    trials: int | None
    spread: str | None
    tolerance: float = Field(default=0.15, gt=0, lt=1)
    tie_margin: float = Field(default=0.03, gt=0, lt=1)
    primary: bool = False
    """Corrected together (Holm) with the other primary claims of its study."""
    ruler: bool = False
    """Expectations only: a control that must be met before any published claim gets a verdict."""
    rule: Rule
    conditions: Conditions
    note: str | None = None

    @model_validator(mode="after")
    def _rule_has_what_it_needs(self) -> Self:
        if self.rule in (Rule.AT_LEAST, Rule.EQUAL, Rule.ANSWERS_KEPT, Rule.ANSWERS_LOST) and self.value is None:
            raise ValueError(f"the rule {self.rule} needs a value")
        if self.rule in (Rule.AT_LEAST, Rule.EQUAL) and not (self.value or 0) > 0:
            raise ValueError("a speed-up is above 0")
        if self.rule in (Rule.ANSWERS_KEPT, Rule.ANSWERS_LOST) and not 0 < (self.value or 0) < 1:
            raise ValueError("a share of answers lies between 0 and 1")
        if self.primary and self.rule in (Rule.ANSWERS_KEPT, Rule.ANSWERS_LOST, Rule.SHOWN):
            raise ValueError("only claims about speed that are judged are corrected together")
        if self.kind is not ClaimKind.EXPECTATION and (self.ruler or self.source_url is None):
            raise ValueError("a published claim has the address of its source, and is never a ruler")
        if self.kind is ClaimKind.EXPECTATION and (self.conditions.pair is None or self.conditions.treatment is None):
            raise ValueError("an expectation names its pair and its treatment")
        return self


class Contradiction(Frozen):
    """Two or more published statements that cannot all hold as they stand, or a weak point of one."""

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,59}$")
    sentence: str = Field(min_length=1)
    claims: tuple[str, ...]
    """Ids of the cards it is about; none when it is about code or wording alone."""
    inference: bool = False
    """It rests on arithmetic of this project, not on two sources that disagree in words."""
    source: str
    """Where both sides were read."""


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


class Cause(Frozen):
    """One possible reason for a missing gain, and what the evidence says about it."""

    name: str
    applies: bool
    evidence: str


class Attribution(Frozen):
    """Why one cell shows no gain, or less than expected."""

    cell: str
    sentence: str
    causes: tuple[Cause, ...]
    """Every cause that was looked at, whether it applies or not; the most basic first."""


class Verdicts(Frozen):
    study: str
    verdicts: tuple[Verdict, ...]
    attributions: tuple[Attribution, ...] = ()
    contradictions: tuple[Contradiction, ...] = ()
    """Those that touch a claim above."""
