"""What is tried at each commit: one speculative trial of the cell that a claim is about."""

from collections.abc import Callable
from pathlib import Path

from specprefill_repro.bisect.walk import Found, bisect, check_commits
from specprefill_repro.engines.history import Change, load_history
from specprefill_repro.engines.interface import MODULES
from specprefill_repro.engines.omlx import KIND, Omlx
from specprefill_repro.errors import ReproError
from specprefill_repro.models.fetch import fetch_model
from specprefill_repro.project import Project
from specprefill_repro.prompts.build import build_prompt_set
from specprefill_repro.prompts.tokenizer import load_tokenizer
from specprefill_repro.study.engines import OmlxEngine
from specprefill_repro.study.load import load_study, study_names
from specprefill_repro.study.plan import Cell, plan_cells
from specprefill_repro.study.schema import Study, Treatment
from specprefill_repro.trials.job import Job
from specprefill_repro.trials.lease import machine_lease
from specprefill_repro.verdicts.claims import find_claim, load_claims, study_claims
from specprefill_repro.verdicts.schema import Claim

ANSWER_TOKENS = 2


def bisect_claim(
    project: Project,
    claim: str,
    engine: str,
    checkout: Path,
    python: str | None,
    good: str,
    bad: str,
    study: str | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Found:
    """Find the commit between two where SpecPrefill starts or stops running for what a claim is about.

    Each commit is judged by the evidence of one trial, as in a study; never by its time.

    Args:
        python: interpreter whose environment holds what the checkout needs, at every commit.
        study: whose models, keep rates and lengths are used; by default the first that names the claim.

    Raises:
        ReproError: unknown claim, study or engine, no cell that the claim is about, or as `walk.bisect`.
    """
    if engine != KIND:
        raise ReproError(
            f"Commits of the engine {engine!r} can't be walked; those of {KIND} can.",
            "vllm-mlx comes as released packages here, each with a locked environment; mlx-lm is this package itself."
            if engine in MODULES
            else f"There is no engine of that name; there are: {', '.join(MODULES)}.",
            "For vllm-mlx, name several versions under `engines` of a study, and its report shows where it breaks.",
        )
    card = find_claim(claim, load_claims(project))
    loaded, cell = find_cell(project, card, study)
    # Before a model is asked for, which can take the network and hours.
    check_commits(checkout, good, bad)
    job = _job(project, loaded, cell)
    say(f"{cell.id}: {loaded.pairs[cell.pair].target} with {loaded.pairs[cell.pair].draft}, {len(job.ids)} tokens")

    def trial(folder: Path) -> str:
        server = Omlx(project, OmlxEngine(kind="omlx", checkout=str(folder), python=python))
        with machine_lease() as lease:
            return server.measure(job, lease).outcome

    return bisect(checkout, good, bad, trial, say)


def known_changes(project: Project, found: Found) -> tuple[Change, ...]:
    """What config/engine_history.yaml says about the commits that were found."""
    return tuple(
        change
        for change in load_history(project.config).changes
        if change.engine == KIND and change.commit and any(first.startswith(change.commit) for first in found.first)
    )


def find_cell(project: Project, claim: Claim, study: str | None) -> tuple[Study, Cell]:
    """The study and the speculative cell of it that a claim is about; what the claim leaves open is the study's first.

    Raises:
        ReproError: there is none.
    """
    claims = load_claims(project)
    names = [study] if study else study_names(project)
    for name in names:
        loaded = load_study(project, name)
        if study is None and claim.id not in {each.id for each in study_claims(loaded, claims)}:
            continue
        for cell in plan_cells(loaded):
            if cell.treatment is Treatment.SPECULATIVE and _is_about(claim, cell):
                return loaded, cell
    raise ReproError(
        f"No speculative cell of {study or 'any study'} is what the claim {claim.id} is about.",
        "The claim's pair, keep rate or prompt length is not among those of the study"
        + ("." if study else ", or no study names the claim."),
        f"Name a study whose models you have: --study NAME; there are: {', '.join(study_names(project))}",
    )


def _is_about(claim: Claim, cell: Cell) -> bool:
    wanted = claim.conditions
    return (
        wanted.pair in (None, cell.pair)
        and wanted.treatment in (None, cell.treatment)
        and wanted.keep in (None, cell.keep)
        # As for a verdict: within 5 %.
        and (wanted.prompt_tokens is None or abs(cell.length - wanted.prompt_tokens) <= 0.05 * wanted.prompt_tokens)
    )


def _job(project: Project, study: Study, cell: Cell) -> Job:
    pair = study.pairs[cell.pair]
    target, draft = fetch_model(project, pair.target), fetch_model(project, pair.draft)
    folder = project.model_folder(target.name)
    # A server takes chat messages alone: the reply is not begun, whatever the study does.
    prompts = build_prompt_set(
        study.seed,
        cell.pair,
        study.prompts.kinds,
        cell.length,
        1,
        load_tokenizer(folder),
        target.tokenizer_sha256,
        begin_reply=False,
    )
    prompt = prompts.prompts[0]
    scratch = project.results / "bisect"
    return Job(
        target_folder=str(folder),
        draft_folder=str(project.model_folder(draft.name)),
        arm=cell.treated.model_copy(update={"selection": None}),
        ids=prompt.ids,
        needle_tokens=prompt.needle_tokens,
        warmup_ids=(),
        step=study.prefill_step,
        answer_tokens=ANSWER_TOKENS,
        seed=f"{study.seed}/{cell.id}/{prompt.id}",
        logits_file=str(scratch / "logits.f32"),
        log_file=str(scratch / "server.log.gz"),
        text=prompt.text,
    )
