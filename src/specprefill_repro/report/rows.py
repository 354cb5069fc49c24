"""The rows of the page's tables: plain values taken from the data, no formatting beyond words and counts."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from specprefill_repro.estimates.schema import CellEstimate
from specprefill_repro.gate.pitfalls import PITFALLS
from specprefill_repro.gate.schema import GateResult
from specprefill_repro.report import numbers
from specprefill_repro.report.answer import Role, role
from specprefill_repro.report.data import ReportData
from specprefill_repro.study.engines import IN_PROCESS
from specprefill_repro.study.schema import Treatment
from specprefill_repro.trials.schema import Evidence, ServerEvidence, TrialRecord
from specprefill_repro.verdicts.schema import ClaimKind, Rule, Verdict, Word

SYMBOLS = {
    Word.REPRODUCED: ("✔", "good"),
    Word.EXCEEDED: ("▲", "good"),
    Word.SMALLER: ("◐", "warn"),
    Word.TIED: ("=", "bad"),
    Word.SLOWER: ("▼", "bad"),
    Word.NOT_REPRODUCED: ("✖", "bad"),
    Word.INVALID: ("⊘", "bad"),
    Word.INCONCLUSIVE: ("?", "warn"),
    Word.NOT_COMPARABLE: ("◇", "none"),
    Word.NOT_RUN: ("○", "none"),
}
"""The shape and the colour class that go with each verdict's word."""

EXPECTATION_WORDS = {Word.REPRODUCED: "as expected", Word.NOT_REPRODUCED: "not as expected"}
"""An expectation of ours is not "reproduced"; the other words fit either kind of claim."""


def short(record_id: str) -> str:
    """The part of a record's hash that its row's anchor holds."""
    return record_id[:12]


def cell_label(cell: CellEstimate) -> str:
    """Such as `main · 1,024 tokens · keep 0.2`; controls say what they are, other engines than ours their name."""
    parts = [cell.pair, *_engine(cell), f"{numbers.count(cell.length)} tokens"]
    if cell.treatment is Treatment.PLACEBO:
        return " · ".join([*parts, "placebo"])
    return " · ".join([*parts, f"keep {numbers.keep(cell.nominal_keep)}", *_control(cell)])


def chart_label(cell: CellEstimate) -> str:
    """The same, short enough for an axis."""
    if cell.treatment is Treatment.PLACEBO:
        return place_label(cell, "placebo")
    kind = cell.rule or "keep" if cell.treatment is Treatment.SPECULATIVE else cell.treatment.value
    return place_label(cell, f"{kind} {numbers.keep(cell.nominal_keep)}")


def place_label(cell: CellEstimate, what: str) -> str:
    """Such as `main 1,024, keep 0.2`, with the engine where it is not this package's own."""
    where = " ".join([cell.pair, *_engine(cell), numbers.count(cell.length)])
    return f"{where}, {what}"


def _engine(cell: CellEstimate) -> list[str]:
    return [] if cell.engine == IN_PROCESS else [cell.engine]


