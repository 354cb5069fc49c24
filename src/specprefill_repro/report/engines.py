"""Engines side by side: what each did when it was asked for SpecPrefill, by the evidence of its trials.

Three questions: who ran it, and who read the whole prompt without a word; is oMLX's path equivalent to the paper's
implementation; in which releases does SpecPrefill start or stop working.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from specprefill_repro.engines.history import EngineHistory, release_key
from specprefill_repro.engines.server_evidence import CHUNK
from specprefill_repro.estimates.agreement import FEWEST_PROMPTS, GAP, suspicions
from specprefill_repro.estimates.schema import Agreement, CellEstimate
from specprefill_repro.report import numbers
from specprefill_repro.report.data import ReportData
from specprefill_repro.report.rows import span
from specprefill_repro.study.engines import IN_PROCESS, VllmMlxEngine
from specprefill_repro.study.plan import ArmKind
from specprefill_repro.study.schema import Treatment
from specprefill_repro.trials.schema import ServerEvidence, TrialRecord
from specprefill_repro.trials.table import Trials

PAPER_KIND, PAPER_SINCE, PAPER_BEFORE = "vllm-mlx", "0.2.7", "0.3.0"
"""Releases with the implementation of the paper about Apple silicon (config/engine_history.yaml)."""
OMLX = "omlx"

Records = dict[str, list[TrialRecord]]
"""By cell; of releases, by version."""


class Ran(StrEnum):
    """What came of asking for SpecPrefill."""

    SPARSE = "SpecPrefill ran"
    DENSE = "read the whole prompt"
    OTHER = "not as asked"
    """Part of the prompt was read, but the evidence says that it was not what was asked for."""
    MIXED = "not always"
    NOTHING = "not run"


LOOKS = {
    Ran.SPARSE: ("✔", "good"),
    Ran.DENSE: ("✖", "bad"),
    Ran.OTHER: ("✖", "bad"),
    Ran.MIXED: ("◐", "warn"),
    Ran.NOTHING: ("○", "none"),
}
"""Shape and colour class of each."""


@dataclass(frozen=True)
class Mark:
    """A word with its shape and colour, as the page shows it."""

    word: str
    symbol: str
    colour: str


def mark(ran: Ran) -> Mark:
    return Mark(ran.value, *LOOKS[ran])


@dataclass(frozen=True)
class EngineRow:
    """One engine at one length and keep rate."""

    engine: str
    version: str
    keep: str
    dense_seconds: str
    asked_seconds: str
    """Of the trials that asked for SpecPrefill, whatever they ran."""
    speedup: str
    """Of the pairs that count."""
    ran: Mark
    outcomes: str
    scored: str
    read: str
    dense_answers: str
    """Dense answers that are our engine's dense ones."""
    sparse_answers: str
    """Sparse answers that are our engine's dense ones."""
    sparse_answers_ours: str
    """Sparse answers that are our engine's sparse ones."""


@dataclass(frozen=True)
class EngineTable:
    """The engines that one pair was measured on at one length."""

    title: str
    rows: tuple[EngineRow, ...]


@dataclass(frozen=True)
class Condition:
    """One thing that two equivalent paths have in common."""

    what: str
    where: str
    """Length and keep rate."""
    here: str
    there: str
    holds: bool | None
    """None: the trials do not tell."""


@dataclass(frozen=True)
class Equivalence:
    """Whether one oMLX does what the paper's implementation does, as far as both can be seen from outside."""

    engine: str
    answer: Mark
    sentence: str
    conditions: tuple[Condition, ...]


@dataclass(frozen=True)
class KnownChange:
    sentence: str
    source: str


@dataclass(frozen=True)
class VersionRow:
    """One release of a server, and what it does."""

    engine: str
    version: str
    ran: Mark
    trials: str
    turn: str
    """Whether SpecPrefill starts or stops between the release of the row before and this one."""
    changes: tuple[KnownChange, ...]
    """Known ones since the row before; of the first row all before it."""


@dataclass(frozen=True)
class EngineSection:
    summary: str
    """Of the servers, in one sentence or two."""
    tables: tuple[EngineTable, ...]
    silent: tuple[str, ...]
    """Who did not run SpecPrefill although it answered as usual, in words."""
    suspicions: tuple[str, ...]
    equivalences: tuple[Equivalence, ...]
    versions: tuple[VersionRow, ...]


