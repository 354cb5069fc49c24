"""Why a server can't run SpecPrefill rightly on two models, although no line of its log tells."""

import json
from pathlib import Path

from specprefill_repro.engines.history import Effect, EngineHistory, read_config
from specprefill_repro.errors import ReproError
from specprefill_repro.files import content_id, read_limited
from specprefill_repro.models.manifest import MAX_TOKENIZER_BYTES, tokenizer_sha256
from specprefill_repro.trials.job import Job


def known_faults(history: EngineHistory, kind: str, version: str, job: Job) -> tuple[str, ...]:
    """What config/engine_history.yaml knows of this release and these models that the log calls sparse, in words.

    Raises:
        ReproError: a model's config.json can't be read.
    """
    if job.draft_folder is None:
        return ()
    target, draft = read_config(Path(job.target_folder)), read_config(Path(job.draft_folder))
    traps = history.silent_traps(kind, version, target, draft)
    return tuple(f"{trap.id} (row {trap.row} of docs/engines.md): {trap.sentence}" for trap in traps)


def faults_fingerprint(history: EngineHistory, kind: str, version: str) -> str:
    """Of the part of the table that decides about one release; joins the fingerprint of its trials."""
    return content_id(
        [
            fallback.model_dump(mode="json")
            for fallback in history.fallbacks
            if fallback.effect is Effect.WRONG and any(each.holds(kind, version) for each in fallback.where)
        ]
    )


def refuse_other_tokenizer(server: str, folders: dict[str, str]) -> None:
    """The target's token ids go straight into the draft; to a draft with another tokenizer they mean something else.

    Raises:
        ReproError: the vocabularies differ. `folders` is {target or draft: folder}.
    """
    found = {
        role: tokenizer_sha256(json.loads(read_limited(Path(folder) / "tokenizer.json", MAX_TOKENIZER_BYTES)))
        for role, folder in folders.items()
    }
    if len(set(found.values())) > 1:
        raise ReproError(
            f"Target and draft have different tokenizers: {', '.join(f'{r} {h[:12]}' for r, h in found.items())}.",
            f"{server} does not compare them; it would score the prompt of another language, and no error would tell.",
            "Use a draft of the target's own family.",
        )
