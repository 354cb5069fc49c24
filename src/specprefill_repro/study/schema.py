"""The study file. `config/README.md` explains every key to the person who writes one."""

from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from specprefill_repro.schema import Frozen
from specprefill_repro.study.engines import IN_PROCESS, EngineSettings, MlxLmEngine
from specprefill_repro.study.presets import PRESETS, PresetName

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,79}$")]
MAX_CELLS = 2_000
"""Of a study; a page with more could not be verified."""
KeepRate = Annotated[float, Field(gt=0, le=1)]


class Treatment(StrEnum):
    """What is compared with a dense prefill of the same prompt."""

    SPECULATIVE = "speculative"
    RANDOM = "random"
    """Control: the same keep rate, chunks chosen by a seeded coin."""
    HEAD_TAIL = "head-tail"
    """Control: the same keep rate, the chunks nearest to the prompt's beginning and end."""
    UNIFORM = "uniform"
    """Control: the same keep rate, evenly spaced chunks."""
    PLACEBO = "placebo"
    """Control: dense again. Whatever difference it shows is this machine's noise."""
    PLAIN = "plain"
    """Control: dense, by mlx_lm's own generation loop. Where it is faster, the dense arm is a weak baseline."""

    @property
    def reads_all(self) -> bool:
        """Whether the treated arm is a dense prefill too."""
        return self in (Treatment.PLACEBO, Treatment.PLAIN)


class NeedleKind(StrEnum):
    """What is hidden in a prompt and asked for at its end."""

    NUMBER = "number"
    CITY = "city"
    SEVERAL = "several"
    """Three facts in three places, all asked for."""
    CODE = "code"
    """A function of two lines, to be quoted word for word."""
    JSON = "json"
    """A record in prose, to be given as JSON."""


class Pair(Frozen):
    """A target and the draft that scores its prompts; names from config/models.yaml."""

    target: Name
    draft: Name


class Prompts(Frozen):
    kinds: tuple[NeedleKind, ...] = Field(min_length=1)
    """Taken in turn: prompt i is of kind i modulo their number."""
    begin_reply: bool = True
    """The prompt ends with the beginning of the model's reply, so that the first token is the answer's first.

    Otherwise the first token is that of a phrase every model begins with, and says little. Servers that only take chat
    messages can't do this.
    """
    answer_tokens: int = Field(default=12, ge=1, le=512)
    """Tokens decoded after the timed prefill, to see whether the answer survived."""
    perplexity: bool = False
    """Whether the tokens that the dense arm decoded are also read, one by one, after the treated arm's prefill, to see
    how likely it finds them. Untimed; takes one more sparse prefill a pair."""


