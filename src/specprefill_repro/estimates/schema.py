"""What the records say, cell by cell, as it lies on disk."""

from typing import Annotated

from pydantic import Field, GetPydanticSchema
from pydantic_core import core_schema

from specprefill_repro.schema import Frozen
from specprefill_repro.study.schema import NeedleKind, Treatment

DIGITS = 10


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS - 1}e}")


Number = Annotated[
    float,
    GetPydanticSchema(
        lambda source, schema_of: core_schema.json_or_python_schema(
            json_schema=schema_of(source),
            python_schema=core_schema.no_info_after_validator_function(_rounded, schema_of(source)),
        )
    ),
]
"""Rounded to ten significant digits: the rest differs between machines, and a page must be the same on all of them.
What is read from a file was rounded when it was written, or is not what was written; it is taken as it is."""


class Interval(Frozen):
    low: Number
    high: Number
    level: Number
    """Such as 0.95."""


class Look(Frozen):
    """One look at the width of a cell's interval, which decides whether it gets another block."""

    cell: str
    blocks: int
    """That had run."""
    pairs: int
    """Of them, that count."""
    stop: bool
    reason: str


class KindQuality(Frozen):
    """Answers to one kind of prompt, both arms on the same prompts."""

    kind: NeedleKind
    pairs: int
    dense: int
    """Answered in full after a dense prefill."""
    treated: int
    lost: int
    """By dense, and not by treated."""
    gained: int
    """By treated, and not by dense."""
    difference_interval95: Interval | None
    """Of the share answered, treated minus dense: paired (Bonett and Price 2012)."""
    parts: int
    """Of all answers together: each fact, each line of code, valid JSON and each of its values."""
    dense_parts: int
    treated_parts: int


class Quality(Frozen):
    """What reading less cost, with paired intervals against dense."""

    kinds: tuple[KindQuality, ...] = ()
    agreement_interval95: Interval | None = None
    """Of the share of equal first tokens; Clopper-Pearson."""
    kl_interval95: Interval | None = None
    """Of the median KL; from the order of the values alone, None below six pairs."""
    perplexity_pairs: int = 0
    dense_perplexity: Number | None = None
    """Of the dense arm's own greedy words; None where it was not measured."""
    treated_perplexity: Number | None = None
    """Of the same words, read one by one after the treated arm's prefill."""
    perplexity_ratio: Number | None = None
    """Treated / dense: the geometric mean over pairs."""
    perplexity_interval95: Interval | None = None
    """Of the ratio; Student's t on the pairs' differences in nats a token."""


class PairEstimate(Frozen):
    """One pair of clean processes on one prompt."""

    block: int
    prompt: str
    kind: NeedleKind
    dense_seconds: Number
    treated_seconds: Number
    log_ratio: Number
    """ln(dense seconds) - ln(treated seconds)."""
    dense_record: str
    treated_record: str
    dense_answer_found: bool
    treated_answer_found: bool
    same_first_token: bool | None
    """None on a server, which sends text and not tokens."""
    kl_nats: Number | None
    """KL(dense || treated) of the first token's distribution; None on a server."""
    outlier: bool
    """Modified z-score above 3.5; flagged, never dropped."""
    parts: int = 0
    """Of the full answer."""
    dense_parts: int = 0
    treated_parts: int = 0
    dense_nats: Number | None = None
    """Mean -ln(probability) a token of the dense arm's own words; None where it was not measured."""
    treated_nats: Number | None = None
    """The same words after the treated arm's prefill."""
    depth: Number | None = None
    """Where the answer stands in the prompt: 0 first, 1 last."""
    needle_kept: Number | None = None
    """Share of the answer's tokens that the treated arm read."""
    last_token_kept: bool | None = None
    """Whether the treated arm read the last prompt token; a rule may drop it, and a server does not tell."""


class Decoding(Frozen):
    """How fast the tokens after the first one came, in the trials of a cell's pairs."""

    fewest_tokens: int
    """Decoded after the first one in any trial."""
    most_tokens: int
    pairs: int
    """In which both trials decoded enough tokens to be compared."""
    dense_rate: Number | None
    """Median of tokens a second, of those pairs; None without any."""
    treated_rate: Number | None
    speedup: Number | None
    """exp(mean ln(dense seconds a token / treated seconds a token)): above 1, decoding is faster after dropping."""
    interval95: Interval | None
    even_tokens: int | None = None
    """Tokens after the first one at which the whole answer takes as long in both arms, where decoding is clearly slower
    after dropping and the first token came sooner; else None."""