def engine_section(data: ReportData, trials: Trials) -> EngineSection | None:
    """What the page says about engines; None where the study asks only one for SpecPrefill."""
    cells = [cell for cell in data.estimates.cells if cell.treatment is Treatment.SPECULATIVE]
    if len({cell.engine for cell in cells}) < 2:
        return None
    records = {cell.cell: trials.of_cell(cell.cell) for cell in cells}
    asked = {cell: [r for r in own if r.requested.kind is ArmKind.SPECULATIVE] for cell, own in records.items()}
    return EngineSection(
        summary=_summary(data, cells, asked),
        tables=tuple(_tables(data, cells, records)),
        silent=tuple(_silent(data, cells, asked)),
        suspicions=data.estimates.suspicions,
        equivalences=tuple(_equivalences(data, cells, asked)),
        versions=tuple(_versions(data, asked)),
    )


def what_ran(records: Iterable[TrialRecord]) -> Ran:
    """What trials that asked for SpecPrefill came out as, from their evidence."""
    seen = {_ran(record) for record in records}
    if not seen:
        return Ran.NOTHING
    return seen.pop() if len(seen) == 1 else Ran.MIXED


def _ran(record: TrialRecord) -> Ran:
    if record.outcome == "sparse":
        return Ran.SPARSE
    return Ran.DENSE if record.evidence.tokens_kept == record.prompt.tokens else Ran.OTHER


def kind_of(data: ReportData, engine: str) -> str:
    """The kind of the engine that the study calls so."""
    settings = data.study.engines.get(engine)
    return IN_PROCESS if settings is None else settings.kind


def _version_of(record: TrialRecord) -> str:
    return record.environment.get(record.engine, "version not recorded")


def _engine_version(data: ReportData, engine: str, records: Iterable[TrialRecord]) -> str:
    """Such as `vllm-mlx 0.2.9`: what its processes found; what the study names where nothing ran."""
    kind = kind_of(data, engine)
    found = sorted({_version_of(record) for record in records})
    settings = data.study.engines.get(engine)
    if not found and isinstance(settings, VllmMlxEngine):
        found = [settings.version]
    return f"{kind} {', '.join(found)}".rstrip()


def _named(data: ReportData, engine: str, records: Iterable[TrialRecord]) -> str:
    """The engine with its version, which its name may already be."""
    version = _engine_version(data, engine, records)
    return version if engine in (version, version.replace(" ", "-")) else f"{engine} ({version})"


def _servers(data: ReportData, cells: Sequence[CellEstimate]) -> list[str]:
    return [name for name in dict.fromkeys(cell.engine for cell in cells) if data.study.runs_on_server(name)]


def _of_engine(cells: Sequence[CellEstimate], asked: Records, engine: str) -> list[TrialRecord]:
    return [record for cell in cells if cell.engine == engine for record in asked[cell.cell]]


def _summary(data: ReportData, cells: Sequence[CellEstimate], asked: Records) -> str:
    said = []
    for engine in _servers(data, cells):
        records = _of_engine(cells, asked, engine)
        counts = Counter(_ran(record) for record in records)
        what = ", ".join(f"{ran.value} in {counts[ran]} of {len(records)} trials" for ran in Ran if counts[ran])
        said.append(f"{_named(data, engine, records)}: {what or 'not run'}")
    return "; ".join(said)


def _tables(data: ReportData, cells: Sequence[CellEstimate], records: Records) -> Iterable[EngineTable]:
    """One for each pair and length that ran on more than one engine."""
    groups: dict[tuple[str, int], list[CellEstimate]] = {}
    for cell in cells:
        groups.setdefault((cell.pair, cell.length), []).append(cell)
    for (pair, length), group in groups.items():
        if len({cell.engine for cell in group}) > 1:
            rows = tuple(_row(data, cell, group, records[cell.cell]) for cell in group)
            yield EngineTable(f"{pair}, {numbers.count(length)} tokens", rows)


