"""Checks of what was asked for: the same vocabulary, the model's own settings, and ours in effect."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace

from specprefill_repro.gate.pair import Finding, Loaded, Run, prefill
from specprefill_repro.prefill.architectures import structure
from specprefill_repro.prefill.arms import Request
from specprefill_repro.study.plan import Arm, ArmKind


def tokenizers_equal(pair: Loaded) -> Finding:
    target, draft = pair.target_manifest.tokenizer_sha256, pair.draft_manifest.tokenizer_sha256
    return Finding(
        passed=target == draft,
        measured=f"target {target[:12]}, draft {draft[:12]}",
        required="the same vocabulary, ids, merges and special tokens",
    )


def rotary_settings_read(pair: Loaded) -> Finding:
    """mlx_lm must look for the rotary settings where config.json has them, else it silently takes its defaults.

    Version 5 of transformers writes them as `rope_parameters`; mlx_lm reads those for some model types only.
    """
    overlooked = []
    for label, model, folder in (
        ("target", pair.target, pair.target_folder),
        ("draft", pair.draft, pair.draft_folder),
    ):
        config = json.loads((folder / "config.json").read_text())
        config = config.get("text_config") or config
        text = structure(model).text
        if "rope_parameters" in config and "rope_theta" not in config and not hasattr(text.args, "rope_parameters"):
            overlooked.append(f"{label}: rope_parameters of config.json were not read")
    return Finding(
        passed=not overlooked,
        measured="; ".join(overlooked) or "read, where there are any",
        required="base and scaling of the rotary embedding are those of config.json",
    )


def settings_in_effect(pair: Loaded) -> Finding:
    """Two requests that differ in every setting; each must leave behind what its own settings imply.

    What they imply is worked out here in the plainest way, from the description of the algorithm.
    """
    rules = (
        pair.selection.model_copy(update={"look_ahead": 3}),
        pair.selection.model_copy(update={"look_ahead": 2, "head": 5, "tail": 11, "chunk": 10}),
    )
    ids = pair.ids[:72]  # Enough for several chunks and passes.
    requests = [
        Request(ids, Arm(kind=ArmKind.SPECULATIVE, keep=keep, selection=rule), step, seed="gate")
        for keep, rule, step in zip((0.2, 0.5), rules, (32, 24), strict=True)
    ]
    # Without end tokens, the draft decodes as many tokens as it was asked for.
    without_end = replace(pair, draft_end_tokens=frozenset())
    found = [(asked, prefill(without_end, asked)) for asked in requests]
    problems = [problem for asked, ran in found for problem in _not_in_effect(asked, ran)]
    counts = " and ".join(f"{len(ran.kept)}" for _, ran in found)
    return Finding(
        passed=not problems,
        measured="; ".join(problems) or f"all of them, for two requests that kept {counts} of {len(ids)} tokens",
        required="keep, chunk, head, tail, look-ahead and step act as asked, for two requests that differ in all",
    )


def _not_in_effect(asked: Request, ran: Run) -> Iterator[str]:
    rule, kept, tokens = asked.arm.selection, set(ran.kept), len(asked.ids)
    assert rule is not None
    if not kept.issuperset(range(rule.head)):
        yield f"not all of the {rule.head} first tokens were kept"
    if not kept.issuperset(range(tokens - rule.tail, tokens)):
        yield f"not all of the {rule.tail} last tokens were kept"
    middle = range(rule.head, tokens - rule.tail)
    chunks = [middle[start : start + rule.chunk] for start in range(0, len(middle), rule.chunk)]
    whole, touched = sum(kept.issuperset(chunk) for chunk in chunks), sum(bool(kept & {*chunk}) for chunk in chunks)
    if whole != touched:
        yield f"{touched - whole} chunks of {rule.chunk} tokens were kept in part"
    wanted = math.ceil(len(chunks) * asked.arm.keep)
    if whole != wanted:
        yield f"{whole} of {len(chunks)} chunks were kept at keep {asked.arm.keep:g}, not {wanted}"
    if 1 + len(ran.look_ahead) != rule.look_ahead:
        yield f"{1 + len(ran.look_ahead)} queries scored, {rule.look_ahead} were asked for"
    for model, passes, read in (("draft", ran.draft_passes, tokens), ("target", ran.passes, len(kept))):
        if max(passes, default=0) != min(asked.step, read):
            yield f"the {model} read {max(passes, default=0)} tokens a pass at a step of {asked.step}"
