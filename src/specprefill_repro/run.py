"""Run a whole study with Snakemake, show how far it is, and say how it ended."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from specprefill_repro import stages
from specprefill_repro.engines.interface import engines_of
from specprefill_repro.errors import Exit, ReproError
from specprefill_repro.estimates.schema import Estimates
from specprefill_repro.estimates.stopping import too_few_blocks
from specprefill_repro.files import read_model
from specprefill_repro.fitting import Room, check_room, fits, room_here
from specprefill_repro.isolation import isolated
from specprefill_repro.models.load import is_unlocked_hub_model
from specprefill_repro.models.schema import Manifest
from specprefill_repro.plain_text import without_controls
from specprefill_repro.project import Project
from specprefill_repro.prompts.build import check_context
from specprefill_repro.repair import remove_damaged
from specprefill_repro.report import numbers
from specprefill_repro.report.answer import answer
from specprefill_repro.report.data import ReportData
from specprefill_repro.staleness import models_of
from specprefill_repro.status import Standing, State, study_status
from specprefill_repro.study.load import load_study
from specprefill_repro.study.plan import ArmKind, block_trials, plan_cells
from specprefill_repro.study.scale import TINY
from specprefill_repro.study.schema import Study
from specprefill_repro.trials.busy import is_overloaded
from specprefill_repro.trials.macos import kept_awake
from specprefill_repro.trials.parent import RUN_PROCESS, name_run
from specprefill_repro.trials.progress import PROGRESS_PIPE
from specprefill_repro.verdicts.claims import load_claims, study_claims
from specprefill_repro.verdicts.listing import print_verdicts
from specprefill_repro.verdicts.schema import Verdicts

STOP_SECONDS = 10
MAX_LOG_END = 10_000
"""Bytes."""


def run_study(project: Project, name: str) -> None:
    """Run a study to its report. The same command goes on after any interruption.

    Raises:
        ReproError: the study is not valid, another run holds this checkout, or a stage failed.
    """
    console = Console(stderr=True)
    study = load_study(project, name)
    check_study(project, study)
    engines_of(project, study)
    for line in [*too_few_blocks(study), *_load_now()]:
        console.print(line, markup=False, soft_wrap=True)
    # Before anything is asked of the network; and again with the sizes that only the lock tells.
    check_room(project, study)
    if lock_unlocked(project, study):
        check_room(project, study)
    with _only_run(project), kept_awake(os.getpid()), tempfile.TemporaryDirectory(prefix="specprefill-") as folder:
        for line in remove_damaged(project, study):
            console.print(line, markup=False, soft_wrap=True)
        pipe = Path(folder) / "progress"
        os.mkfifo(pipe)
        work = _work_left(project, study)
        if not console.is_terminal:
            console.print(work.in_words(), markup=False, soft_wrap=True)
        log = project.study_results(name) / "logs" / "snakemake.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        # This project brings a profile of its own; one of the user's would add options that are not for it.
        environment = {name: value for name, value in isolated(os.environ).items() if name != "SNAKEMAKE_PROFILE"}
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "snakemake", "--config", f"study={name}", "--nolock"],
                cwd=project.root,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**environment, PROGRESS_PIPE: str(pipe), RUN_PROCESS: name_run(os.getpid())},
                # So that whoever ends this process, by a key or by a signal to it alone, ends its jobs in one way.
                start_new_session=True,
            )
            try:
                with _ends_like_a_key_press():
                    failures = _follow(process, pipe, work, console)
            except KeyboardInterrupt:
                console.print("Stopping; the trial that runs now is thrown away ...")
                _stop(process)
                raise
    if process.returncode != 0:
        if project.report(name).is_file():
            console.print(f"The last report is as it was: {os.path.relpath(project.report(name))}", soft_wrap=True)
        raise failures[0] if failures else _snakemake_failed(log, process.returncode)
    print_verdicts(read_model(project.verdicts(name), Verdicts).verdicts, console)
    console.print(f"Answer: {answer_line(project, study)}", markup=False, soft_wrap=True)
    console.print(f"Report: {os.path.relpath(project.report(name))}", soft_wrap=True)


def answer_line(project: Project, study: Study) -> str:
    """The answer at the top of the report of a study that has run, in one line.

    Raises:
        ReproError: a result of the study can't be read.
    """
    data = ReportData(
        study=study,
        estimates=read_model(project.estimates(study.name), Estimates),
        verdicts=read_model(project.verdicts(study.name), Verdicts),
        records=(),
        receipts=(),
        gates=stages.gates(project, study),
        models=stages.manifests(project, study),
        facts={},
    )
    found = answer(data)
    return f"{found.headline}. {found.sentence}".replace(numbers.SPACE, " ")


@contextmanager
def _ends_like_a_key_press() -> Iterator[None]:
    """SIGTERM, and SIGHUP of a terminal that is closed, end a run as Ctrl-C does; under nohup a SIGHUP does nothing."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    hangup = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGINT, *hangup)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """End Snakemake and its jobs; nothing of a block is kept before the block is whole, so a kill does no harm."""
    for number in (signal.SIGINT, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            continue
        except ProcessLookupError:
            break
    process.wait()


def _load_now() -> list[str]:
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if not is_overloaded(load, cores):
        return []
    return [
        f"This machine is busy: load average {load:.1f} on {cores} cores. Times taken now say little; end other work, "
        "or run later."
    ]


def check_study(project: Project, study: Study) -> None:
    """Find now what would stop the study later.

    Raises:
        ReproError: a model or claim that it names does not exist, or a prompt is longer than a model's context (as far
            as the models were fetched before; the prompts' stage checks it for all).
    """
    study_claims(study, load_claims(project))
    models_of(project, study)
    for cell in plan_cells(study):
        pair = study.pairs[cell.pair]
        files = [project.model_manifest(name) for name in (pair.target, pair.draft)]
        if all(file.exists() for file in files):
            target, draft = (read_model(file, Manifest) for file in files)
            check_context(study, cell.length, target, draft)


def lock_unlocked(project: Project, study: Study) -> list[str]:
    """Lock the Hub models of a study that are not locked, before Snakemake looks, and return their names.

    A lock that is written during a run would make the next run find its models stale.

    Raises:
        ReproError: the Hub can't be reached, or a model is not the one that config/models.yaml describes.
    """
    unlocked = [name for name in models_of(project, study) if is_unlocked_hub_model(project, name)]
    if unlocked:
        from specprefill_repro.models.fetch import lock_on_first_use

        for name in unlocked:
            lock_on_first_use(project, name)
    return unlocked


def run_all_that_fit(
    project: Project,
    scale: str,
    tell: Callable[[str], None],
    run: Callable[[Project, str], None] = run_study,
    room: Room | None = None,
) -> None:
    """Run every study that this machine can hold; say of the others why it can't, and what can be run instead.

    A study that fails does not stop those after it.

    Raises:
        ReproError: none fits, or some failed; the first one's error.
    """
    found = fits(project, scale, room or room_here(project))
    fitting = [fit.study for fit in found if fit.fits]
    for fit in found:
        if not fit.fits:
            tell(f"{fit.study}: does not fit: {'; '.join(fit.lacking)}.")
            if scale != TINY:
                tell(f"  Instead: ./reproduce {fit.study} --scale tiny, the same on small random models.")
    if not fitting:
        raise ReproError(
            "No study fits this machine.",
            "Its memory or its free disk is too small for the smallest of them.",
            "Free some disk, or run: ./reproduce demo --scale tiny",
            Exit.ENVIRONMENT,
        )
    tell(f"Running {len(fitting)} of {len(found)} studies: {', '.join(fitting)}.")
    failed: dict[str, ReproError] = {}
    for name in fitting:
        tell(f"{name} ...")
        try:
            run(project, name)
        except ReproError as error:
            failed[name] = error
            tell(f"error: {name}: {error}")
    if failed:
        first, reason = next(iter(failed.items()))
        raise ReproError(
            f"{len(failed)} of {len(fitting)} studies failed: {', '.join(failed)}. The first: {reason.what}",
            reason.why,
            f"./reproduce {first}   (the others that fit are done)",
            reason.exit_code,
        )
    tell(f"All {len(fitting)} studies that fit are done.")


@contextmanager
def _only_run(project: Project) -> Iterator[None]:
    """Hold this checkout; the lock goes with the process, however it ends."""
    path = project.results / "run.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ReproError(
            f"Could not write {path}: {error.strerror}.",
            "The project's folder is read-only or belongs to another user.",
            f"Check it with: ls -ld '{path.parent}'",
            Exit.ENVIRONMENT,
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ReproError(
                "Another run is at work in this checkout.",
                f"It holds {path}.",
                "Wait for it to end, or end it, and run the same command again.",
                Exit.ENVIRONMENT,
            ) from error
        yield
    finally:
        os.close(descriptor)


@dataclass
class _Work:
    """How much there is to do, in units that are roughly proportional to time."""

    study: Study
    finished: set[tuple[str, int]] = field(default_factory=set)
    """Cell and block; before this run, and in it."""
    expected: float | None = None
    """Seconds that the rest takes by what it took before; None: not known."""
    spent: float = 0.0
    """Seconds spent on what was measured in this run."""
    measured: float = 0.0
    """Units measured in this run."""

    def __post_init__(self) -> None:
        self.cells = {cell.id: cell for cell in plan_cells(self.study)}
        self.total = sum(
            self.block_units(cell.id, index) for cell in self.cells.values() for index in range(cell.blocks)
        )
        self.blocks = sum(cell.blocks for cell in self.cells.values())
        for block in self.finished:
            self.allow(*block)
        self.done = sum(self.block_units(*block) for block in self.finished)

    def finish(self, cell: str, index: int) -> None:
        self.finished.add((cell, index))
        self.allow(cell, index)
        self.done = sum(self.block_units(*block) for block in self.finished)

    def just_finished_cell(self, cell: str) -> bool:
        """Whether the blocks that a cell always gets are finished, and no further one."""
        return sum(one == cell for one, _ in self.finished) == self.cells[cell].blocks

    def allow(self, cell: str, index: int) -> None:
        """Count in a block beyond those that always run: one that a noisy cell got."""
        if index >= self.cells[cell].blocks:
            self.blocks += 1
            self.total += self.block_units(cell, index)

    def block_units(self, cell: str, index: int) -> float:
        return sum(
            self.trial_units(cell, trial.treated) for trial in block_trials(self.study.seed, self.cells[cell], index)
        )

    def trial_units(self, cell: str, treated: bool) -> float:
        """Prompt tokens that are read, roughly: enough for a guess that corrects itself."""
        planned = self.cells[cell]
        arm = planned.treated if treated else planned.baseline
        return planned.length * {ArmKind.DENSE: 1.0, ArmKind.PLAIN: 1.0, ArmKind.SPECULATIVE: 0.7}.get(arm.kind, 0.4)

    def seconds_left(self) -> float | None:
        return (self.total - self.done) * self.spent / self.measured if self.measured else self.expected

    def left_in_words(self) -> str:
        left = self.seconds_left()
        return "" if left is None or len(self.finished) >= self.blocks else f"about {_minutes(left)} left"

    def in_words(self) -> str:
        """One line for the beginning of a run."""
        before = f", {len(self.finished)} of them finished before" if self.finished else ""
        left = self.left_in_words()
        return f"{self.study.name}: {self.blocks} blocks of four trials{before}{left and '; ' + left}."


def _work_left(project: Project, study: Study) -> _Work:
    """What there is to do before a run begins; where the results can't be read, all of it, and the run says why."""
    try:
        standings = study_status(project, study)
    except ReproError:
        return _Work(study)
    fresh = [each.step.id.split("/", 1)[1] for each in standings if each.state is State.FRESH and _is_block(each)]
    finished = {(cell, int(index)) for cell, _, index in (block.rpartition("/") for block in fresh)}
    seconds = [each.seconds for each in standings]
    known = None if None in seconds else sum(each or 0.0 for each in seconds)
    return _Work(study, finished, known)


