"""Why a server can't have run SpecPrefill rightly on two models, although no line of its log tells."""

import json
from pathlib import Path

from specprefill_repro.engines.history import Effect, EngineHistory, read_config
from specprefill_repro.files import content_id, read_limited
from specprefill_repro.models.manifest import MAX_TOKENIZER_BYTES, tokenizer_sha256
from specprefill_repro.trials.job import Job


def known_faults(history: EngineHistory, kind: str, version: str, job: Job) -> tuple[str, ...]:
    """In words: what config/engine_history.yaml knows of this release and these models, and two vocabularies.

    Neither server compares the tokenizers: the target's ids go straight into the draft.

    Raises:
        ReproError: a file of the models can't be read.
    """
    if job.draft_folder is None:
        return ()
    target, draft = Path(job.target_folder), Path(job.draft_folder)
    traps = history.silent_traps(kind, version, read_config(target), read_config(draft))
    found = tuple(f"{kind} {version}: {trap.sentence} ({trap.sources[0]})" for trap in traps)
    if _vocabulary(target) != _vocabulary(draft):
        found += ("target and draft have different tokenizers, so that the scores mean nothing",)
    return found


def faults_fingerprint(history: EngineHistory, kind: str, version: str) -> str:
    """Of the part of the table that decides about one release; joins the fingerprint of its trials."""
    return content_id(
        [
            fallback.model_dump(mode="json")
            for fallback in history.fallbacks
            if fallback.effect is Effect.WRONG and any(each.holds(kind, version) for each in fallback.where)
        ]
    )


def _vocabulary(folder: Path) -> str:
    return tokenizer_sha256(json.loads(read_limited(folder / "tokenizer.json", MAX_TOKENIZER_BYTES)))