class CellEstimate(Frozen):
    cell: str
    pair: str
    engine: str
    """Name of the engine in the study."""
    treatment: Treatment
    length: int
    nominal_keep: float
    rule: str | None = None
    """Label of the selection rule; None where the study leaves it at one that has no name."""
    actual_keep: Number | None
    """Mean share of prompt tokens that the target read; None without records."""
    pairs: tuple[PairEstimate, ...]
    degrees: int | None = None
    """Degrees of freedom of Student's t: pairs - 1, or fewer where looking more than once decided when to stop."""
    speedup: Number | None
    """exp(mean log ratio)."""
    interval95: Interval | None
    """Of the speed-up; Student's t on the log ratios; None below two pairs."""
    interval90: Interval | None
    dense_median_seconds: Number | None
    treated_median_seconds: Number | None
    dense_phases: dict[str, Number]
    """Median seconds by phase; empty on a server."""
    treated_phases: dict[str, Number]
    predicted_speedup: Number | None
    """From the dense prefill times of draft and target as measured; None when a part is missing or weak."""
    prediction_problem: str | None = None
    """Which measured part is too slow to be true, so that nothing may be predicted from it."""
    bound_speedup: Number | None = None
    """That no implementation of this pair at this keep rate exceeds: draft and kept tokens alone, the rest for free."""
    break_even_tokens: int | None = None
    """Prompt length from which on the parts predict a gain; None: not known, or not up to `break_even_limit`."""
    break_even_limit: int | None = None
    """The longest prompt at which it was looked for; None: it could not be looked for, or nobody wrote it down."""
    break_even_problem: str | None = None
    """Why it could not be looked for."""
    answers_dense: int
    answers_treated: int
    answers_lost: int
    """Prompts that the dense arm answered and the treated arm did not."""
    answers_lost_interval: Interval | None
    """Clopper-Pearson, of the share lost among those that the dense arm answered."""
    first_token_agreement: Number | None
    median_kl_nats: Number | None
    decoding: Decoding | None = None
    """None without pairs."""
    quality: Quality = Quality()
    problems: tuple[str, ...]
    """Void blocks and failed evidence, in words; empty when all is well."""
    outcomes: dict[str, int] = Field(default_factory=dict)
    """How many treated trials ended as `sparse`, `dense` or `fallback: REASON`; also those that do not count."""
    cached_trials: int = 0
    """Trials whose KV cache was not empty when the clock started."""
    baseline_problem: str | None = None
    """Why the dense arm is too slow to be held against anything; None when nothing speaks against it."""


class Drift(Frozen):
    """How the dense seconds of one pair and length changed over the study (Theil-Sen)."""

    pair: str
    engine: str
    length: int
    trials: int
    change: Number
    """Slope times the span, as a share of the median: 0.06 is 6 % slower at the end."""
    interval95: Interval
    """Of `change`."""

    @property
    def found(self) -> bool:
        return not self.interval95.low <= 0 <= self.interval95.high


class Agreement(Frozen):
    """How often one arm of a server gave the answers that this package's own engine gave to the same prompts."""

    cell: str
    arm: str
    trials: int
    """Of the server, that did what was asked for and whose prompt our engine read too."""
    with_our_dense: Number
    """Share whose answer is that of our dense trial, as far as both go."""
    with_our_speculative: Number | None
    """The same with our speculative trial; None where there is none."""
    ours_among_themselves: Number | None
    """Share of those prompts where our own speculative answer is our dense one."""
    first_text_of_our_dense: Number
    """Share whose first piece of text begins our dense answer."""


class EngineFound(Frozen):
    """What the trials on one engine say about it."""

    kinds: tuple[str, ...]
    """As claims name them, sorted; one, unless something is wrong."""
    environment: dict[str, tuple[str, ...]]
    """What the trials' processes found (chip, versions), sorted; more than one value where trials differ."""


class Estimates(Frozen):
    study: str
    cells: tuple[CellEstimate, ...]
    placebo_margin: Number | None
    """Largest |log ratio| that the placebo's 95 % interval allows: this machine's noise; None without a placebo."""
    voids: tuple[str, ...]
    """Every block that was thrown away and every pair that does not count, in words."""
    drift: tuple[Drift, ...] = ()
    agreements: tuple[Agreement, ...] = ()
    """Of servers with this package's own engine; none where they share no prompt."""
    suspicions: tuple[str, ...] = ()
    """What those agreements cast doubt on, in words."""
    engines: dict[str, EngineFound] = Field(default_factory=dict)
    """By the study's names for them; those that ran a trial."""

    @property
    def environment(self) -> dict[str, tuple[str, ...]]:
        """What the trials' processes found on any engine."""
        found: dict[str, set[str]] = {}
        for engine in self.engines.values():
            for name, values in engine.environment.items():
                found.setdefault(name, set()).update(values)
        return {name: tuple(sorted(values)) for name, values in sorted(found.items())}


def estimates_json(estimates: Estimates) -> str:
    """Estimates as they lie on disk; by pydantic's own writer, since there can be 50,000 pairs."""
    return estimates.model_dump_json(indent=1) + "\n"