def _row(
    data: ReportData, cell: CellEstimate, group: Sequence[CellEstimate], records: Sequence[TrialRecord]
) -> EngineRow:
    dense = [r for r in records if r.requested.kind is ArmKind.DENSE and r.outcome == "dense"]
    asked = [r for r in records if r.requested.kind is ArmKind.SPECULATIVE]
    agreed = {found.arm: found for found in data.estimates.agreements if found.cell == cell.cell}
    in_dense, in_sparse = agreed.get(ArmKind.DENSE), agreed.get(ArmKind.SPECULATIVE)
    if data.study.runs_on_server(cell.engine):
        dense_answers = _share(in_dense.with_our_dense if in_dense else None, in_dense)
        sparse_answers = _share(in_sparse.with_our_dense if in_sparse else None, in_sparse)
        sparse_ours = _share(in_sparse.with_our_speculative if in_sparse else None, in_sparse)
    else:
        others = {other.cell for other in group if other.nominal_keep == cell.nominal_keep}
        beside = [a for a in data.estimates.agreements if a.cell in others and a.ours_among_themselves is not None]
        dense_answers = sparse_ours = "(ours)"
        sparse_answers = _share(beside[0].ours_among_themselves, beside[0]) if beside else numbers.NONE
    return EngineRow(
        engine=cell.engine if cell.rule is None else f"{cell.engine} ({cell.rule})",
        version=_engine_version(data, cell.engine, records),
        keep=numbers.keep(cell.nominal_keep),
        dense_seconds=_seconds(dense),
        asked_seconds=_seconds(asked),
        speedup=numbers.ratio(cell.speedup) if cell.pairs else "no pair counts",
        ran=mark(what_ran(asked)),
        outcomes=_outcomes(asked),
        scored=span([r.evidence.tokens_scored for r in asked]) if asked else numbers.NONE,
        read=f"{span([r.evidence.tokens_kept for r in asked])} of {span([r.prompt.tokens for r in asked])}"
        if asked
        else numbers.NONE,
        dense_answers=dense_answers,
        sparse_answers=sparse_answers,
        sparse_answers_ours=sparse_ours,
    )


def _share(value: float | None, found: Agreement | None) -> str:
    return numbers.NONE if value is None or found is None else f"{numbers.percent(value)} of {found.trials}"


def _seconds(records: Sequence[TrialRecord]) -> str:
    return numbers.seconds(median(record.seconds for record in records)) if records else numbers.NONE


def _outcomes(records: Sequence[TrialRecord]) -> str:
    counts = Counter(record.outcome for record in records)
    return ", ".join(f"{number} of {len(records)} {outcome}" for outcome, number in sorted(counts.items()))


def _silent(data: ReportData, cells: Sequence[CellEstimate], asked: Records) -> Iterable[str]:
    for engine in _servers(data, cells):
        records = _of_engine(cells, asked, engine)
        other = Counter((_ran(record), record.outcome) for record in records if record.outcome != "sparse")
        for (ran, outcome), number in sorted(other.items()):
            yield f"{_named(data, engine, records)}: {ran.value} in {number} of {len(records)} trials; {outcome}"


def _equivalences(data: ReportData, cells: Sequence[CellEstimate], asked: Records) -> Iterable[Equivalence]:
    """One for each oMLX of the study; where there is none, one that says so."""
    missing = Mark("not run", "○", "none")
    candidates = [engine for engine in _servers(data, cells) if kind_of(data, engine) == OMLX]
    if not candidates:
        yield Equivalence(
            OMLX, missing, "No oMLX was given to this study, so nothing was compared (docs/omlx.md says how).", ()
        )
        return
    papers = [e for e in _servers(data, cells) if _is_paper(data, e, _of_engine(cells, asked, e))]
    for engine in candidates:
        name = _named(data, engine, _of_engine(cells, asked, engine))
        twins = [
            (mine, other)
            for mine in cells
            for other in cells
            if mine.engine == engine
            and other.engine in papers
            and (mine.pair, mine.length, mine.nominal_keep) == (other.pair, other.length, other.nominal_keep)
            and asked[mine.cell]
            and asked[other.cell]
        ]
        if not twins:
            yield Equivalence(
                name,
                missing,
                f"It has no trial beside one of {PAPER_KIND} {PAPER_SINCE} to 0.2.9, which is the paper's "
                "implementation, at the same length and keep rate.",
                (),
            )
            continue
        yield _equivalence(data, name, twins, asked)


def _is_paper(data: ReportData, engine: str, records: Sequence[TrialRecord]) -> bool:
    if kind_of(data, engine) != PAPER_KIND:
        return False
    try:
        found = {release_key(_version_of(record)) for record in records}
    except ValueError:
        return False
    return bool(found) and all(release_key(PAPER_SINCE) <= key < release_key(PAPER_BEFORE) for key in found)


def _equivalence(
    data: ReportData,
    name: str,
    twins: Sequence[tuple[CellEstimate, CellEstimate]],
    asked: Records,
) -> Equivalence:
    conditions = [condition for mine, other in twins for condition in _conditions(data, mine, other, asked)]
    failed = [condition for condition in conditions if condition.holds is False]
    open_ = [condition for condition in conditions if condition.holds is None]
    if failed:
        answer = Mark("no", "✖", "bad")
        sentence = f"Does not hold for both: {_listed(failed)}."
    elif open_:
        answer = Mark("not settled", "?", "warn")
        sentence = f"Nothing differs, but these trials do not tell: {_listed(open_)}."
    else:
        answer = Mark("yes, as far as can be seen from outside", "✔", "good")
        sentence = "Both scored whole prompts, read as many tokens, and answered as this package's own engine does."
    return Equivalence(name, answer, sentence, tuple(conditions))


