"""One function a stage: reads the files of the stages before, writes its own. Callable without Snakemake."""

import gc
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

from specprefill_repro.errors import ReproError
from specprefill_repro.estimates.schema import Estimates, Look, estimates_json
from specprefill_repro.files import (
    parse_model,
    read_limited,
    read_model,
    sha256_file,
    write_all,
    write_json,
    write_text,
)
from specprefill_repro.gate.schema import GateResult
from specprefill_repro.models.schema import Manifest
from specprefill_repro.project import Project, find_project
from specprefill_repro.staleness import cells_by_id, models_of
from specprefill_repro.study.load import load_study
from specprefill_repro.study.schema import Study
from specprefill_repro.trials.progress import report as tell
from specprefill_repro.trials.receipts import block_receipts
from specprefill_repro.trials.schema import BlockReceipt, TrialRecord
from specprefill_repro.trials.store import Store
from specprefill_repro.verdicts.schema import Verdicts


@contextmanager
def _without_search_for_cycles() -> Iterator[None]:
    """Records and estimates hold no cycles of objects, and to look for some among so many takes long."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def model(study: str, name: str) -> None:
    """Fetch or derive a model; the receipt is a copy of its manifest."""
    from specprefill_repro.models.fetch import fetch_model
    from specprefill_repro.models.progress import each_second

    project = find_project()
    tell(stage=f"model {name}")
    manifest = fetch_model(project, name, each_second(lambda line: tell(stage=f"model {name}: {line}")))
    write_json(project.model_receipt(study, name), manifest)


def environment(study: str, name: str) -> None:
    """Install the environment of a server engine; the receipt says what is in it."""
    from specprefill_repro.engines.environments import install_environment

    project = find_project()
    loaded = load_study(project, study)
    kinds = {settings.environment: settings.kind for settings in loaded.engines.values()}
    if name not in kinds:
        raise ReproError(
            f"The study {study!r} has no engine with the environment {name!r}.",
            f"It has: {', '.join(str(known) for known in kinds if known) or 'none'}.",
            "Give one of these.",
        )
    tell(stage=f"environment {name}")
    write_json(project.environment_receipt(study, name), install_environment(project, kinds[name], name))


def prompts(study: str, pair: str, length: int) -> None:
    """Write the prompts of one pair and length."""
    from specprefill_repro.prompts.build import write_prompts

    tell(stage=f"prompts {pair} {length}")
    write_prompts(find_project(), study, pair, length)


def gate(study: str, pair: str) -> None:
    """Check one pair and write the result, passed or not."""
    from specprefill_repro.gate.run import run_gate

    project = find_project()
    tell(stage=f"gate {pair}")
    result = run_gate(project, load_study(project, study), pair)
    if not result.passed:
        tell(warning=f"The gate of pair {pair} failed; its trials are not timed. {result.failures}")


def block(study: str, cell: str, index: int) -> None:
    """Measure one block of four trials."""
    from specprefill_repro.trials.block import run_block

    project = find_project()
    loaded = load_study(project, study)
    cells = cells_by_id(loaded)
    if cell not in cells:
        raise ReproError(
            f"The study {study!r} has no cell {cell!r}.",
            f"It has: {', '.join(cells)}.",
            "Give one of these.",
        )
    run_block(project, loaded, cells[cell], index)


def stopping(study: str, cell: str, blocks: int, project: Project | None = None) -> Look:
    """Look at the width of a cell's interval after so many blocks."""
    from specprefill_repro.estimates.stopping import look

    project = project or find_project()
    loaded = load_study(project, study)
    planned = cells_by_id(loaded)[cell]
    receipts = block_receipts(project, loaded, planned, blocks)
    store = Store(project.store)
    records = [store.get_record(identity) for receipt in receipts for identity in receipt.records]
    gate = read_model(project.gate(study, planned.pair), GateResult)
    looked = look(planned, records, receipts, gate)
    write_json(project.stopping(study, cell, blocks), looked)
    return looked


@_without_search_for_cycles()
def estimates(study: str, project: Project | None = None) -> None:
    """Records to estimates. What was read is written as tables too, so that no later stage reads the store."""
    from specprefill_repro.estimates.build import estimates_of
    from specprefill_repro.estimates.cells import read_cells
    from specprefill_repro.trials.table import table_file

    project = project or find_project()
    tell(stage="estimates")
    loaded = load_study(project, study)
    measured = []
    with (
        table_file(project.trials(study), TrialRecord) as trials,
        table_file(project.blocks(study), BlockReceipt) as blocks,
    ):
        for cell in read_cells(project, loaded, gates(project, loaded)):
            measured.append(cell.measured)
            trials(cell.trials)
            blocks(cell.blocks)
    write_text(project.estimates(study), estimates_json(estimates_of(loaded, measured)))