def _is_block(standing: Standing) -> bool:
    return standing.step.id.startswith("blocks/")


def _follow(process: "subprocess.Popen[bytes]", pipe: Path, work: _Work, console: Console) -> list[ReproError]:
    """Show events as they come, until Snakemake has ended; wakes for events alone, so that it disturbs no trial."""
    failures: list[ReproError] = []
    descriptor = os.open(pipe, os.O_RDWR)
    # Its own: an interrupted run closes the other before Snakemake has ended, and its number is another file's then.
    own = os.dup(descriptor)

    def tell_end() -> None:
        process.wait()
        with os.fdopen(own, "wb", buffering=0) as end:
            end.write(b'{"end": true}\n')

    threading.Thread(target=tell_end, daemon=True).start()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[left]}"))
    with (
        os.fdopen(descriptor, "rb") as events,
        Progress(*columns, console=console, auto_refresh=False, disable=not console.is_terminal) as progress,
    ):
        task = progress.add_task(
            "models, prompts, gate", total=work.blocks, completed=len(work.finished), left=work.left_in_words()
        )
        started = time.monotonic()
        for line in events:
            event = _event(line)
            if event.get("end"):
                break
            if "error" in event:
                failures.append(_error(event["error"]))
                # Told at once where somebody looks: what does not depend on it still runs, and that can take long.
                if console.is_terminal:
                    console.print(f"error: {failures[-1]}", markup=False)
            elif "warning" in event:
                console.print(event["warning"], markup=False, soft_wrap=True)
            elif "stage" in event:
                progress.update(task, description=str(event["stage"]))
            elif "trial" in event:
                started = time.monotonic()
                progress.update(task, description=f"{event['trial']} {event['arm']}")
            elif "done" in event:
                work.spent += time.monotonic() - started
                trial = block_trials(work.study.seed, work.cells[event["done"]], event["index"])[event["position"]]
                units = work.trial_units(event["done"], trial.treated)
                work.measured += units
                work.done += units
            elif "block" in event and (event["block"], event["index"]) not in work.finished:
                work.finish(event["block"], event["index"])
                progress.update(task, total=work.blocks)
                progress.advance(task)
                if not console.is_terminal and work.just_finished_cell(event["block"]):
                    left = work.left_in_words()
                    said = f"{event['block']}: finished; {len(work.finished)} of {work.blocks} blocks"
                    console.print(f"{said}{left and ', ' + left}", markup=False, soft_wrap=True)
            progress.update(task, left=work.left_in_words())
            progress.refresh()
        if process.wait() == 0:
            # Also what an earlier run left, and this one found to be as it should be without a word.
            progress.update(task, completed=work.blocks, left="")
    return failures


def _event(line: bytes) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


def _error(told: dict[str, Any]) -> ReproError:
    return ReproError(told["what"], told["why"], told["next"], Exit(told["exit_code"]))


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{max(10, round(seconds, -1)):.0f} s"


def _snakemake_failed(log: Path, status: int) -> ReproError:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - MAX_LOG_END))
        lines = file.read().decode(errors="replace").split("\n")
    said = next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
    return ReproError(
        f"Snakemake ended with status {status}. It last said: {without_controls(said)[:300]}",
        "A folder that it needs can't be written (it keeps a cache below the home folder), or its files are damaged.",
        f"tail -n 40 '{log}'",
        Exit.UNEXPECTED,
    )