def _control(cell: CellEstimate) -> list[str]:
    rule = [] if cell.rule is None else [cell.rule]
    return rule if cell.treatment is Treatment.SPECULATIVE else [cell.treatment.value, *rule]


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
    own = verdict.claim.kind is ClaimKind.EXPECTATION
    symbol, colour = SYMBOLS[verdict.word]
    unit = verdict.claim.unit
    interval = verdict.interval95
    return VerdictRow(
        verdict=verdict,
        word=EXPECTATION_WORDS.get(verdict.word, verdict.word.value) if own else verdict.word.value,
        symbol=symbol,
        colour=colour,
        expected=expected(verdict),
        measured=numbers.with_unit(verdict.measured, unit, interval),
        interval=numbers.bounds(interval)
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


def evidence_row(label: str, treatment: Treatment, treated: bool, records: Sequence[TrialRecord]) -> EvidenceRow:
    """Sum up the evidence of like trials; `problem` names what does not fit what was asked for."""
    evidence = [record.evidence for record in records if isinstance(record.evidence, Evidence)]
    if len(evidence) < len(records):
        return _server_evidence_row(label, treatment, treated, records)
    sparse = treated and treatment is not Treatment.PLACEBO
    wanted = "sparse" if sparse else "dense"
    # A model without rotary embeddings has no positions to see.
    matching = sum(e.rotary_positions_sha256 == e.kept_sha256 or e.rotary_modules_expected == 0 for e in evidence)
    problems = []
    others = sorted({record.outcome for record in records if record.outcome != wanted})
    if others:
        problems.append(f"asked for {wanted}, ran {', '.join(others)}")
    if sparse and matching < len(records):
        problems.append("rotary positions are not the kept ones")
    expected = [e for e in evidence if sparse and e.rotary_modules_expected != 0]
    if any(e.rotary_modules != e.rotary_modules_restored for e in evidence) or any(
        not e.rotary_modules for e in expected
    ):
        problems.append("attention modules not patched or not restored")
    if any(e.cache_tokens_before or e.draft_cache_tokens_before for e in evidence):
        problems.append("the cache was not empty")
    if any(e.cache_tokens_after != e.tokens_kept for e in evidence):
        problems.append("the cache does not hold the kept tokens")
    if not sparse and any(e.tokens_kept != r.prompt.tokens for e, r in zip(evidence, records, strict=True)):
        problems.append("dense prefill did not read the whole prompt")
    return EvidenceRow(
        label=label,
        arm=f"{treatment}" if treated else "dense",
        trials=len(records),
        outcomes=_outcomes(records),
        scored=span(e.tokens_scored for e in evidence),
        kept=f"{span(e.tokens_kept for e in evidence)} of {span(r.prompt.tokens for r in records)}",
        share=share(records),
        rotary=f"{matching} of {len(records)}" if any(e.rotary_positions_sha256 for e in evidence) else "not wrapped",
        modules=f"{span(e.rotary_modules for e in evidence)} / {span(e.rotary_modules_restored for e in evidence)}",
        cache=span(e.cache_tokens_before + (e.draft_cache_tokens_before or 0) for e in evidence),
        dtypes=", ".join(sorted({f"{e.key_dtype} / {e.logits_dtype}" for e in evidence})),
        fine=not problems,
        problem="; ".join(problems),
    )


def _outcomes(records: Sequence[TrialRecord]) -> str:
    counts: dict[str, int] = defaultdict(int)
    for record in records:
        counts[record.outcome] += 1
    return ", ".join(f"{number} of {len(records)} {outcome}" for outcome, number in sorted(counts.items()))


def _server_evidence_row(
    label: str, treatment: Treatment, treated: bool, records: Sequence[TrialRecord]
) -> EvidenceRow:
    """What a server's log and answers prove; positions, modules and types it does not tell."""
    evidence = [record.evidence for record in records if isinstance(record.evidence, ServerEvidence)]
    sparse = treated and treatment is not Treatment.PLACEBO
    wanted = "sparse" if sparse else "dense"
    problems = []
    others = sorted({record.outcome for record in records if record.outcome != wanted})
    if others:
        problems.append(f"asked for {wanted}, ran {', '.join(others)}")
    if any(e.prompt_tokens != r.prompt.tokens for e, r in zip(evidence, records, strict=True)):
        counted = span(e.prompt_tokens for e in evidence)
        problems.append(f"the server counted {counted} prompt tokens, not {span(r.prompt.tokens for r in records)}")
    if any(e.cache_tokens_before for e in evidence):
        problems.append("prompt tokens came from a cache")
    return EvidenceRow(
        label=label,
        arm=f"{treatment}" if treated else "dense",
        trials=len(records),
        outcomes=_outcomes(records),
        scored=span(e.tokens_scored for e in evidence),
        kept=f"{span(e.tokens_kept for e in evidence)} of {span(r.prompt.tokens for r in records)}",
        share=share(records),
        rotary=numbers.NONE,
        modules=numbers.NONE,
        cache=span(e.cache_tokens_before for e in evidence),
        dtypes=numbers.NONE,
        fine=not problems,
        problem="; ".join(problems),
    )


def span(values: Iterable[int]) -> str:
    """One number, or the smallest and the largest."""
    seen = sorted(set(values))
    if len(seen) == 1:
        return numbers.count(seen[0])
    return f"{numbers.count(seen[0])} to {numbers.count(seen[-1])}"


def share(records: Sequence[TrialRecord]) -> str:
    """The share of prompt tokens that the target read, in percent."""
    seen = sorted({round(100 * r.evidence.tokens_kept / r.prompt.tokens) for r in records})
    text = f"{seen[0]}" if len(seen) == 1 else f"{seen[0]} to {seen[-1]}"
    return f"{text}{numbers.SPACE}%"


@dataclass(frozen=True)
class Listed:
    """A record with its content hash."""

    id: str
    record: TrialRecord


def by_cell(data: ReportData, listed: Sequence[Listed]) -> dict[str, list[Listed]]:
    """Records by cell, cells in the study's order, records in the order in which they ran."""
    cells: dict[str, list[Listed]] = {cell.cell: [] for cell in data.estimates.cells}
    for item in sorted(listed, key=lambda item: (item.record.block, item.record.position)):
        cells.setdefault(item.record.cell, []).append(item)
    return {cell: items for cell, items in cells.items() if items}


def evidence_rows(data: ReportData, cells: dict[str, list[Listed]]) -> list[EvidenceRow]:
    """One row for the treated arm of each cell; then one for all baselines of a pair at one length."""
    estimates = {cell.cell: cell for cell in data.estimates.cells}
    rows = []
    dense: dict[str, list[TrialRecord]] = defaultdict(list)
    for name, items in cells.items():
        estimate = estimates.get(name)
        if estimate is None:
            continue
        treated = [item.record for item in items if item.record.treated]
        if treated:
            rows.append(evidence_row(cell_label(estimate), estimate.treatment, True, treated))
        where = [estimate.pair, *_engine(estimate), f"{numbers.count(estimate.length)} tokens"]
        place = " · ".join([*where, "baselines"])
        dense[place] += [item.record for item in items if not item.record.treated]
    return rows + [evidence_row(name, Treatment.PLACEBO, False, records) for name, records in dense.items() if records]


@dataclass(frozen=True)
class RequestRow:
    label: str
    asked: str
    got: str


def request_rows(data: ReportData, cells: dict[str, list[Listed]]) -> list[RequestRow]:
    """For an engine's author: the parameters that were requested, and what the evidence says was effective."""
    estimates = {cell.cell: cell for cell in data.estimates.cells}
    rows = []
    for name, items in cells.items():
        records = [item.record for item in items if item.record.treated]
        estimate = estimates.get(name)
        if not records or estimate is None or estimate.treatment is Treatment.PLACEBO:
            continue
        arm = records[0].requested
        asked = [f"{arm.kind}", f"keep {numbers.keep(arm.keep)}"]
        if arm.selection is not None:
            asked += [f"{key.replace('_', '-')} {value}" for key, value in arm.selection.model_dump().items()]
        got = [", ".join(sorted({record.outcome for record in records})), f"real share {share(records)}"]
        own = [record.evidence for record in records if isinstance(record.evidence, Evidence)]
        if own:
            got += [
                f"{span(len(e.look_ahead_tokens) for e in own)} look-ahead tokens",
                f"{span(len(e.kept_ranges) for e in own)} runs of kept positions",
                f"needle kept in {sum(e.needle_kept == 1 for e in own)} of {len(own)}",
            ]
        servers = [record.evidence for record in records if isinstance(record.evidence, ServerEvidence)]
        if servers:
            got += [
                f"keep {_said(e.keep_logged for e in servers)} and threshold "
                f"{_said(e.threshold_logged for e in servers)} by the server's log"
            ]
        rows.append(RequestRow(cell_label(estimate), ", ".join(asked), ", ".join(got)))
    return rows


def _said(values: Iterable[float | None]) -> str:
    return ", ".join(sorted({"not said" if value is None else f"{value:g}" for value in values}))


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


def decoding_rows(cells: Sequence[CellEstimate]) -> list[DecodingRow]:
    """How fast tokens came after the first one; says so where too few were decoded to tell."""
    rows = []
    for cell in cells:
        found = cell.decoding
        if found is None:
            continue
        enough = found.speedup is not None
        rows.append(
            DecodingRow(
                label=cell_label(cell),
                tokens=span((found.fewest_tokens, found.most_tokens)),
                dense=numbers.significant(found.dense_rate),
                treated=numbers.significant(found.treated_rate),
                ratio=numbers.ratio(found.speedup, found.interval95) if enough else "too few tokens",
                interval=numbers.bounds(found.interval95),
            )
        )
    return rows


def minutes(record: TrialRecord, start: datetime) -> float:
    return (started(record) - start).total_seconds() / 60


def started(record: TrialRecord) -> datetime:
    return datetime.fromisoformat(record.started_at.replace("Z", "+00:00"))


def dense_over_time(data: ReportData) -> list[tuple[float, float, str]]:
    """(minutes since the first trial, deviation from the median of its like, series) of every dense trial.

    Like trials have the same pair and the same prompt length.
    """
    records = data.records
    if not records:
        return []
    pair_of = {cell.cell: cell.pair for cell in data.estimates.cells}
    start = min(started(record) for record in records)
    groups: dict[str, list[TrialRecord]] = defaultdict(list)
    for record in sorted(records, key=started):
        if record.outcome == "dense":
            groups[f"{pair_of.get(record.cell, record.target)}, {numbers.count(record.prompt.tokens)} tokens"].append(
                record
            )
    points = []
    for name, group in groups.items():
        median = statistics.median(record.seconds for record in group)
        points += [(minutes(record, start), record.seconds / median - 1, name) for record in group]
    return points


def environment(records: Sequence[TrialRecord]) -> list[tuple[str, str, bool]]:
    """(name, value, whether all trials agree) of what the processes themselves found."""
    found: dict[str, set[str]] = defaultdict(set)
    for record in records:
        for name, value in record.environment.items():
            found[name].add(value)
    return [(name, ", ".join(sorted(values)), len(values) == 1) for name, values in sorted(found.items())]


def synthetic_models(data: ReportData) -> list[str]:
    """Models of the study whose weights are random."""
    return sorted(name for name, model in data.models.items() if model.source.kind == "synthetic")


def unlocked_models(data: ReportData) -> list[str]:
    return sorted(name for name, model in data.models.items() if not model.locked)


def roles(data: ReportData) -> dict[str, Role]:
    return {pair: role(data, pair) for pair in data.pairs}