class Selection(Frozen):
    """How prompt tokens are scored and chosen: a named rule (see presets.py), its parameters, or both.

    Written as the name alone, or with fields that differ from the named rule's. The defaults are the parameters of the
    paper's published code (arXiv 2502.02789), with head and tail kept outside the budget.
    """

    preset: PresetName | None = None
    """Whose parameters hold where none is given; kept as a label."""
    look_ahead: int = Field(default=8, ge=1, le=64)
    """Queries whose attention scores the prompt."""
    prompt_query: bool = True
    """Whether the last prompt token's query is the first of them; the others are of tokens decoded after it."""
    temperature: float = Field(default=0.0, ge=0, le=10)
    """Of the decoded tokens; 0: the most likely one. Others are drawn from a seed, so that a trial can be repeated."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Drawn from the most likely tokens that hold this much probability."""
    stop_at_end: bool = True
    """Whether decoding stops at an end token, with fewer queries."""
    pool: int = Field(default=13, ge=1, le=255)
    """Width of the average pooling over prompt positions; odd."""
    chunk: int = Field(default=32, ge=1, le=1024)
    """Tokens that are kept or dropped together."""
    head: int = Field(default=32, ge=0)
    """First tokens, always kept, outside the budget."""
    tail: int = Field(default=64, ge=0)
    """Last tokens, always kept. With 0 even the last prompt token may be dropped; the first logits then come from the
    last kept one."""
    tail_in_budget: bool = False
    """Whether the tail is the last ceil(tail / chunk) chunks and charged to the budget."""
    windows: Literal["positions", "kept"] = "positions"
    """What the sliding windows of a target count: original positions, or kept tokens, as mlx_lm's caches do."""
    window_tail: Literal["no", "long-prompts", "always"] = "no"
    """Whether a target with sliding windows also reads the last window of every prompt, or of longer ones."""

    @model_validator(mode="before")
    @classmethod
    def _filled_from_preset(cls, given: Any) -> Any:
        if isinstance(given, str):
            given = {"preset": given}
        name = given.get("preset") if isinstance(given, dict) else None
        if name is None:
            return given
        if not isinstance(name, str) or name not in PRESETS:
            raise ValueError(f"there is no selection rule {name!r}; there are: {', '.join(PRESETS)}")
        return {**PRESETS[name].parameters, **given}

    @model_validator(mode="after")
    def _pool_is_odd(self) -> Self:
        if self.pool % 2 == 0:
            raise ValueError(f"pool must be odd, so that a window has a centre; got {self.pool}")
        return self

    @property
    def changed(self) -> dict[str, Any]:
        """The parameters that differ from those of the named rule, or from the defaults where none is named."""
        usual = Selection() if self.preset is None else Selection(preset=self.preset)
        return {name: value for name, value in self.model_dump().items() if value != getattr(usual, name)}

    @property
    def label(self) -> str:
        """Such as `ours`, `ours, chunk 16`, or `default, head 16`."""
        changes = [f"{name.replace('_', '-')} {value}" for name, value in self.changed.items()]
        return ", ".join([self.preset or "default", *changes])

    @property
    def passes(self) -> int:
        """Passes of one token through the draft, the last prompt token's included, when no end token stops it."""
        return self.look_ahead + (not self.prompt_query)


class Comparison(Frozen):
    """One treatment against dense, at every given length and keep rate."""

    pair: Name
    engine: Name | None = Field(default=None, exclude_if=lambda engine: engine is None)
    """One of `engines`; none: the study's own."""
    treatment: Treatment
    lengths: tuple[Annotated[int, Field(ge=128, le=2_000_000)], ...] = Field(min_length=1)
    """Exact prompt lengths in tokens, chat template included."""
    keep: tuple[KeepRate, ...] = ()
    """Nominal keep rates; none where both arms read everything."""
    blocks: int = Field(ge=1, le=100)
    """Blocks of four trials (A B B A); each gives two pairs."""
    most_blocks: int | None = Field(default=None, ge=1, le=100)
    """A cell gets more blocks, up to this many, until its interval is narrow enough (docs/method.md); none: it never
    does."""
    selection: Selection | None = None
    """A rule of its own, in place of the study's."""

    @model_validator(mode="after")
    def _most_is_not_fewer(self) -> Self:
        if self.most_blocks is not None and self.most_blocks < self.blocks:
            raise ValueError(f"most_blocks is {self.most_blocks}, fewer than the {self.blocks} blocks that always run")
        return self

    @model_validator(mode="after")
    def _keep_fits_treatment(self) -> Self:
        if self.treatment.reads_all and self.keep:
            raise ValueError(f"{self.treatment} keeps everything: leave `keep` out")
        if self.treatment.reads_all and self.selection is not None:
            raise ValueError(f"{self.treatment} selects nothing: leave `selection` out")
        if not self.treatment.reads_all and not self.keep:
            raise ValueError(f"`keep` is missing: which keep rates should {self.treatment} be measured at?")
        return self


