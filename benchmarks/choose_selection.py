"""Which selection rule keeps the needle with the fewest tokens: candidates on real weights, on prompts of their own.

    .venv/bin/python benchmarks/choose_selection.py scan      # needles kept, many rules, no target
    .venv/bin/python benchmarks/choose_selection.py unseen    # the same for the named rules, on other prompts
    .venv/bin/python benchmarks/choose_selection.py answers   # on those, what the target answers

Rules are compared at equal numbers of kept tokens, head, tail and whole chunks included: for each rule and prompt the
keep rate is the largest whose tokens fit into that share of the prompt. A needle counts as kept when all its tokens
are. The draft is the demo's base model, which finds needles; the target of `answers` is the same model, so what is lost
is lost to selection alone. Every prompt is built twice: with the answer's beginning at its end, where the last prompt
token asks for the answer itself, and without, where it is the end of the chat template.
"""

import argparse
import random
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from specprefill_repro.prefill.blas import use_fast_blas

use_fast_blas()

import mlx.core as mx  # noqa: E402  (after the BLAS)

from specprefill_repro.estimates.statistics import share_interval  # noqa: E402
from specprefill_repro.prefill.architectures import end_tokens  # noqa: E402
from specprefill_repro.prefill.arms import Models, Request  # noqa: E402
from specprefill_repro.prefill.chunked import most_likely, new_cache, next_logits  # noqa: E402
from specprefill_repro.prefill.dense import prefill as prefill_dense  # noqa: E402
from specprefill_repro.prefill.loading import load_model  # noqa: E402
from specprefill_repro.prefill.look_ahead import Attention, captured_calls, look_ahead  # noqa: E402
from specprefill_repro.prefill.sampling import chooser  # noqa: E402
from specprefill_repro.prefill.scoring import token_scores  # noqa: E402
from specprefill_repro.prefill.selection import best_chunks, divide, random_chunks  # noqa: E402
from specprefill_repro.prefill.sparse import prefill_kept  # noqa: E402
from specprefill_repro.project import find_project  # noqa: E402
from specprefill_repro.prompts.build import build_prompt_set  # noqa: E402
from specprefill_repro.prompts.needle import parts_found  # noqa: E402
from specprefill_repro.prompts.schema import Prompt  # noqa: E402
from specprefill_repro.prompts.tokenizer import load_tokenizer  # noqa: E402
from specprefill_repro.study.plan import Arm, ArmKind  # noqa: E402
from specprefill_repro.study.presets import PRESETS  # noqa: E402
from specprefill_repro.study.schema import NeedleKind, Selection  # noqa: E402

MODEL = "smollm2-135m"
KINDS = (NeedleKind.NUMBER, NeedleKind.CITY)
SHARES = (0.2, 0.3)
STEP = 128
SCAN_SEED, UNSEEN_SEED = 1, 2
"""Of the prompts: what was chosen on the first is checked on the second."""


@dataclass(frozen=True)
class Case:
    """A prompt and what the draft's look-ahead saw of it, by the way in which its tokens were taken."""

    prompt: Prompt
    style: str
    greedy: list[Attention]
    """Of the last prompt token and of 8 tokens after it."""
    ends_after: int
    """Queries until an end token stops it."""
    sampled: list[Attention]
    """Of 8 sampled tokens."""


def cases(model: Any, ends: frozenset[int], seed: int, length: int, count: int) -> Iterator[Case]:
    tokenizer = load_tokenizer(find_project().model_folder(MODEL))
    for style, begins in (("reply begun", True), ("plain", False)):
        made = build_prompt_set(seed, "pair", KINDS, length, count, tokenizer, "", begins)
        for prompt in made.prompts:
            yield read(model, ends, prompt, style)


