"""From a planned trial to the job of its process: what it reads, what it warms up on, and what it does afterwards."""

from pathlib import Path

from specprefill_repro.prompts.schema import Prompt, PromptSet
from specprefill_repro.study.plan import Arm, ArmKind, Cell, PlannedTrial
from specprefill_repro.study.schema import Study
from specprefill_repro.trials.job import Forced, Job, Measurement
from specprefill_repro.trials.schema import Evidence


def arm_of(cell: Cell, trial: PlannedTrial) -> Arm:
    return cell.treated if trial.treated else cell.baseline


def prompt_of(prompts: PromptSet, trial: PlannedTrial) -> Prompt:
    return prompts.prompts[trial.prompt]


def job_of(
    study: Study,
    cell: Cell,
    trial: PlannedTrial,
    prompts: PromptSet,
    target: Path,
    draft: Path,
    folder: Path,
    first: Measurement | None,
) -> Job:
    """The job of one trial.

    Args:
        target, draft: the models' folders.
        folder: where the process may leave files besides its measurement.
        first: what the pair's first trial measured; None for that one itself.
    """
    arm, prompt = arm_of(cell, trial), prompt_of(prompts, trial)
    # The other prompt of this block: another text, so that nothing of the timed one is warm.
    warmup = prompts.prompts[trial.prompt ^ 1]
    return Job(
        target_folder=str(target),
        draft_folder=str(draft) if arm.kind is ArmKind.SPECULATIVE else None,
        arm=arm,
        ids=prompt.ids,
        needle_tokens=prompt.needle_tokens,
        warmup_ids=warmup.ids[: study.warmup_tokens],
        step=study.prefill_step,
        answer_tokens=study.prompts.answer_tokens,
        seed=f"{study.seed}/{cell.id}/{prompt.id}",
        logits_file=str(folder / f"{trial.position}.f32"),
        log_file=str(folder / f"{trial.position}.log.gz"),
        text=prompt.text,
        warmup_text=warmup.text[: len(warmup.text) * study.warmup_tokens // len(warmup.ids)],
        log_probabilities=study.prompts.perplexity and arm.kind is ArmKind.DENSE,
        forced=_forced(study, cell, trial, first),
    )


def _forced(study: Study, cell: Cell, trial: PlannedTrial, first: Measurement | None) -> Forced | None:
    """What the second trial of a pair does for the perplexity."""
    if first is None or not study.prompts.perplexity or cell.treated.kind.reads_all:
        return None
    if not isinstance(first.evidence, Evidence):
        return None  # A server can't be told what to say.
    if trial.treated:
        return Forced(arm=cell.treated, tokens=first.tokens, kept=None)
    return Forced(arm=cell.treated, tokens=None, kept=first.evidence.kept_ranges)