class Study(Frozen):
    name: Name
    title: str = Field(min_length=1, max_length=200)
    question: str = Field(min_length=1, max_length=1000)
    seed: int = Field(ge=0, lt=2**32)
    pairs: dict[Name, Pair] = Field(min_length=1)
    prompts: Prompts
    engine: Name = IN_PROCESS
    """What runs the models where a comparison names nothing else: `mlx-lm`, or one of `engines`."""
    engines: dict[Name, EngineSettings] = Field(default_factory=dict, exclude_if=lambda engines: not engines)
    """Further engines, by names of the study's own; see study/engines.py."""
    prefill_step: int = Field(default=2048, ge=16, le=65536)
    """Tokens per forward pass of a chunked prefill, in draft and target alike."""
    warmup_tokens: int = Field(default=2048, ge=16)
    """Length of the untimed prefill of another prompt that each process runs first, through the same path."""
    selection: Selection = Selection()
    comparisons: tuple[Comparison, ...] = Field(min_length=1)
    claims: tuple[str, ...] = ()
    """Claim cards (config/claims) that the report judges or shows; a name or a pattern such as green-122b-2b-*."""
    questions: Literal["omlx-issue"] | None = Field(default=None, exclude_if=lambda questions: questions is None)
    """Questions of a source that the report ends with, each answered from the evidence of the run."""
    shrunk: int | None = Field(default=None, ge=1, exclude_if=lambda factor: factor is None)
    """At tiny scale: by how much prompts are shorter. Set by `--scale tiny`, never in a file."""
    left_out: tuple[str, ...] = Field(default=(), exclude_if=lambda left_out: not left_out)
    """Engines of the file whose comparisons do not run here, each with the reason. Never set in a file."""

    @property
    def selections(self) -> tuple[Selection, ...]:
        """The study's rule, and those that comparisons have of their own."""
        own = [comparison.selection for comparison in self.comparisons if comparison.selection is not None]
        return tuple(dict.fromkeys([self.selection, *own]))

    @model_validator(mode="after")
    def _cells_are_not_too_many(self) -> Self:
        # Before anything walks over the cells.
        cells = sum(len(comparison.lengths) * max(1, len(comparison.keep)) for comparison in self.comparisons)
        if cells > MAX_CELLS:
            raise ValueError(
                f"the comparisons make {cells:,} cells, more than {MAX_CELLS:,} cells: name fewer lengths or keep rates"
            )
        return self

    @model_validator(mode="after")
    def _pairs_are_known(self) -> Self:
        for comparison in self.comparisons:
            if comparison.pair not in self.pairs:
                raise ValueError(f"comparison of an unknown pair {comparison.pair!r}; known: {', '.join(self.pairs)}")
        return self

    @model_validator(mode="after")
    def _cells_are_distinct(self) -> Self:
        seen = set()
        for comparison in self.comparisons:
            for length in comparison.lengths:
                for keep in comparison.keep or (1.0,):
                    engine = comparison.engine or self.engine
                    rule = None if comparison.selection is None else comparison.selection.label
                    cell = (comparison.pair, engine, comparison.treatment, length, keep, rule)
                    if cell in seen:
                        on = "" if engine == self.engine else f" on {engine}"
                        by = f" with {rule}" if rule else ""
                        what = f"{comparison.pair} {comparison.treatment} {length} {keep:g}{on}"
                        raise ValueError(f"{what} stands twice{by}")
                    seen.add(cell)
        return self

    @model_validator(mode="after")
    def _engines_can_do_it(self) -> Self:
        if IN_PROCESS in self.engines:
            raise ValueError(f"`engines` redefines {IN_PROCESS!r}, which is this package's own: use another name")
        for comparison in self.comparisons:
            name = comparison.engine or self.engine
            if comparison.engine not in (None, self.engine, IN_PROCESS, *self.engines):
                known = ", ".join([IN_PROCESS, *self.engines])
                raise ValueError(f"there is no engine {name!r}; there are: {known}. Define it under `engines`")
            if not self.runs_on_server(name):
                continue
            if self.prompts.begin_reply:
                raise ValueError(
                    f"the engine {name!r} is a server, which takes chat messages only and can't begin its own reply: "
                    "set `begin_reply: false` under `prompts`"
                )
            if comparison.treatment is Treatment.PLAIN:
                raise ValueError(f"the engine {name!r} is a server; `plain` compares {IN_PROCESS} with mlx_lm itself")
            if comparison.treatment not in (Treatment.SPECULATIVE, Treatment.PLACEBO):
                raise ValueError(f"the engine {name!r} is a server, and none can choose tokens at random or by place")
            if comparison.selection is not None:
                raise ValueError(f"the engine {name!r} is a server with a rule of its own: leave `selection` out")
        return self

    @property
    def has_servers(self) -> bool:
        return any(self.runs_on_server(name) for name in self.engines)

    def runs_on_server(self, engine: str) -> bool:
        """Whether the engine of that name is a server, measured from outside."""
        return engine in self.engines and not isinstance(self.engines[engine], MlxLmEngine)
