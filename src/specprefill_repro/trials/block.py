"""Run one block: four trials in the order A B B A or B A A B, kept whole or not at all."""

import os
import shutil
import socket
import tempfile
import zlib
from contextlib import nullcontext
from pathlib import Path

import psutil
from tokenizers import Tokenizer

from specprefill_repro.engines.interface import Engine, engine_of
from specprefill_repro.errors import ReproError
from specprefill_repro.files import content_id, read_model, sha256_file, write_json
from specprefill_repro.fingerprint import code_fingerprint
from specprefill_repro.gate.schema import GateResult
from specprefill_repro.models.schema import Manifest
from specprefill_repro.project import Project
from specprefill_repro.prompts.needle import parts_found
from specprefill_repro.prompts.schema import Prompt, PromptSet
from specprefill_repro.study.plan import Arm, ArmKind, Cell, PlannedTrial, block_trials
from specprefill_repro.study.schema import Study
from specprefill_repro.trials.busy import was_busy
from specprefill_repro.trials.canary import canary
from specprefill_repro.trials.job import Measurement
from specprefill_repro.trials.lease import machine_lease
from specprefill_repro.trials.machine import machine_facts
from specprefill_repro.trials.planned_job import arm_of, job_of, prompt_of
from specprefill_repro.trials.progress import report, report_warning, say
from specprefill_repro.trials.schema import BlockReceipt, Canary, PromptFacts, TrialRecord
from specprefill_repro.trials.store import Store


def block_settings(project: Project, study: Study, cell: Cell, engine: Engine | None = None) -> dict[str, str]:
    """What is known before anything runs and can change a block's numbers, by name.

    Snakemake gets this as a parameter of the block's rule. Prompts and models join in `block_fingerprint`.

    Args:
        engine: by default the one that the study has the cell run on.
    """
    engine = engine or engine_of(project, study, cell.engine)
    perplexity = ["perplexity"] if study.prompts.perplexity else []
    return {
        "code": code_fingerprint(block_code(engine, cell)),
        "engine": engine.name,
        "environment": sha256_file(project.environment_lock),
        "machine": content_id(machine_facts()),
        "arms": content_id([cell.baseline.model_dump(mode="json"), cell.treated.model_dump(mode="json")]),
        "prefill": content_id([study.prefill_step, study.warmup_tokens, study.prompts.answer_tokens, *perplexity]),
        **engine.settings(),
    }


def block_code(engine: Engine, cell: Cell) -> tuple[str, ...]:
    """Modules whose code can change a block's numbers."""
    own = ("specprefill_repro.prompts.needle", "specprefill_repro.trials.planned_job")
    return (*own, *engine.code((cell.baseline.kind, cell.treated.kind)))


def block_fingerprint(
    settings: dict[str, str],
    cell: Cell,
    trials: tuple[PlannedTrial, ...],
    prompts: PromptSet,
    target: Manifest,
    draft: Manifest,
) -> tuple[str, dict[str, str]]:
    """The fingerprint of a block, and its parts by name."""
    parts = {
        **settings,
        "cell": cell.id,
        "order": _order(trials),
        "prompts": content_id([prompts.prompts[trial.prompt].sha256 for trial in trials]),
        "target": target.weights_sha256,
        "draft": draft.weights_sha256,
    }
    return content_id(parts), parts


def run_block(project: Project, study: Study, cell: Cell, index: int, engine: Engine | None = None) -> BlockReceipt:
    """Measure block `index` of a cell, or find it in the store, and write its receipt to the study's folder.

    Args:
        engine: by default the one that the study has the cell run on.

    Raises:
        ReproError: a trial failed; nothing of the block is kept.
    """
    engine = engine or engine_of(project, study, cell.engine)
    pair = study.pairs[cell.pair]
    prompts = read_model(project.prompts(study.name, cell.pair, cell.length), PromptSet)
    target = read_model(project.model_manifest(pair.target), Manifest)
    draft = read_model(project.model_manifest(pair.draft), Manifest)
    gate = read_model(project.gate(study.name, cell.pair), GateResult)
    trials = block_trials(study.seed, cell, index)
    fingerprint, parts = block_fingerprint(
        block_settings(project, study, cell, engine), cell, trials, prompts, target, draft
    )
    store = Store(project.store)

    receipt = _find_receipt(store, cell, index, fingerprint)
    if not gate.passed:
        receipt = BlockReceipt(
            cell=cell.id,
            block=index,
            order=_order(trials),
            fingerprint=fingerprint,
            parts=parts,
            records=(),
            void=f"the gate of pair {cell.pair} failed: {gate.failures}",
        )
    elif receipt is None:
        seen, records = _measure_block(project, study, engine, cell, index, trials, prompts, target, draft, store)
        receipt = BlockReceipt(
            cell=cell.id,
            block=index,
            order=_order(trials),
            fingerprint=fingerprint,
            parts=parts,
            records=records,
            canary=seen,
        )
        store.put_receipt(receipt)
    write_json(project.block_receipt(study.name, cell.id, index), receipt)
    report(block=cell.id, index=index)
    return receipt


