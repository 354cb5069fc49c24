"""The command line: `specprefill-repro`. Commands read and check; the work is in the subpackages."""

import errno
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated

import typer

from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.plain_text import without_controls

INTERRUPTED = 130

app = typer.Typer(
    help="Does SpecPrefill shorten time to first token here, by how much, at what price, and if not, why not?",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
stage = typer.Typer(help="One stage of one study; what the Snakemake rules call.", no_args_is_help=True)
app.add_typer(stage, name="stage", hidden=True)

models = typer.Typer(help="The models that studies can name.", no_args_is_help=True)
app.add_typer(models, name="models")

claims = typer.Typer(help="The published figures that studies are held against.", no_args_is_help=True)
app.add_typer(claims, name="claims")

StudyName = Annotated[str, typer.Argument(help="Name of a file in config/studies, without .yaml")]
Scale = Annotated[
    str, typer.Option("--scale", help="full, or tiny: small random models of the same architectures, short prompts")
]


def say(text: str, err: bool = False) -> None:
    """Print a line; what others wrote, such as a bundle's names, can't steer the terminal."""
    typer.echo(without_controls(text), err=err)


@app.command()
def run(
    study: StudyName = "demo",
    offline: Annotated[bool, typer.Option("--offline", help="Ask nothing of the network; use what is here")] = False,
    scale: Scale = "full",
    engine: Annotated[
        str | None, typer.Option("--engine", help="omlx=PATH: the folder of its source, or its command; kept")
    ] = None,
    all_that_fit: Annotated[
        bool, typer.Option("--all-that-fit", help="Every study that this machine can hold, one after the other")
    ] = False,
) -> None:
    """Run a study to its report; what is finished and not stale is not run again."""
    from specprefill_repro.models.hub import go_offline
    from specprefill_repro.project import find_project
    from specprefill_repro.run import run_study
    from specprefill_repro.study.given import give_engine
    from specprefill_repro.study.scale import scaled_name

    project = find_project()
    if offline:
        go_offline()
    if engine is not None:
        give_engine(project, engine)
    if all_that_fit:
        from specprefill_repro.run import run_all_that_fit

        run_all_that_fit(project, scale, say)
    else:
        run_study(project, scaled_name(study, scale))


@app.command()
def plan(study: StudyName = "demo", scale: Scale = "full") -> None:
    """What a study takes in time, download and memory, which claims get a verdict, and whether there can be a gain."""
    from rich.console import Console

    from specprefill_repro.forecast import forecast, print_forecast
    from specprefill_repro.project import find_project
    from specprefill_repro.study.load import load_study
    from specprefill_repro.study.scale import scaled_name

    project = find_project()
    loaded = load_study(project, scaled_name(study, scale))
    print_forecast(loaded, forecast(project, loaded, lambda line: say(line, err=True)), Console())


@app.command()
def doctor() -> None:
    """Look at this machine: chip, memory, MLX and its kernels, power, heat, swap, disk, load; and what it can run."""
    from specprefill_repro.doctor import examine
    from specprefill_repro.project import find_project

    examine(find_project(), say)


@app.command()
def status(study: StudyName = "demo", scale: Scale = "full") -> None:
    """Which results of a study are fresh, stale or missing, why, and how long it takes to bring them up to date."""
    from rich.console import Console

    from specprefill_repro.project import find_project
    from specprefill_repro.status import print_status, study_status
    from specprefill_repro.study.load import load_study
    from specprefill_repro.study.scale import scaled_name

    project = find_project()
    loaded = load_study(project, scaled_name(study, scale))
    print_status(project, loaded, study_status(project, loaded), Console())


@app.command()
def lock(
    names: Annotated[list[str], typer.Argument(help="Studies, or models of config/models.yaml")],
) -> None:
    """Record revision, files, sizes and SHA-256 of models in config/models.lock.yaml.

    Of a study, the models that are not locked yet; a model that is named itself is locked anew, as it is now. Weights
    on the Hub are not downloaded for it.
    """
    from specprefill_repro.models.lock import lock_named
    from specprefill_repro.project import find_project

    lock_named(find_project(), names, say)


@models.command("verify")
def verify_models(
    names: Annotated[list[str], typer.Argument(help="Studies, or models of config/models.yaml")],
    full: Annotated[bool, typer.Option("--full", help="Read every byte, also of files that look untouched")] = False,
) -> None:
    """Hold the files of models in results/models against their manifests."""
    from specprefill_repro.models.manifest import check_untouched
    from specprefill_repro.models.naming import models_named
    from specprefill_repro.project import find_project

    project = find_project()
    for name in models_named(project, names):
        manifest = check_untouched(project, name, full=full)
        say(f"{name}: {len(manifest.files)} files, {manifest.weight_bytes:,} bytes of weights, as recorded")


@app.command()
def verify(page: Annotated[Path, typer.Argument(help="A report: reports/NAME/index.html, or any copy of one")]) -> None:
    """Recompute every number and verdict of a page from its records, and the tables that lie beside it."""
    from specprefill_repro.verify import verify_page

    found = verify_page(page)
    place = (
        f"beside the page ({', '.join(found.beside)}; it names them by their SHA-256)" if found.beside else "inside it"
    )
    say(
        f"{page}: {found.records} records, {found.cells} cells and {found.verdicts} verdicts recomputed, and the page "
        f"is byte for byte what they give. The records were read from {place}.\n"
        + (
            f"Beside the page, these say the same as it does: {', '.join(found.tables)}.\n"
            if found.tables
            else "The page alone was looked at: none of its tables lies beside it.\n"
        )
        + f"{found.divergences} KL values were read, not recomputed: their log-probabilities are too large to be there."
    )


@app.command("publish")
def publish_command(
    study: StudyName,
    to: Annotated[str, typer.Option("--to", help="A folder, github-pages, or hf-space:USER/NAME")],
    yes: Annotated[bool, typer.Option("--yes", help="Write; without it only what would be written is shown")] = False,
    acknowledge: Annotated[
        list[str] | None, typer.Option(help="Code of a finding that may be published; give it once a finding")
    ] = None,
    remote: Annotated[
        str | None, typer.Option(help="Git remote with the branch gh-pages; by default the checkout's origin")
    ] = None,
) -> None:
    """Add the report of a study to a site: an index, a permanent link, and a bundle with all that it rests on."""
    from specprefill_repro.project import find_project
    from specprefill_repro.publish.command import destination_of, publish

    project = find_project()
    publish(project, study, destination_of(project, to, remote), yes, acknowledge or [], say)


@app.command("import")
def import_command(
    file: Annotated[Path, typer.Argument(help="bundle.zip of a published report")],
) -> None:
    """Check somebody's bundle (names, sizes, hashes, every verdict recomputed) and keep it in results/imported."""
    from specprefill_repro.bundles.imported import import_bundle
    from specprefill_repro.project import find_project

    found = import_bundle(find_project(), file)
    summary = found.summary
    verdicts = ", ".join(f"{number} {word}" for word, number in summary.verdicts.items())
    say(
        f"{found.folder}: {summary.study} on {summary.machine}, {summary.records} trials: {verdicts or 'no verdicts'}\n"
        "Checked: every hash, the page recomputed from its records, and all tables and settings against the page."
    )
    if found.unchecked:
        say(f"Not checked, since the page does not say what is in it: {', '.join(found.unchecked)}")


@app.command()
def merge() -> None:
    """One page over the reports of this checkout and all imported ones: each claim, machine by machine."""
    from specprefill_repro.merge.page import write_merged
    from specprefill_repro.project import find_project

    merged = write_merged(find_project())
    summed = sum(claim.effects is not None for claim in merged.claims)
    say(
        f"{merged.page}: {len(merged.sources)} reports, each recomputed from its records; {len(merged.claims)} claims, "
        f"{summed} of them measured on several machines"
    )
    for claim in merged.claims:
        for row in claim.rows:
            if row.again:
                say(f"Not counted for {claim.claim.id}: {row.source}: {row.left_out}")
    for each in merged.left_out:
        say(f"Not merged: {each.name}: {each.why}", err=True)


@app.command()
def calibrate(seed: Annotated[int, typer.Option(help="Of all scripted machines")] = 1) -> None:
    """Hold the method against machines whose truth is known, and publish how often it errs."""
    from specprefill_repro.calibration.results import calibrate, write_results
    from specprefill_repro.project import find_project

    if seed < 0:
        raise ReproError(f"--seed {seed} is negative.", "A seed counts from 0.", "specprefill-repro calibrate --seed 1")
    method = find_project().root / "docs" / "method.md"
    write_results(calibrate(seed, lambda line: say(line, err=True)), method)


@app.command("bisect")
def bisect_command(
    claim: Annotated[str, typer.Argument(help="Id of a card: what is tried at each commit")],
    checkout: Annotated[Path, typer.Option(help="Git repository of the engine; it is only read")],
    good: Annotated[str, typer.Option(help="A commit where SpecPrefill runs")],
    bad: Annotated[str, typer.Option(help="A commit where it does not; older or newer than the good one")],
    engine: Annotated[str, typer.Option(help="Kind of engine")] = "omlx",
    python: Annotated[str | None, typer.Option(help="Interpreter with what the engine needs")] = None,
    study: Annotated[str | None, typer.Option(help="Whose models and lengths; by default one with the claim")] = None,
) -> None:
    """Find the commit of a server engine where SpecPrefill starts or stops running, by the evidence of trials."""
    from specprefill_repro.bisect.claim import bisect_claim, known_changes
    from specprefill_repro.project import find_project

    project = find_project()
    found = bisect_claim(project, claim, engine, checkout, python, good, bad, study, say)
    what = "starts" if found.starts else "stops"
    if len(found.first) == 1:
        say(f"SpecPrefill {what} running at {found.first[0]}.")
    else:
        say(f"SpecPrefill {what} running at one of: {', '.join(found.first)}; those between could not be tried.")
    for change in known_changes(project, found):
        say(f"Known ({change.date}): {change.sentence}")


@claims.command("list")
def list_claims(
    pattern: Annotated[str, typer.Argument(help="Only ids that fit, such as green-*")] = "*",
    kind: Annotated[
        str | None,
        typer.Option(help="Only author_claim, independent_measurement, failed_reproduction, or expectation"),
    ] = None,
) -> None:
    """All claim cards, one a line."""
    from rich.console import Console

    from specprefill_repro.project import find_project
    from specprefill_repro.verdicts.claims import choose_claims, load_claims
    from specprefill_repro.verdicts.listing import print_claims

    print_claims(choose_claims(load_claims(find_project()), pattern, kind), Console())


@claims.command("show")
def show_claim(claim: Annotated[str, typer.Argument(help="Id of a card")]) -> None:
    """One claim card in full: figure, conditions, source, and what contradicts it."""
    from rich.console import Console

    from specprefill_repro.project import find_project
    from specprefill_repro.verdicts.claims import find_claim, load_claims, load_contradictions
    from specprefill_repro.verdicts.listing import print_claim

    project = find_project()
    cards = load_claims(project)
    print_claim(find_claim(claim, cards), load_contradictions(project, cards), Console())


def _remembered(study: str, step: str) -> AbstractContextManager[None]:
    from specprefill_repro.made_from import remembered
    from specprefill_repro.project import find_project

    return remembered(find_project(), study, step)


@stage.command("model")
def stage_model(study: str, model: str) -> None:
    """Fetch or derive a model and write its receipt."""
    from specprefill_repro import stages

    with _remembered(study, f"models/{model}"):
        stages.model(study, model)


@stage.command("environment")
def stage_environment(study: str, name: str) -> None:
    """Install the environment of a server engine."""
    from specprefill_repro import stages

    with _remembered(study, f"environments/{name}"):
        stages.environment(study, name)


@stage.command("prompts")
def stage_prompts(study: str, pair: str, length: int) -> None:
    """Write the prompts of one pair and length."""
    from specprefill_repro import stages

    with _remembered(study, f"prompts/{pair}-{length}"):
        stages.prompts(study, pair, length)


@stage.command("gate")
def stage_gate(study: str, pair: str) -> None:
    """Check one pair."""
    from specprefill_repro import stages

    with _remembered(study, f"gate/{pair}"):
        stages.gate(study, pair)


@stage.command("block")
def stage_block(study: str, cell: str, index: int) -> None:
    """Measure one block."""
    from specprefill_repro import stages

    with _remembered(study, f"blocks/{cell}/{index}"):
        stages.block(study, cell, index)


@stage.command("stopping")
def stage_stopping(study: str, cell: str, blocks: int) -> None:
    """Decide whether a cell gets another block."""
    from specprefill_repro import stages

    with _remembered(study, f"stopping/{cell}/{blocks}"):
        stages.stopping(study, cell, blocks)


@stage.command("estimates")
def stage_estimates(study: str) -> None:
    """Records to estimates."""
    from specprefill_repro import stages

    with _remembered(study, "estimates"):
        stages.estimates(study)


@stage.command("verdicts")
def stage_verdicts(study: str) -> None:
    """Estimates and claims to verdicts."""
    from specprefill_repro import stages

    with _remembered(study, "verdicts"):
        stages.verdicts(study)


@stage.command("report")
def stage_report(study: str) -> None:
    """Render the page."""
    from specprefill_repro import stages

    with _remembered(study, "report"):
        stages.report(study)


def main() -> None:
    """Entry point. Bad input gives three lines and an exit code, never a traceback."""
    from specprefill_repro.trials.progress import report_error

    in_stage = sys.argv[1:2] == ["stage"]
    if in_stage:
        from specprefill_repro.trials.parent import end_with_run

        end_with_run()
    try:
        app(prog_name="specprefill-repro", standalone_mode=True)
    except ReproError as error:
        if in_stage:
            report_error(error)
        say(f"error: {error}", err=True)
        raise SystemExit(int(error.exit_code)) from None
    except SystemExit as ended:
        # What typer makes of Ctrl-C.
        if ended.code == INTERRUPTED:
            say("Stopped. Finished blocks are kept; the same command goes on from there.", err=True)
        raise
    except Exception as error:
        unexpected = unexpected_error(error)
        if in_stage:
            report_error(unexpected)
            raise
        say(f"error: {unexpected}", err=True)
        raise SystemExit(int(unexpected.exit_code)) from None


def unexpected_error(error: Exception) -> ReproError:
    """Words for an error that nobody foresaw; the full traceback stays in the log of the stage."""
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return ReproError(
            f"Could not write {error.filename or 'the output'}: the disk is full.",
            "The file system that it goes to has no room left.",
            "Free some space (df -h), then run the same command again; finished work is kept.",
            Exit.ENVIRONMENT,
        )
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f" in {Path(trace.tb_frame.f_code.co_filename).name}, line {trace.tb_lineno}" if trace else ""
    return ReproError(
        f"{type(error).__name__}{place}: {error}",
        "A fault in this package that nobody foresaw.",
        "Run the same command again; if it stays, report it with the log named above (results/studies/NAME/logs).",
        Exit.UNEXPECTED,
    )
