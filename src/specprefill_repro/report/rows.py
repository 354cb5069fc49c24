"""The rows of the page's tables: plain values taken from the data, no formatting beyond words and counts."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import pandas as pd

from specprefill_repro.estimates.schema import CellEstimate
from specprefill_repro.gate.pitfalls import PITFALLS
from specprefill_repro.gate.schema import GateResult
from specprefill_repro.report import numbers
from specprefill_repro.report.answer import Role, role
from specprefill_repro.report.data import ReportData
from specprefill_repro.report.groups import CONTROLS, Group, engine_name, groups, spread
from specprefill_repro.study.plan import ArmKind, plan_cells
from specprefill_repro.study.schema import Selection, Treatment
from specprefill_repro.trials.busy import LOAD_PER_CORE, OTHER_CPU_PERCENT
from specprefill_repro.trials.schema import BlockReceipt, TrialRecord
from specprefill_repro.trials.table import Trials
from specprefill_repro.verdicts.rules import word_for
from specprefill_repro.verdicts.schema import ClaimKind, Rule, Verdict, Word

SYMBOLS = {
    Word.REPRODUCED: ("✔", "good"),
    Word.EXCEEDED: ("▲", "warn"),
    Word.SMALLER: ("◐", "warn"),
    Word.TIED: ("=", "bad"),
    Word.SLOWER: ("▼", "bad"),
    Word.NOT_REPRODUCED: ("✖", "bad"),
    Word.INVALID: ("⊘", "bad"),
    Word.INCONCLUSIVE: ("?", "warn"),
    Word.NOT_COMPARABLE: ("◇", "none"),
    Word.NOT_RUN: ("○", "none"),
}
"""The shape and the colour class that go with each verdict's word. *Exceeded* comes up only where a measurement must
agree with a number, so it is no success."""


def short(record_id: str) -> str:
    """The part of a record's hash that its row's anchor holds."""
    return record_id[:12]


def chart_label(cell: CellEstimate) -> str:
    """The label of a cell, short enough for an axis."""
    if cell.treatment.reads_all:
        return place_label(cell, CONTROLS[cell.treatment])
    kind = cell.rule or "keep" if cell.treatment is Treatment.SPECULATIVE else cell.treatment.value
    return place_label(cell, f"{kind} {numbers.keep(cell.nominal_keep)}")


def place_label(cell: CellEstimate, what: str) -> str:
    """Such as `main 1,024, keep 0.2`, with the engine where it is not this package's own."""
    where = " ".join([cell.pair, *engine_name(cell), numbers.count(cell.length)])
    return f"{where}, {what}"


@dataclass(frozen=True)
class VerdictRow:
    verdict: Verdict
    word: str
    symbol: str
    colour: str
    expected: str
    measured: str
    interval: str


def verdict_row(verdict: Verdict) -> VerdictRow:
    symbol, colour = SYMBOLS[verdict.word]
    unit = verdict.claim.unit
    interval = verdict.interval95
    return VerdictRow(
        verdict=verdict,
        word=word_for(verdict.claim, verdict.word),
        symbol=symbol,
        colour=colour,
        expected=expected(verdict),
        measured=numbers.with_unit(verdict.measured, unit),
        interval=numbers.bounds_of(interval, verdict.pairs)
        if unit == "x"
        else numbers.share_bounds(interval)
        if unit == "share"
        else numbers.NONE,
    )


MANY = 5