def _listed(conditions: Sequence[Condition]) -> str:
    return "; ".join(dict.fromkeys(condition.what for condition in conditions))


def _conditions(data: ReportData, mine: CellEstimate, other: CellEstimate, asked: Records) -> Iterable[Condition]:
    at = f"{numbers.count(mine.length)} tokens, keep {numbers.keep(mine.nominal_keep)}"
    here, there = asked[mine.cell], asked[other.cell]
    both = what_ran(here) is what_ran(there) is Ran.SPARSE
    yield Condition("SpecPrefill runs whenever it is asked for", at, _outcomes(here), _outcomes(there), both)
    yield Condition(
        "the draft scores the whole prompt",
        at,
        span([r.evidence.tokens_scored for r in here]),
        span([r.evidence.tokens_scored for r in there]),
        all(r.evidence.tokens_scored == r.prompt.tokens for r in (*here, *there)) if both else None,
    )
    # The last chunk may be a short one, and oMLX reads the last prompt token besides.
    kept = [r.evidence.tokens_kept for r in (*here, *there)]
    yield Condition(
        f"as many prompt tokens are read, give or take a chunk of {CHUNK}",
        at,
        span([r.evidence.tokens_kept for r in here]),
        span([r.evidence.tokens_kept for r in there]),
        max(kept) - min(kept) <= CHUNK if both else None,
    )
    mine_found, other_found = (
        {a.arm: a for a in data.estimates.agreements if a.cell == cell.cell} for cell in (mine, other)
    )
    for arm, what in (
        (ArmKind.DENSE, "dense answers are those of this package's own engine"),
        (ArmKind.SPECULATIVE, "sparse answers change no more than those of this package's own engine"),
    ):
        yield Condition(
            what,
            at,
            _agreed(mine_found.get(arm)),
            _agreed(other_found.get(arm)),
            _answers_fit(mine_found, other_found, arm),
        )


def _agreed(found: Agreement | None) -> str:
    return "no prompt in common" if found is None else f"{numbers.percent(found.with_our_dense)} of {found.trials}"


def _answers_fit(mine: dict[str, Agreement], other: dict[str, Agreement], arm: ArmKind) -> bool | None:
    """Whether neither server's answers raise a doubt (estimates/agreement.py); None: too few, or nothing to compare."""
    needed = (ArmKind.DENSE,) if arm is ArmKind.DENSE else (ArmKind.DENSE, ArmKind.SPECULATIVE)
    if any(
        found.get(each) is None or found[each].trials < FEWEST_PROMPTS for found in (mine, other) for each in needed
    ):
        return None
    if arm is ArmKind.DENSE:
        return all(found[arm].with_our_dense >= GAP for found in (mine, other))
    if any(found[arm].ours_among_themselves is None for found in (mine, other)):
        return None
    return not suspicions([*mine.values(), *other.values()])


def _versions(data: ReportData, asked: Records) -> Iterable[VersionRow]:
    """Rows of every kind of server, oldest release first."""
    found: dict[str, Records] = {}
    for record in (record for records in asked.values() for record in records):
        if isinstance(record.evidence, ServerEvidence):
            found.setdefault(record.engine, {}).setdefault(_version_of(record), []).append(record)
    history = data.history or EngineHistory(fallbacks=(), changes=())
    for kind, releases in sorted(found.items()):
        before: tuple[str, Ran] | None = None
        for version in sorted(releases, key=_release_order):
            ran = what_ran(releases[version])
            turn = _turn(before[1] if before else None, ran)
            changes = _changes(history, kind, before[0] if before else None, version)
            if turn and not changes:
                changes = (
                    KnownChange("No change between them is known.", "specprefill-repro bisect finds the commit"),
                )
            yield VersionRow(kind, version, mark(ran), _outcomes(releases[version]), turn, changes)
            before = version, ran


def _release_order(version: str) -> tuple[bool, tuple[tuple[int, ...], int, int], str]:
    """Oldest first; what is no release number last."""
    try:
        return False, release_key(version), version
    except ValueError:
        return True, ((), 0, 0), version


def _turn(before: Ran | None, now: Ran) -> str:
    if before is None or (before is Ran.SPARSE) == (now is Ran.SPARSE):
        return ""
    return "starts working" if now is Ran.SPARSE else "stops working"


def _changes(history: EngineHistory, kind: str, before: str | None, version: str) -> tuple[KnownChange, ...]:
    try:
        found = history.changes_between(kind, before or "0", version)
    except ValueError:
        return ()
    return tuple(KnownChange(f"{each.version} {each.effect}: {each.sentence}", each.source) for each in found)
