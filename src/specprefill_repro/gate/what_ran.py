"""Checks of what an arm leaves behind: what ran, what was read, and in which numeric types."""

from specprefill_repro.gate.pair import Finding, Loaded, run
from specprefill_repro.prefill.architectures import structure

ARMS = {"dense": "dense", "speculative": "sparse", "random": "sparse"}
"""By arm: the outcome that its label promises."""


def arms_run_as_named(pair: Loaded) -> Finding:
    """The outcome is that of a trial: from caches and rotary embeddings, and never from an arm's word or its speed."""
    found = {name: run(pair, name) for name in ARMS}
    told = [
        f"{name}: {ran.outcome}, {ran.scored} tokens scored, {len(ran.kept)} of {len(pair.ids)} read"
        for name, ran in found.items()
    ]
    return Finding(
        passed=all(ran.outcome == ARMS[name] for name, ran in found.items()),
        measured="; ".join(told),
        required="; ".join(f"{name}: {outcome}" for name, outcome in ARMS.items()),
    )


def layers_read_kept_tokens(pair: Loaded) -> Finding:
    """Attention layers are counted by their caches, recurrent ones by what they were called with."""
    found, expected = structure(pair.target), {name: len(run(pair, name).kept) for name in ARMS}
    attending = {name: run(pair, name).cached_after for name in ARMS}
    recurrent = {name: sorted({*run(pair, name).recurrent}) for name in ARMS}
    told = []
    for kind, number, counts in (
        ("attention", len(found.attention), attending),
        ("recurrent", len(found.recurrent), recurrent),
    ):
        read = ", ".join(f"{name} {' or '.join(map(str, counts[name]))}" for name in ARMS)
        told.append(f"{number} {kind} layers read {read}" if number else f"no {kind} layers")
    if found.cautions:
        told.append(f"special about the target: {', '.join(found.cautions)}")
    right = all(attending[name] == [expected[name]] for name in ARMS)
    right = right and (not found.recurrent or all(recurrent[name] == [expected[name]] for name in ARMS))
    return Finding(
        passed=right,
        measured="; ".join(told),
        required=f"kept tokens: {', '.join(f'{name} {count}' for name, count in expected.items())}; recurrent layers "
        "take them as if nothing lay between",
    )


def caches_start_empty(pair: Loaded) -> Finding:
    """Also of the second prefill of the same prompt."""
    runs = [run(pair, "speculative"), run(pair, "speculative again")]
    complete = all(ran.cached_after == [len(ran.kept)] for ran in runs)
    before = " and ".join(f"{ran.cached_before[0]} (target), {ran.cached_before[1]} (draft)" for ran in runs)
    return Finding(
        passed=all(ran.cached_before == (0, 0) for ran in runs) and complete,
        measured=f"before two prefills of one prompt: {before}; after: {'the' if complete else 'not the'} kept ones",
        required="0 tokens before, exactly the kept ones after, in every layer",
    )


def last_token_kept(pair: Loaded) -> Finding:
    """The first generated token must be predicted from the last prompt token."""
    kept = [run(pair, name).kept[-1] for name in ("speculative", "random")]
    return Finding(
        passed=kept == [len(pair.ids) - 1] * 2,
        measured=f"last kept positions {kept[0]} (speculative), {kept[1]} (random) of {len(pair.ids)} tokens",
        required=f"position {len(pair.ids) - 1} in both",
    )


def types_unchanged(pair: Loaded) -> Finding:
    """Of keys, values, the output of every layer, and logits; while reading and while decoding."""
    found = {name: run(pair, name).types for name in ARMS}
    told = [
        f"{name}: {', '.join(f'{what} {dtype}' for what, dtype in types.items())}"
        for name, types in found.items()
        if name == "dense" or types != found["dense"]
    ]
    return Finding(
        passed=all(types == found["dense"] for types in found.values()),
        measured="; ".join(told) + ("; the other arms the same" if len(told) == 1 else ""),
        required="the same in every arm",
    )