def read(model: Any, ends: frozenset[int], prompt: Prompt, style: str) -> Case:
    cache = new_cache(model)
    greedy, decoded = look_ahead(model, prompt.ids, cache, STEP, 9, frozenset())
    stops = next((place + 1 for place, token in enumerate(decoded) if token in ends), 9)
    for entry in cache:
        entry.trim(entry.offset - (len(prompt.ids) - 1))
    choose = chooser(0.6, 0.95, prompt.sha256)
    token, rows = prompt.ids[-1], []
    with captured_calls(model) as calls:
        for _ in range(9):
            calls.clear()
            token = choose(next_logits(model, token, cache))
            rows.append([call.queries for call in calls])
    sampled = [
        Attention(mx.concatenate([row[index] for row in rows[1:]], axis=2), layer.keys, layer.scale, layer.sinks)
        for index, layer in enumerate(greedy)
    ]
    return Case(prompt, style, greedy, stops, sampled)


def scores(case: Case, rule: Selection) -> list[float]:
    if rule.temperature > 0:
        return token_scores(case.sampled, rule.pool).tolist()
    first = 0 if rule.prompt_query else 1
    last = first + rule.look_ahead
    if rule.stop_at_end:
        last = max(first + 1, min(last, case.ends_after))
    layers = [Attention(layer.queries[:, :, first:last], layer.keys, layer.scale, layer.sinks) for layer in case.greedy]
    return token_scores(layers, rule.pool).tolist()