def _find_receipt(store: Store, cell: Cell, index: int, fingerprint: str) -> BlockReceipt | None:
    """The block's receipt; one that is damaged, or names something that is, is set aside, and not without a word."""
    try:
        return store.get_receipt(fingerprint)
    except ReproError as error:
        aside = store.set_aside(fingerprint)
        say(f"{cell.id}, block {index}, is measured again: {error.what} Its receipt is kept as {aside}.")
        return None


def _order(trials: tuple[PlannedTrial, ...]) -> str:
    return "".join("B" if trial.treated else "A" for trial in trials)


def _measure_block(
    project: Project,
    study: Study,
    engine: Engine,
    cell: Cell,
    index: int,
    trials: tuple[PlannedTrial, ...],
    prompts: PromptSet,
    target: Manifest,
    draft: Manifest,
    store: Store,
) -> tuple[Canary | None, tuple[str, ...]]:
    tokenizer = Tokenizer.from_file(str(project.model_folder(target.name) / "tokenizer.json"))
    store.folder.mkdir(parents=True, exist_ok=True)
    with machine_lease() if engine.needs_machine else nullcontext() as lease:
        _clear_leftovers(store.folder)
        with tempfile.TemporaryDirectory(dir=store.folder, prefix=f"{_folder_prefix()}{os.getpid()}-") as folder:
            seen = canary(lease) if engine.needs_machine else None
            measured: list[TrialRecord] = []
            first: dict[int, Measurement] = {}
            for trial in trials:
                arm, prompt = arm_of(cell, trial), prompt_of(prompts, trial)
                folders = (project.model_folder(target.name), project.model_folder(draft.name), Path(folder))
                job = job_of(study, cell, trial, prompts, *folders, first.get(trial.prompt))
                report(trial=cell.id, index=index, position=trial.position, arm=arm.kind)
                measurement = engine.measure(job, lease)
                first.setdefault(trial.prompt, measurement)
                answer = measurement.text or tokenizer.decode(list(measurement.tokens), skip_special_tokens=True)
                measured.append(
                    _record(engine.name, cell, index, trial, arm, prompt, target, draft, measurement, answer)
                )
                report(done=cell.id, index=index, position=trial.position, seconds=measurement.seconds)
            cores = os.cpu_count() or 1
            busy = sum(was_busy(record.before, record.after, cores) for record in measured)
            if busy:
                load = max(record.before.load_1min for record in measured)
                report_warning(
                    f"{cell.id}, block {index}: the machine was busy around {busy} of {len(measured)} trials (load "
                    f"average up to {load:.1f} on {cores} cores); their times say little."
                )
            for trial, record in zip(trials, measured, strict=True):
                place = Path(folder) / f"{trial.position}"
                store.adopt(record, place.with_suffix(".f32"), place.with_suffix(".log.gz"))
            return seen, tuple(store.put_record(record) for record in measured)


def _folder_prefix() -> str:
    """How the working folders of this machine begin: others may measure into the same store on a shared disk."""
    return f"block-{content_id(socket.gethostname())[:12]}-"


def _clear_leftovers(folder: Path) -> None:
    """Delete the working folders of this machine's processes that were killed."""
    prefix = _folder_prefix()
    for leftover in folder.glob(f"{prefix}*"):
        pid = leftover.name.removeprefix(prefix).partition("-")[0]
        # This process has no folder yet: one with its number was another's.
        if pid.isdecimal() and (int(pid) == os.getpid() or not _runs(int(pid))):
            shutil.rmtree(leftover, ignore_errors=True)


def _runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True


def _record(
    engine: str,
    cell: Cell,
    index: int,
    trial: PlannedTrial,
    arm: Arm,
    prompt: Prompt,
    target: Manifest,
    draft: Manifest,
    measurement: Measurement,
    answer: str,
) -> TrialRecord:
    uses_draft = arm.kind is ArmKind.SPECULATIVE
    parts = parts_found(prompt.kind, prompt.answer, prompt.reply, answer)
    # What was measured goes into the record as it is, field by field of the same name.
    fields = Measurement.model_fields.keys() & TrialRecord.model_fields.keys()
    return TrialRecord(
        **{name: getattr(measurement, name) for name in fields},
        cell=cell.id,
        block=index,
        position=trial.position,
        treated=trial.treated,
        requested=arm,
        engine=engine,
        target=target.name,
        draft=draft.name if uses_draft else None,
        target_weights_sha256=target.weights_sha256,
        draft_weights_sha256=draft.weights_sha256 if uses_draft else None,
        prompt=PromptFacts(
            id=prompt.id,
            sha256=prompt.sha256,
            tokens=len(prompt.ids),
            kind=prompt.kind,
            depth=prompt.depth,
            answer=prompt.answer,
            compressed_share=_compressed_share(prompt.text),
        ),
        answer_text=answer,
        answer_found=all(parts.values()),
        answer_parts=parts,
        answer_ids=measurement.tokens,
    )


def _compressed_share(text: str) -> float | None:
    content = text.encode()
    return None if not content else round(len(zlib.compress(content, 9)) / len(content), 3)
