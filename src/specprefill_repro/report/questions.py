"""The questions that the oMLX issue ends with, each answered from the evidence of this run, known facts beside it.

An answer follows from estimates, outcomes and attributions alone. Where the run has nothing that speaks to a question,
it says so; what is known from elsewhere never becomes an answer.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from specprefill_repro.engines.history import Effect
from specprefill_repro.estimates.schema import CellEstimate
from specprefill_repro.estimates.statistics import MIN_PAIRS
from specprefill_repro.report import numbers
from specprefill_repro.report.answer import Outcome, outcome
from specprefill_repro.report.data import ReportData
from specprefill_repro.report.engines import kind_of
from specprefill_repro.report.groups import cell_label
from specprefill_repro.study.engines import IN_PROCESS, MlxLmEngine
from specprefill_repro.study.presets import PRESETS
from specprefill_repro.study.schema import Selection, Treatment
from specprefill_repro.verdicts.attribution import DRAFT
from specprefill_repro.verdicts.matching import facts_of
from specprefill_repro.wording import counted

UNANSWERED = "Cannot be answered from this run"
SERVERS = ("omlx", "vllm-mlx")
"""Kinds of engines that the issue and the paper are about."""
LISTED_CARDS = 8


@dataclass(frozen=True)
class Answered:
    asked: str
    answer: str
    """A few words."""
    evidence: tuple[str, ...]
    """Of this run, a sentence each."""
    known: tuple[str, ...]
    """From elsewhere, a sentence with its source each."""


def questions(data: ReportData) -> tuple[Answered, ...]:
    """The four of the issue, in its order; none where the study does not ask them."""
    if data.study.questions is None:
        return ()
    return (
        Answered("Is it the right draft model?", *_right_draft(data), _cards_with_a_draft(data)),
        Answered(
            "Does it take the same path as the paper's implementation?", *_same_path(data), _ways_of_falling(data)
        ),
        Answered("Are there further settings that matter?", *_settings(data), _known_settings(data)),
        Answered("Is a regression known?", *_regression(data), _changes(data)),
    )


def _ran(data: ReportData) -> list[CellEstimate]:
    """Speculative cells with trials, whether these count or not."""
    return [cell for cell in data.estimates.cells if cell.treatment is Treatment.SPECULATIVE and cell.outcomes]


# 1


def _right_draft(data: ReportData) -> tuple[str, tuple[str, ...]]:
    cells = [cell for cell in _ran(data) if cell.pairs and set(cell.outcomes) == {"sparse"}]
    if not cells:
        return UNANSWERED, ("No trial that counts ran SpecPrefill, so that none says anything about a draft.",)
    found = {cell.cell: outcome(data, cell) for cell in cells}
    slow = {
        attribution.cell
        for attribution in data.verdicts.attributions
        if any(cause.name == DRAFT and cause.applies for cause in attribution.causes)
    }
    drafts: dict[str, list[CellEstimate]] = defaultdict(list)
    for cell in cells:
        drafts[data.study.pairs[cell.pair].draft].append(cell)
    words = {draft: _word_on_draft(own, found, slow) for draft, own in drafts.items()}
    answer = "; ".join(f"{draft}: {word}" for draft, word in words.items())
    return answer, tuple(_draft_sentence(cell, found[cell.cell]) for cell in cells)


def _word_on_draft(cells: Sequence[CellEstimate], found: dict[str, Outcome], slow: set[str]) -> str:
    outcomes = {found[cell.cell] for cell in cells}
    if Outcome.GAIN in outcomes:
        return "yes" if outcomes <= {Outcome.GAIN, Outcome.INCONCLUSIVE} else "yes, in some cells"
    if outcomes & {Outcome.TIE, Outcome.LOSS}:
        at_fault = any(cell.cell in slow for cell in cells if found[cell.cell] in (Outcome.TIE, Outcome.LOSS))
        return "no, it costs too much" if at_fault else "no gain, and the draft's cost is not the reason"
    return "does not count" if outcomes == {Outcome.INVALID} else "not settled"


def _draft_sentence(cell: CellEstimate, found: Outcome) -> str:
    text = f"{cell_label(cell)}: {numbers.ratio(cell.speedup)}"
    text += f" ({_measured_from(cell)}): {found.value}"
    draft, whole = cell.treated_phases.get("draft_prefill"), sum(cell.treated_phases.values())
    if draft and whole:
        text += f"; reading with the draft took {numbers.percent(draft / whole)} of the time to first token"
    lost = f"{cell.answers_lost} of {cell.answers_dense} answers lost"
    return f"{text}; {lost if cell.answers_dense else 'dense prefill found no answer either'}."


def _measured_from(cell: CellEstimate) -> str:
    pairs = counted(len(cell.pairs), "pair")
    if len(cell.pairs) < MIN_PAIRS:
        return f"{pairs}, too few for an interval"
    return f"{numbers.bounds(cell.interval95)}, {pairs}"


def _cards_with_a_draft(data: ReportData) -> tuple[str, ...]:
    cards = [v.claim for v in data.verdicts.verdicts if v.claim.conditions.draft and v.claim.source_url]
    seen = {(card.conditions.draft, card.conditions.keep, card.unit): card for card in reversed(cards)}
    chosen = [card for card in cards if card in seen.values()][:LISTED_CARDS]
    return tuple(f"{card.statement} ({card.source})" for card in chosen)


# 2


def _same_path(data: ReportData) -> tuple[str, tuple[str, ...]]:
    by_engine: dict[str, dict[str, int]] = {}
    for cell in _ran(data):
        counts = by_engine.setdefault(cell.engine, {})
        for name, count in cell.outcomes.items():
            counts[name] = counts.get(name, 0) + count
    if not by_engine:
        return UNANSWERED, ("No trial was asked to run SpecPrefill.",)
    sentences = [_path_sentence(name, counts) for name, counts in sorted(by_engine.items())]
    sentences += [
        f"The gate of pair {pair} failed: {gate.failures}."
        for pair, gate in sorted(data.gates.items())
        if not gate.passed
    ]
    if IN_PROCESS in by_engine:
        sentences += _rule_sentences(data)
    sentences += [*data.estimates.suspicions, *_left_out(data)]
    off = sorted(name for name, counts in by_engine.items() if set(counts) != {"sparse"})
    broken = any(not gate.passed for gate in data.gates.values())
    if off:
        where = ", ".join(off)
        return ("No" if len(off) == len(by_engine) else "Not everywhere") + f": not on {where}", tuple(sentences)
    if broken or data.estimates.suspicions:
        return "Not certain: it ran, but a check of the computation failed", tuple(sentences)
    if not any(data.study.runs_on_server(name) for name in by_engine):
        return "In this package's own engine, yes; this run says nothing of a server", tuple(sentences)
    return f"Yes, on {', '.join(sorted(by_engine))}", tuple(sentences)


def _path_sentence(engine: str, counts: dict[str, int]) -> str:
    listed = ", ".join(f"{count} ended as {name}" for name, count in sorted(counts.items()))
    total = sum(counts.values())
    return f"{engine}: of {total} trials that were asked for SpecPrefill, {listed}."


def _rule_sentences(data: ReportData) -> Iterator[str]:
    """How the study's rule differs from the one in the paper's published code."""
    paper = Selection.model_validate("green2026")
    names = [name for name in Selection.model_fields if name != "preset"]
    rule = data.study.selection
    differ = [f"{name} {getattr(rule, name)} in place of {getattr(paper, name)}" for name in names]
    differ = [text for text, name in zip(differ, names, strict=True) if getattr(rule, name) != getattr(paper, name)]
    same = f"scores and selects as the paper's published code does ({PRESETS['green2026'].sources[0]})"
    yield f"{IN_PROCESS} {same}" + (f", but for {'; '.join(differ)}." if differ else ".")


def _left_out(data: ReportData) -> Iterator[str]:
    for text in data.study.left_out:
        yield f"Not measured: {text}."


def _ways_of_falling(data: ReportData) -> tuple[str, ...]:
    if data.history is None:
        return ()
    kinds = {engine.kind for engine in data.study.engines.values()} | _kinds_left_out(data)
    return tuple(
        f"{', '.join(_range(each.engine, each.since, each.before) for each in fallback.where)}: {fallback.sentence} "
        f"({'; '.join(fallback.sources)})"
        for fallback in data.history.fallbacks
        if fallback.effect in (Effect.DENSE, Effect.WRONG) and any(each.engine in kinds for each in fallback.where)
    )


def _range(engine: str, since: str, before: str | None) -> str:
    return f"{engine} from {since} on" + (f", before {before}" if before else "")


# 3


def _settings(data: ReportData) -> tuple[str, tuple[str, ...]]:
    cells = _ran(data)
    varied: dict[str, list[tuple[bool, str]]] = {}
    for one, other in combinations(cells, 2):
        setting = _only_difference(data, one, other)
        if setting is not None and (compared := _compared(data, one, other)) is not None:
            varied.setdefault(setting, []).append(compared)
    if not varied:
        return UNANSWERED, ("No two cells that can be compared differ in one setting alone.",)
    matter = [setting for setting, pairs in varied.items() if any(differs for differs, _ in pairs)]
    sentences = tuple(f"{setting}: {text}" for setting, pairs in varied.items() for _, text in _few(pairs))
    others = [setting for setting in varied if setting not in matter]
    if matter:
        return f"Yes: {', '.join(matter)}", sentences
    return f"None of those tried shows a difference beyond the noise: {', '.join(others)}", sentences


def _few(pairs: list[tuple[bool, str]]) -> list[tuple[bool, str]]:
    """Those that differ first; at most four a setting."""
    return sorted(pairs, key=lambda pair: not pair[0])[:4]


def _only_difference(data: ReportData, one: CellEstimate, other: CellEstimate) -> str | None:
    """The one setting in which two cells differ; None when it is none or more than one."""
    differ = [
        name
        for name, values in {
            "draft": (data.study.pairs[one.pair].draft, data.study.pairs[other.pair].draft),
            "target": (data.study.pairs[one.pair].target, data.study.pairs[other.pair].target),
            "keep rate": (one.nominal_keep, other.nominal_keep),
            "prompt length": (one.length, other.length),
            "selection rule": (one.rule, other.rule),
            "engine": (kind_of(data, one.engine), kind_of(data, other.engine)),
            "threshold": (_threshold(data, one.engine), _threshold(data, other.engine)),
        }.items()
        if values[0] != values[1]
    ]
    if {"engine"} <= set(differ) <= {"engine", "threshold", "selection rule"}:
        # A server has a threshold and a rule of its own; this package's engine has no threshold.
        return "engine"
    return differ[0] if len(differ) == 1 and differ[0] != "target" else None


def _threshold(data: ReportData, engine: str) -> int | None:
    settings = data.study.engines.get(engine)
    return None if settings is None or isinstance(settings, MlxLmEngine) else settings.threshold


def _compared(data: ReportData, one: CellEstimate, other: CellEstimate) -> tuple[bool, str] | None:
    """Whether two cells differ, by how trials ended or by disjoint intervals, and a sentence; None: nothing told."""
    text = f"{_named(data, one)} against {_named(data, other)}"
    if set(one.outcomes) != set(other.outcomes):
        ends = [" and ".join(sorted(cell.outcomes)) for cell in (one, other)]
        return True, f"{text}: trials ended as {ends[0]} against {ends[1]}."
    if one.interval95 is None or other.interval95 is None:
        return None
    apart = one.interval95.high < other.interval95.low or other.interval95.high < one.interval95.low
    shown = [f"{numbers.ratio(c.speedup)} ({numbers.bounds(c.interval95)})" for c in (one, other)]
    return apart, f"{text}: {shown[0]} against {shown[1]}" + ("." if apart else ", not told apart.")


def _named(data: ReportData, cell: CellEstimate) -> str:
    threshold = _threshold(data, cell.engine)
    rule = f" · {cell.rule}" if cell.rule else ""
    label = cell_label(cell)
    return label + (rule if rule not in label else "") + (f" · threshold {threshold:,}" if threshold else "")


def _known_settings(data: ReportData) -> tuple[str, ...]:
    cards = [v.claim for v in data.verdicts.verdicts if v.claim.note and "threshold" in v.claim.note]
    listed = [f"{card.statement} {(card.note or '').split(';')[0].capitalize()}. ({card.source})" for card in cards]
    return tuple(listed[: 2 * LISTED_CARDS])


# 4


def _regression(data: ReportData) -> tuple[str, tuple[str, ...]]:
    facts = facts_of(data.estimates, data.models)
    servers = sorted({cell.engine for cell in _ran(data) if data.study.runs_on_server(cell.engine)})
    if not servers:
        reason = "No server ran a trial, and a regression is one of a server's releases."
        return UNANSWERED, (reason, *_left_out(data))
    sentences: list[str] = []
    hit: list[str] = []
    unexplained: list[str] = []
    for name in servers:
        engine = facts.engines.get(name)
        counts: dict[str, int] = {}
        for cell in _ran(data):
            if cell.engine == name:
                for ended, count in cell.outcomes.items():
                    counts[ended] = counts.get(ended, 0) + count
        release = f"{engine.kind} {engine.version or 'of unknown version'}" if engine else name
        known = _known_of(data, engine.kind, engine.version) if engine and engine.version else []
        if set(counts) == {"sparse"}:
            sentences.append(f"{name} ({release}): all {counts['sparse']} trials ran SpecPrefill.")
            continue
        (hit if known else unexplained).append(release)
        sentences.append(f"{name} ({release}): {_path_sentence(name, counts).split(': ', 1)[1]}")
        sentences += [f"Known of {release}: {text}" for text in known]
    if hit:
        return f"Yes, of {', '.join(sorted(set(hit)))}, and SpecPrefill did not run there", tuple(sentences)
    if unexplained:
        names = ", ".join(sorted(set(unexplained)))
        return f"None is known of {names}, yet SpecPrefill did not run there", tuple(sentences)
    return "None shows here: SpecPrefill ran whenever a server was asked for it", tuple(sentences)


def _known_of(data: ReportData, kind: str, version: str) -> list[str]:
    if data.history is None:
        return []
    return [
        f"{fallback.sentence} Guard: {fallback.guard}."
        for fallback in data.history.fallbacks
        # What is there in every release, by design, is no regression.
        if fallback.effect in (Effect.DENSE, Effect.WRONG)
        and any(each.holds(kind, version) and each.before is not None for each in fallback.where)
    ]


def _changes(data: ReportData) -> tuple[str, ...]:
    if data.history is None:
        return ()
    return tuple(
        f"{change.engine} {change.version} ({change.date}{f', commit {change.commit}' if change.commit else ''}"
        f"{f', pull request {change.pull_request}' if change.pull_request else ''}) {change.effect}: {change.sentence}"
        for change in data.history.changes
        if change.engine in SERVERS
    )


def _kinds_left_out(data: ReportData) -> set[str]:
    return {kind for kind in SERVERS for text in data.study.left_out if text.startswith(kind)}