def fitting_keep(tokens: int, share: float, rule: Selection) -> float | None:
    """The largest keep rate at which the rule keeps at most that share; None: not even its head and tail fit."""
    division = divide(tokens, 1.0, rule)
    always = sum(len(part) for part in division.always)
    room = int(share * tokens) - always
    if room < 0:
        return None
    chunks = len(division.chunks) + (len(division.always) - 1 if rule.tail_in_budget else 0)
    chosen = min(len(division.chunks), room // rule.chunk) + chunks - len(division.chunks)
    return chosen / chunks


def kept_needle(case: Case, kept: Iterable[int]) -> bool:
    return {token for start, stop in case.prompt.needle_tokens for token in range(start, stop)} <= set(kept)


def candidates() -> dict[str, Selection]:
    rules = {name: Selection(preset=name) for name in PRESETS if name != "ours"}
    for look in (1, 2, 4, 8):
        for head, tail in ((0, 0), (4, 32), (32, 64)):
            for chunk in (8, 16, 32):
                for pool in (1, 5, 13):
                    name = f"{look} queries, head {head}, tail {tail}, chunk {chunk}, pool {pool}"
                    rules[name] = Selection(look_ahead=look, head=head, tail=tail, chunk=chunk, pool=pool)
    return rules


def scan(rules: dict[str, Selection], seed: int, length: int, count: int) -> None:
    model, config = load_model(find_project().model_folder(MODEL))
    found: dict[tuple[str, str, float], list[bool]] = defaultdict(list)
    for case in cases(model, end_tokens(config), seed, length, count):
        by_queries: dict[Any, list[float]] = {}
        for name, rule in rules.items():
            key = (rule.temperature, rule.prompt_query, rule.look_ahead, rule.stop_at_end, rule.pool)
            if key not in by_queries:
                by_queries[key] = scores(case, rule)
            for share in SHARES:
                keep = fitting_keep(length, share, rule)
                kept = [] if not keep else best_chunks(by_queries[key], keep, rule)
                found[name, case.style, share].append(kept_needle(case, kept))
        rule = Selection()
        for share in SHARES:
            keep = fitting_keep(length, share, rule) or 0.01
            found["random", case.style, share].append(
                kept_needle(case, random_chunks(length, keep, rule, case.prompt.sha256))
            )
        print(case.prompt.id, case.style, case.ends_after, file=sys.stderr, flush=True)
    columns = sorted({(style, share) for _, style, share in found})
    print("| rule | all |" + "".join(f" {style}, {share:.0%} |" for style, share in columns))
    print("|---|---|" + "---|" * len(columns))
    names = dict.fromkeys(name for name, _, _ in found)
    for name in sorted(names, key=lambda name: -sum(sum(found[name, *column]) for column in columns)):
        every = [found[name, *column] for column in columns]
        total = f"{sum(map(sum, every))} of {sum(map(len, every))}"
        print(f"| {name} | {total} |" + "".join(f" {sum(values)} of {len(values)} |" for values in every))


@dataclass
class Tally:
    prompts: int = 0
    needles: int = 0
    dense_found: int = 0
    found: int = 0
    lost: int = 0
    agree: int = 0
    divergences: tuple[float, ...] = ()
    tokens: int = 0


def answers(length: int, count: int, share: float) -> None:
    folder = find_project().model_folder(MODEL)
    model, config = load_model(folder)
    tokenizer = load_tokenizer(folder)
    ends = end_tokens(config)
    rules = {name: Selection(preset=name) for name in PRESETS}
    tallies: dict[tuple[str, str], Tally] = defaultdict(Tally)
    models = Models(target=model, draft=model, draft_end_tokens=ends)
    for case in cases(model, ends, UNSEEN_SEED, length, count):
        dense = Request(ids=case.prompt.ids, arm=Arm(kind=ArmKind.DENSE), step=STEP, seed="")
        with prefill_dense(models, dense) as prefilled:
            wide, first, answered = answer(prefilled, tokenizer, ends, case.prompt)
        chosen = {}
        for name, rule in rules.items():
            keep = fitting_keep(length, share, rule)
            if keep:
                chosen[name] = (rule, best_chunks(scores(case, rule), keep, rule))
        rule = rules["ours"]
        keep = fitting_keep(length, share, rule) or 0.01
        chosen["random"] = (rule, random_chunks(length, keep, rule, case.prompt.sha256))
        for name, (rule, kept) in chosen.items():
            arm = Arm(kind=ArmKind.SPECULATIVE, keep=0.5, selection=rule)
            request = Request(ids=case.prompt.ids, arm=arm, step=STEP, seed="")
            with prefill_kept(models, request, kept, []) as prefilled:
                sparse, token, found = answer(prefilled, tokenizer, ends, case.prompt)
            tally = tallies[name, case.style]
            tally.prompts += 1
            tally.tokens += len(kept)
            tally.needles += kept_needle(case, kept)
            tally.dense_found += answered
            tally.found += found
            tally.lost += answered and not found
            tally.agree += token == first
            tally.divergences += (float((mx.exp(wide) * (wide - sparse)).sum()),)
        print(case.prompt.id, case.style, file=sys.stderr, flush=True)
    print("| rule | prompts | tokens read | needle kept | dense found | found | lost, 95 % | same first token | KL |")
    print("|---|---|---|---|---|---|---|---|---|")
    for (name, style), tally in tallies.items():
        lost = share_interval(tally.lost, tally.dense_found)
        bounds = "" if lost is None else f" ({lost.low:.0%} to {lost.high:.0%})"
        middle = sorted(tally.divergences)[tally.prompts // 2]
        print(
            f"| {name} | {style} | {tally.tokens / tally.prompts / length:.0%} | {tally.needles} of {tally.prompts} | "
            f"{tally.dense_found} | {tally.found} | {tally.lost}{bounds} | {tally.agree} | {middle:.2g} |"
        )


def answer(prefilled: Any, tokenizer: Any, ends: frozenset[int], prompt: Prompt) -> tuple[mx.array, int, bool]:
    logits = prefilled.logits.astype(mx.float32)
    tokens = [prefilled.first_token]
    while len(tokens) < 24 and tokens[-1] not in ends:
        tokens.append(most_likely(prefilled.decode(tokens[-1])))
    return (
        logits - mx.logsumexp(logits),
        tokens[0],
        all(parts_found(prompt.kind, prompt.answer, prompt.reply, tokenizer.decode(tokens)).values()),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("scan", "unseen", "answers"))
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--share", type=float, default=0.3)
    asked = parser.parse_args()
    random.seed(0)
    if asked.what == "answers":
        answers(asked.length, asked.prompts, asked.share)
    elif asked.what == "unseen":
        scan({name: Selection(preset=name) for name in PRESETS}, UNSEEN_SEED, asked.length, asked.prompts)
    else:
        scan(candidates(), SCAN_SEED, asked.length, asked.prompts)


if __name__ == "__main__":
    main()