@_without_search_for_cycles()
def verdicts(study: str, project: Project | None = None) -> None:
    """Estimates and claims to verdicts."""
    from specprefill_repro.verdicts.build import build_verdicts
    from specprefill_repro.verdicts.claims import load_claims, load_contradictions, study_claims
    from specprefill_repro.verdicts.matching import facts_of

    project = project or find_project()
    tell(stage="verdicts")
    loaded = load_study(project, study)
    claims = load_claims(project)
    found = read_model(project.estimates(study), Estimates)
    result = build_verdicts(
        loaded,
        found,
        study_claims(loaded, claims),
        facts_of(found, manifests(project, loaded)),
        load_contradictions(project, claims),
    )
    write_json(project.verdicts(study), result)


@_without_search_for_cycles()
def report(study: str, project: Project | None = None) -> None:
    """Render the page and its machine-readable twins. The old ones stay until all the new ones are there."""
    from specprefill_repro.engines.history import load_history
    from specprefill_repro.report.build import render_report
    from specprefill_repro.report.data import LISTED_TRIALS, ReportData, ReportReceipt
    from specprefill_repro.report.rows import COLUMNS
    from specprefill_repro.report.tables import BLOCKS, CSV, ESTIMATES, TRIALS, recomputable, table_files
    from specprefill_repro.trials.table import MAX_FILE_BYTES, Trials, parse_table, to_models

    project = project or find_project()
    tell(stage="report")
    loaded = load_study(project, study)
    # What lies beside the page is, byte for byte, what the stages before wrote.
    contents = {
        TRIALS: read_limited(project.trials(study), MAX_FILE_BYTES),
        BLOCKS: read_limited(project.blocks(study), MAX_FILE_BYTES),
        ESTIMATES: read_limited(project.estimates(study), MAX_FILE_BYTES),
    }
    found = parse_model(project.estimates(study), contents[ESTIMATES], Estimates)
    judged = read_model(project.verdicts(study), Verdicts)
    blocks = parse_table(project.blocks(study), contents[BLOCKS], BlockReceipt)
    # A page that lists no trial is made from a few columns; engines are compared record by record.
    carried = len(blocks["records"].combine_chunks().flatten()) <= LISTED_TRIALS
    columns = None if carried or loaded.has_servers else COLUMNS
    trials = Trials(parse_table(project.trials(study), contents[TRIALS], TrialRecord, columns))
    page = project.report(study)
    tables = table_files(contents, trials if carried else None, judged)
    data = ReportData(
        study=loaded,
        estimates=found,
        verdicts=judged,
        records=tuple(trials.records()) if carried else (),
        receipts=tuple(to_models(blocks, BlockReceipt)) if carried else (),
        gates=gates(project, loaded),
        models=manifests(project, loaded),
        facts=page_facts(project, found),
        beside={} if carried else recomputable(tables),
        history=load_history(project.config) if loaded.questions or loaded.has_servers else None,
    )
    files = {page: render_report(data, trials).encode(), **{page.parent / name: tables[name] for name in tables}}
    write_all(files)
    if CSV not in tables:
        (page.parent / CSV).unlink(missing_ok=True)
    shown = {project.relative(path): hashlib.sha256(content).hexdigest() for path, content in files.items()}
    write_json(project.report_receipt(study), ReportReceipt(files=shown))


def page_facts(project: Project, found: Estimates) -> dict[str, str]:
    """Machine, versions and pins as the page shows them: what the trials' processes found, when they agree."""
    from specprefill_repro.report.version import version_facts

    facts = {
        "environment lock (SHA-256)": sha256_file(project.environment_lock),
        **version_facts(),
        "error rates": error_rates(),
    }
    for name, values in found.environment.items():
        facts[name] = values[0] if len(values) == 1 else "differs between trials: " + "; ".join(values)
    return facts


def error_rates() -> str:
    """How often intervals and verdicts are wrong on scripted machines whose truth is known, in one sentence."""
    from specprefill_repro.calibration.results import published

    found = published()
    return (
        f"In {found.worlds[0].studies:,} simulated studies in each of {len(found.worlds)} scripted worlds, the 95 % "
        f"interval held the truth in {found.lowest_coverage:.1%} to {found.highest_coverage:.1%} of studies; a claim "
        f"that clearly does not hold was called reproduced {_at_most(found.worst_false_reproduced)}, one that clearly "
        f"holds was called not reproduced {_at_most(found.worst_false_not_reproduced)}."
    )


def _at_most(share: float) -> str:
    return f"in at most {share:.2%}" if share else "in none"


def gates(project: Project, study: Study) -> dict[str, GateResult]:
    """The gate results of a study, by pair."""
    return {pair: read_model(project.gate(study.name, pair), GateResult) for pair in study.pairs}


def manifests(project: Project, study: Study) -> dict[str, Manifest]:
    """The manifests of all models of a study, by name."""
    return {name: read_model(project.model_receipt(study.name, name), Manifest) for name in models_of(project, study)}