def judged_and_set_aside(verdicts: Sequence[Verdict]) -> tuple[list[Verdict], list[tuple[VerdictRow, int]]]:
    """What the first screen lists, and what it only counts, as (an example, their number) by word.

    Published claims that are not comparable are counted; so are more than a few that are invalid or not run.
    """
    published: dict[Word, list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        if verdict.claim.kind is not ClaimKind.EXPECTATION:
            published[verdict.word].append(verdict)
    counted = {
        word
        for word, some in published.items()
        if word is Word.NOT_COMPARABLE or (word in (Word.INVALID, Word.NOT_RUN) and len(some) > MANY)
    }
    listed = [v for v in verdicts if v.claim.kind is ClaimKind.EXPECTATION or v.word not in counted]
    return listed, [(verdict_row(published[word][0]), len(published[word])) for word in Word if word in counted]


def expected(verdict: Verdict) -> str:
    """What the measurement is held against, in words."""
    claim = verdict.claim
    number = numbers.with_unit(verdict.expected if verdict.expected is not None else claim.value, claim.unit)
    return {
        Rule.AT_LEAST: f"at least {number}",
        Rule.EQUAL: number,
        Rule.PREDICTED: f"{number}, from the measured parts",
        Rule.SLOWER: "slower than dense",
        Rule.TIED: f"no difference beyond {numbers.percent(claim.tie_margin)}",
        Rule.ANSWERS_KEPT: f"fewer than {numbers.percent(claim.value)} of answers lost",
        Rule.ANSWERS_LOST: f"more than {numbers.percent(claim.value)} of answers lost",
        Rule.SHOWN: number,
    }[claim.rule]


EVIDENCE = (
    "tokens_scored",
    "tokens_kept",
    "kept_ranges",
    "kept_sha256",
    "rotary_positions_sha256",
    "rotary_modules",
    "rotary_modules_expected",
    "rotary_modules_restored",
    "cache_tokens_before",
    "draft_cache_tokens_before",
    "cache_tokens_after",
    "key_dtype",
    "logits_dtype",
    "look_ahead_tokens",
    "needle_kept",
    "prompt_tokens",
    "keep_logged",
    "threshold_logged",
    "cached_tokens",
    "draft_cached_tokens",
    "log_sha256",
)
COLUMNS = (
    "cell",
    "treated",
    "requested.kind",
    "outcome",
    "target",
    "prompt.tokens",
    "prompt.compressed_share",
    "seconds",
    "started_at",
    "before.load_1min",
    "before.other_cpu_percent",
    "after.other_cpu_percent",
    *(f"evidence.{name}" for name in EVIDENCE),
)
"""Of the table of trials, those that the page's tables and charts are made from."""


@dataclass(frozen=True)
class EvidenceRow:
    """What ran in one arm of one cell."""

    label: str
    arm: str
    trials: int
    outcomes: str
    scored: str
    kept: str
    share: str
    rotary: str
    modules: str
    cache: str
    dtypes: str
    fine: bool
    problem: str


def evidence_row(label: str, treatment: Treatment, treated: bool, trials: pd.DataFrame) -> EvidenceRow:
    """Sum up the evidence of like trials; `problem` names what does not fit what was asked for."""
    evidence = trials[[name for name in trials.columns if name.startswith("evidence.")]]
    evidence = evidence.rename(columns=lambda name: name.removeprefix("evidence."))
    if evidence["log_sha256"].notna().any():
        return _server_evidence_row(label, treatment, treated, trials, evidence)
    sparse = treated and not treatment.reads_all
    wanted = "sparse" if sparse else "dense"
    # A model without rotary embeddings has no positions to see.
    none_expected = evidence["rotary_modules_expected"] == 0
    matching = int(((evidence["rotary_positions_sha256"] == evidence["kept_sha256"]) | none_expected).sum())
    problems = []
    # Where every chunk is kept, as at keep 1, the whole prompt is what was asked for.
    whole = (trials["outcome"] == "dense") & (evidence["tokens_kept"] == trials["prompt.tokens"])
    as_asked = (trials["outcome"] == wanted) | (whole if sparse else False)
    others = sorted(trials["outcome"][~as_asked].unique())
    if others:
        problems.append(f"asked for {wanted}, ran {', '.join(others)}")
    if sparse and matching < len(trials):
        problems.append("rotary positions are not the kept ones")
    unwatched = sparse and ((evidence["rotary_modules"] == 0) & ~none_expected).any()
    if (evidence["rotary_modules"] != evidence["rotary_modules_restored"]).any() or unwatched:
        problems.append("attention modules not patched or not restored")
    cached = evidence["cache_tokens_before"] + evidence["draft_cache_tokens_before"].fillna(0)
    if (cached != 0).any():
        problems.append("the cache was not empty")
    if (evidence["cache_tokens_after"] != evidence["tokens_kept"]).any():
        problems.append("the cache does not hold the kept tokens")
    if not sparse and (evidence["tokens_kept"] != trials["prompt.tokens"]).any():
        problems.append("dense prefill did not read the whole prompt")
    return EvidenceRow(
        label=label,
        arm=f"{treatment}" if treated else "dense",
        trials=len(trials),
        outcomes=_outcomes(trials),
        scored=span(evidence["tokens_scored"]),
        kept=f"{span(evidence['tokens_kept'])} of {span(trials['prompt.tokens'])}",
        share=share(trials),
        rotary=f"{matching} of {len(trials)}" if evidence["rotary_positions_sha256"].notna().any() else "not wrapped",
        modules=f"{span(evidence['rotary_modules'])} / {span(evidence['rotary_modules_restored'])}",
        cache=span(cached),
        dtypes=", ".join(sorted({f"{keys} / {logits}" for keys, logits in _dtypes(evidence)})),
        fine=not problems,
        problem="; ".join(problems),
    )


def _outcomes(trials: pd.DataFrame) -> str:
    counts = trials["outcome"].value_counts()
    return ", ".join(f"{counts[outcome]} of {len(trials)} {outcome}" for outcome in sorted(counts.index))


def _server_evidence_row(
    label: str, treatment: Treatment, treated: bool, trials: pd.DataFrame, evidence: pd.DataFrame
) -> EvidenceRow:
    """What a server's log and answers prove; positions, modules and types it does not tell."""
    wanted = "sparse" if treated and not treatment.reads_all else "dense"
    problems = []
    others = sorted(set(trials["outcome"].unique()) - {wanted})
    if others:
        problems.append(f"asked for {wanted}, ran {', '.join(others)}")
    if (evidence["prompt_tokens"] != trials["prompt.tokens"]).any():
        counted = span(evidence["prompt_tokens"])
        problems.append(f"the server counted {counted} prompt tokens, not {span(trials['prompt.tokens'])}")
    cached = evidence["cached_tokens"].fillna(0) + evidence["draft_cached_tokens"]
    if (cached != 0).any():
        problems.append("prompt tokens came from a cache")
    return EvidenceRow(
        label=label,
        arm=f"{treatment}" if treated else "dense",
        trials=len(trials),
        outcomes=_outcomes(trials),
        scored=span(evidence["tokens_scored"]),
        kept=f"{span(evidence['tokens_kept'])} of {span(trials['prompt.tokens'])}",
        share=share(trials),
        rotary=numbers.NONE,
        modules=numbers.NONE,
        cache=span(cached),
        dtypes=numbers.NONE,
        fine=not problems,
        problem="; ".join(problems),
    )


def _dtypes(evidence: pd.DataFrame) -> set[tuple[str, str]]:
    return set(evidence[["key_dtype", "logits_dtype"]].drop_duplicates().itertuples(index=False, name=None))


def span(values: "pd.Series[int] | Sequence[int]") -> str:
    """One number, or the smallest and the largest."""
    least, most = int(np.min(values)), int(np.max(values))
    return numbers.count(least) if least == most else f"{numbers.count(least)} to {numbers.count(most)}"


def compressed(trials: pd.DataFrame) -> str | None:
    """Share of the prompts' bytes that zlib leaves, in percent; None where no record says."""
    shares = trials["prompt.compressed_share"].dropna()
    return f"{span((100 * shares.astype(float)).round().astype(int))}{numbers.SPACE}%" if len(shares) else None


def share(trials: pd.DataFrame) -> str:
    """The share of prompt tokens that the target read, in percent."""
    shares = (100 * trials["evidence.tokens_kept"] / trials["prompt.tokens"]).round()
    return f"{span(shares)}{numbers.SPACE}%"


@dataclass(frozen=True)
class Listed:
    """A record with its content hash."""

    id: str
    record: TrialRecord


def by_cell(data: ReportData, trials: Trials) -> dict[str, list[Listed]]:
    """Records by cell, cells in the study's order, records in the order in which they ran."""
    cells: dict[str, list[Listed]] = {cell.cell: [] for cell in data.estimates.cells}
    listed = [Listed(identity, record) for identity, record in zip(trials.ids(), trials.records(), strict=True)]
    for item in sorted(listed, key=lambda item: (item.record.block, item.record.position)):
        cells.setdefault(item.record.cell, []).append(item)
    return {cell: items for cell, items in cells.items() if items}


def _in_order(data: ReportData, trials: pd.DataFrame) -> Iterator[tuple[Group, pd.DataFrame]]:
    """The cells of the study that have trials, row by row, with their trials."""
    measured = set(trials["cell"].unique())
    rows = groups(data, [cell for cell in data.estimates.cells if cell.cell in measured])
    row_of = {cell.cell: number for number, group in enumerate(rows) for cell in group.cells}
    own = dict(iter(trials.groupby(trials["cell"].map(row_of), sort=False)))
    for number, group in enumerate(rows):
        yield group, own[number]


SUMMED = ("cell", "treated", "outcome", "prompt.tokens")
"""What the table of evidence needs besides the evidence."""


def evidence_rows(data: ReportData, trials: pd.DataFrame) -> list[EvidenceRow]:
    """One row for the treated arm of each cell; then one for all baselines of a pair at one length."""
    trials = trials[[name for name in trials.columns if name.startswith("evidence.") or name in SUMMED]]
    rows = []
    dense: dict[str, list[pd.DataFrame]] = defaultdict(list)
    for group, own in _in_order(data, trials):
        treated, baseline = own[own["treated"]], own[~own["treated"]]
        if len(treated):
            rows.append(evidence_row(group.label, group.first.treatment, True, treated))
        if len(baseline):
            where = [group.first.pair, *engine_name(group.first), group.lengths]
            dense[" · ".join([*where, "baselines"])].append(baseline)
    return rows + [evidence_row(name, Treatment.PLACEBO, False, pd.concat(some)) for name, some in dense.items()]


@dataclass(frozen=True)
class RequestRow:
    label: str
    asked: str
    got: str


def request_rows(data: ReportData, trials: pd.DataFrame) -> list[RequestRow]:
    """For an engine's author: the parameters that were requested, and what the evidence says was effective."""
    arms = {cell.id: cell.treated for cell in plan_cells(data.study)}
    rows = []
    trials = trials[[name for name in trials.columns if name.startswith("evidence.") or name in SUMMED]]
    for group, own in _in_order(data, trials):
        treated = own[own["treated"]]
        if not len(treated) or group.first.treatment.reads_all:
            continue
        arm = arms[group.first.cell]
        asked = [f"{arm.kind}", f"keep {numbers.keep(arm.keep)}"]
        if arm.selection is not None:
            asked += selection_words(arm.selection)
        got = [", ".join(sorted(set(treated["outcome"].unique()))), f"real share {share(treated)}"]
        in_process = treated[treated["evidence.log_sha256"].isna()]
        if len(in_process):
            needles = int((in_process["evidence.needle_kept"] == 1).sum())
            got += [
                f"{span(in_process['evidence.look_ahead_tokens'])} look-ahead tokens scored besides the prompt's last",
                f"{span(in_process['evidence.kept_ranges'])} runs of kept positions",
                f"needle read whole in {needles} of {len(in_process)} trials",
            ]
        on_server = treated[treated["evidence.log_sha256"].notna()]
        if len(on_server):
            keep, threshold = (_said(on_server[f"evidence.{name}_logged"]) for name in ("keep", "threshold"))
            got.append(f"keep {keep} and threshold {threshold} by the server's log")
        rows.append(RequestRow(group.label, ", ".join(asked), ", ".join(got)))
    return rows


WINDOWS = {"positions": "original positions", "kept": "kept tokens"}
WINDOW_TAILS = {"no": "left out", "long-prompts": "read of long prompts", "always": "read of every prompt"}


def selection_words(rule: Selection) -> list[str]:
    """Every parameter of a selection rule, as a reader should see it."""
    drawn = rule.temperature > 0
    return [
        f"rule {rule.preset}" if rule.preset is not None else "default rule",
        f"look-ahead of {rule.look_ahead}, {'from' if rule.prompt_query else 'not counting'} the last prompt token"
        + (", ended by an end token" if rule.stop_at_end else ", also past an end token"),
        f"drawn at temperature {rule.temperature:g}, top-p {rule.top_p:g}" if drawn else "most likely tokens",
        f"pool {rule.pool}",
        f"chunk {rule.chunk}",
        f"head {rule.head}",
        f"tail {rule.tail}, {'charged to' if rule.tail_in_budget else 'besides'} the budget",
        f"windows count {WINDOWS[rule.windows]}, last window {WINDOW_TAILS[rule.window_tail]}",
    ]


def _said(values: "pd.Series[float]") -> str:
    return ", ".join(sorted({"not said" if pd.isna(value) else f"{value:g}" for value in values}))


@dataclass(frozen=True)
class PitfallRow:
    """A way to measure something else without noticing, and what guarded against it in this study."""

    number: int
    what: str
    checks: str
    """Of the gate, by name."""
    fine: bool
    problem: str
    trial: str


def pitfall_rows(gates: Mapping[str, GateResult]) -> list[PitfallRow]:
    """One row for each known pitfall; empty when no gate has run."""
    if not gates:
        return []
    rows = []
    for number, pitfall in PITFALLS.items():
        checks = {pair: [check for check in gate.checks if number in check.guards] for pair, gate in gates.items()}
        problems = [f"not checked for pair {pair}" for pair, found in checks.items() if not found]
        problems += [
            f"{check.name} failed for pair {pair}"
            for pair, found in checks.items()
            for check in found
            if not check.passed
        ]
        rows.append(
            PitfallRow(
                number=number,
                what=pitfall.what,
                checks=", ".join(dict.fromkeys(check.name for found in checks.values() for check in found)),
                fine=not problems,
                problem="; ".join(problems),
                trial=pitfall.trial or "",
            )
        )
    return rows


@dataclass(frozen=True)
class DecodingRow:
    label: str
    tokens: str
    dense: str
    treated: str
    ratio: str
    interval: str
    even: str


def decoding_rows(listed: Iterable[Group]) -> list[DecodingRow]:
    """How fast tokens came after the first one; says so where too few were decoded to tell."""
    rows = []
    for group in listed:
        found = [cell.decoding for cell in group.cells if cell.decoding is not None]
        if not found:
            continue
        enough = any(each.speedup is not None for each in found)
        rows.append(
            DecodingRow(
                label=group.label,
                tokens=span([count for each in found for count in (each.fewest_tokens, each.most_tokens)]),
                dense=spread(numbers.significant, [each.dense_rate for each in found]),
                treated=spread(numbers.significant, [each.treated_rate for each in found]),
                ratio=spread(numbers.ratio, [each.speedup for each in found]) if enough else "too few tokens",
                interval=group.bounds(lambda cell: cell.decoding.interval95 if cell.decoding else None)
                if enough
                else numbers.NONE,
                even=spread(_tokens, [each.even_tokens for each in found]),
            )
        )
    return rows


def _tokens(value: int | None) -> str:
    return numbers.NONE if value is None else f"{numbers.count(value)} tokens"


def dense_over_time(data: ReportData, trials: pd.DataFrame) -> list[tuple[float, float, str]]:
    """(minutes since the first trial, seconds / median of its like, series) of every dense trial.

    Like trials have the same pair, engine and prompt length. Those of plain mlx_lm, which reads all too, are left out.
    """
    if not len(trials):
        return []
    pair_of = {cell.cell: " ".join([cell.pair, *engine_name(cell)]) for cell in data.estimates.cells}
    started = pd.to_datetime(trials["started_at"], format="ISO8601", utc=True)
    drawn = pd.DataFrame(
        {
            "minutes": (started - started.min()).dt.total_seconds() / 60,
            "pair": trials["cell"].map(pair_of).fillna(trials["target"]),
            "tokens": trials["prompt.tokens"],
            "seconds": trials["seconds"],
        }
    )[(trials["requested.kind"] == ArmKind.DENSE) & (trials["outcome"] == "dense")].sort_values(
        "minutes", kind="stable"
    )
    points: list[tuple[float, float, str]] = []
    for (pair, tokens), like in drawn.groupby(["pair", "tokens"], sort=False):
        deviations = like["seconds"] / like["seconds"].median()
        name = f"{pair}, {numbers.count(int(str(tokens)))} tokens"
        points += [(minute, off, name) for minute, off in zip(like["minutes"], deviations, strict=True)]
    return points


@dataclass(frozen=True)
class Busy:
    """How much other processes had of the machine."""

    trials: int
    """Around which they had a good part of it."""
    highest_load: float
    cores: str


def busy(trials: pd.DataFrame, cores: Sequence[str]) -> Busy | None:
    """None when fewer than one trial in twenty ran on a busy machine."""
    known = [int(value) for value in cores if value.isdigit()]
    if not len(trials) or not known:
        return None
    sides = [trials[f"{side}.other_cpu_percent"].fillna(0.0) for side in ("before", "after")]
    others = np.minimum(sides[0].astype(float), sides[1].astype(float))
    load = trials["before.load_1min"].astype(float)
    count = int(((load > LOAD_PER_CORE * max(known)) | (others > OTHER_CPU_PERCENT)).sum())
    return Busy(count, float(load.max()), str(max(known))) if 20 * count >= len(trials) else None


def canary_rows(receipts: Sequence[BlockReceipt]) -> list[tuple[str, str, str, str, str, str]]:
    """(work, blocks, median, fastest, slowest, last third against first) of the canary; none below two readings."""
    seen = sorted((receipt.canary for receipt in receipts if receipt.canary), key=lambda canary: canary.started_at)
    if len(seen) < 2:
        return []
    third = max(1, len(seen) // 3)
    return [
        (
            name,
            numbers.count(len(seen)),
            numbers.seconds(median(seconds)),
            numbers.seconds(min(seconds)),
            numbers.seconds(max(seconds)),
            f"{100 * (median(seconds[-third:]) / median(seconds[:third]) - 1):+.0f} %",
        )
        for name, seconds in (
            ("product of matrices", [canary.product_seconds for canary in seen]),
            ("short dense prefill", [canary.prefill_seconds for canary in seen]),
        )
    ]


def environment(data: ReportData) -> list[tuple[str, str, bool]]:
    """(name, value, whether all trials agree) of what the processes themselves found."""
    found = data.estimates.environment
    return [(name, ", ".join(values), len(values) == 1) for name, values in sorted(found.items())]


def synthetic_models(data: ReportData) -> list[str]:
    """Models of the study whose weights are random."""
    return sorted(name for name, model in data.models.items() if model.source.kind == "synthetic")


def unlocked_models(data: ReportData) -> list[str]:
    return sorted(name for name, model in data.models.items() if not model.locked)


def roles(data: ReportData) -> dict[str, Role]:
    return {pair: role(data, pair) for pair in data.pairs}
