"""Prompts of an exact number of tokens: title, prose with a needle, a list that fills the last tokens, question."""

import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path

from specprefill_repro.errors import ReproError
from specprefill_repro.files import content_id, read_model, write_json
from specprefill_repro.models.schema import Manifest
from specprefill_repro.project import Project
from specprefill_repro.prompts.needle import Needle, depth_of, kind_of, make_needle
from specprefill_repro.prompts.schema import Prompt, PromptSet
from specprefill_repro.prompts.text import LISTS, OPENINGS, heading, list_items, list_sentence, prose, shuffled
from specprefill_repro.prompts.tokenizer import ChatTokenizer, load_tokenizer
from specprefill_repro.study.load import load_study
from specprefill_repro.study.plan import prompts_needed
from specprefill_repro.study.schema import NeedleKind, Study

# Tokenisation is not additive, so a size is predicted, measured, and corrected. Each loop is bounded by this.
ROUNDS = 12


def write_prompts(project: Project, study_name: str, pair: str, length: int) -> Path:
    """Write the prompts of one pair and length of a study, as many as its largest cell takes; return the file.

    Reads config/studies/STUDY.yaml, the manifests of the pair's models, and the target's tokenizer.

    Raises:
        ReproError: unknown pair, a context too short for the prompt and its answer, or as `build_prompt_set`.
    """
    study = load_study(project, study_name)
    if pair not in study.pairs:
        raise ReproError(
            f"The study {study_name!r} has no pair {pair!r}; it has: {', '.join(study.pairs)}.",
            "The name is misspelt, or the pair was removed from the study.",
            f"Look at {project.study_file(study_name)}",
        )
    target, draft = study.pairs[pair].target, study.pairs[pair].draft
    manifests = {name: read_model(project.model_manifest(name), Manifest) for name in (target, draft)}
    check_context(study, length, manifests[target], manifests[draft])
    prompts = build_prompt_set(
        study_seed=study.seed,
        pair_name=pair,
        kinds=study.prompts.kinds,
        length=length,
        count=prompts_needed(study, pair, length),
        tokenizer=load_tokenizer(project.model_folder(target)),
        tokenizer_sha256=manifests[target].tokenizer_sha256,
        begin_reply=study.prompts.begin_reply,
    )
    path = project.prompts(study_name, pair, length)
    write_json(path, prompts)
    return path


def check_context(study: Study, length: int, target: Manifest, draft: Manifest) -> None:
    """Check that the target can read a prompt of `length` tokens and answer, and the draft can look ahead of it.

    Raises:
        ReproError: with the numbers of the first model that cannot.
    """
    wanted = (
        (target, study.prompts.answer_tokens, "answer tokens"),
        (draft, max(rule.passes for rule in study.selections), "look-ahead tokens"),
    )
    for model, extra, what in wanted:
        if length + extra > model.context:
            raise ReproError(
                f"A prompt of {length:,} tokens and {extra} {what} make {length + extra:,} tokens, but {model.name} "
                f"reads at most {model.context:,}.",
                "The model was made for shorter prompts; beyond them its answers mean nothing.",
                f"In config/studies/{study.name}.yaml use lengths of at most {model.context - extra}.",
            )


def build_prompt_set(
    study_seed: int,
    pair_name: str,
    kinds: tuple[NeedleKind, ...],
    length: int,
    count: int,
    tokenizer: ChatTokenizer,
    tokenizer_sha256: str,
    begin_reply: bool = True,
) -> PromptSet:
    """Build `count` prompts of exactly `length` tokens each, chat template and beginning of the reply included.

    Prompt i depends on the seed, the kinds, the length, the tokenizer, `begin_reply` and i alone: not on `count`, not
    on the pair.
    Any two prompts of a set differ in the first token that the template leaves free.

    Raises:
        ReproError: the length cannot hold title, needle and question (names the shortest that can), or there are
            not enough opening words that begin with different tokens.
    """
    try:
        prompts = tuple(_build_all(study_seed, kinds, length, count, tokenizer, begin_reply))
    except _TooShort as error:
        shortest = _shortest(study_seed, kinds, max(length + 1, error.at_least), count, tokenizer, begin_reply)
        raise ReproError(
            f"A prompt of {length} tokens is too short: title, needle, question and chat template need more.",
            f"With this tokenizer the shortest length that works for these {count} prompts is {shortest} tokens.",
            f"Set the length to {shortest} or more in the study's file.",
        ) from error
    return PromptSet(pair=pair_name, tokenizer_sha256=tokenizer_sha256, length=length, prompts=prompts)


class _TooShort(Exception):
    """The length cannot hold what every prompt needs; nothing below `at_least` can."""

    def __init__(self, at_least: int) -> None:
        super().__init__(at_least)
        self.at_least = at_least


def _shortest(
    study_seed: int,
    kinds: tuple[NeedleKind, ...],
    start: int,
    count: int,
    tokenizer: ChatTokenizer,
    begin_reply: bool,
) -> int:
    """Find the shortest length from `start` on at which all prompts can be built, by building them."""
    length = start
    for _ in range(1000):
        try:
            for _ in _build_all(study_seed, kinds, length, count, tokenizer, begin_reply):
                pass
            break
        except _TooShort as error:
            length = max(length + 1, error.at_least)
    return length


def _build_all(
    study_seed: int,
    kinds: tuple[NeedleKind, ...],
    length: int,
    count: int,
    tokenizer: ChatTokenizer,
    begin_reply: bool,
) -> Iterator[Prompt]:
    free_from = tokenizer.free_from()
    openings = _openings(random.Random(f"{study_seed}/openings/{length}"), tokenizer, free_from)
    first_tokens: set[int] = set()
    for number in range(count):
        opening = next(openings, None)
        if opening is None:
            raise ReproError(
                f"Only {number} prompts of {length} tokens can begin differently; {count} are wanted.",
                "Prompts must differ in their first token, and this tokenizer splits too many words alike.",
                "Lower the number of blocks in the study's file.",
            )
        prompt = _build(study_seed, kinds, length, number, opening, tokenizer, free_from, begin_reply)
        if prompt.ids[free_from] in first_tokens:
            raise ReproError(
                f"Prompt {prompt.id} begins with the same token as an earlier one.",
                "This tokenizer lets later text change the first token of a message.",
                "Use another model, or report it with the name of this one.",
            )
        first_tokens.add(prompt.ids[free_from])
        yield prompt


def _openings(rng: random.Random, tokenizer: ChatTokenizer, free_from: int) -> Iterator[str]:
    """Yield words in random order whose first tokens, at the start of a message, all differ."""
    seen = set()
    for word in shuffled(rng, OPENINGS):
        token = tokenizer.encode(tokenizer.render(f"{word}, or the old road")).ids[free_from]
        if token not in seen:
            seen.add(token)
            yield word


def _build(
    study_seed: int,
    kinds: tuple[NeedleKind, ...],
    length: int,
    number: int,
    opening: str,
    tokenizer: ChatTokenizer,
    free_from: int,
    begin_reply: bool,
) -> Prompt:
    kind, depth = kind_of(kinds, number), depth_of(kinds, number)
    seed = f"{study_seed}/{kind}/{length}/{number}"
    rng = random.Random(seed)
    needle = make_needle(rng, kind)
    reply = needle.reply if begin_reply else ""
    text = _exact_text(rng, opening, needle, depth, length, tokenizer, reply)
    rendered = tokenizer.render(text) + reply
    encoding = tokenizer.encode(rendered)
    return Prompt(
        id=f"{kind}-{length}-{number:03d}",
        kind=kind,
        depth=depth,
        needles=needle.pieces,
        answer=needle.answer,
        text=text,
        reply=reply,
        ids=tuple(encoding.ids),
        free_from=free_from,
        needle_tokens=tuple(_tokens_of(piece, rendered, encoding.offsets) for piece in needle.pieces),
        seed=seed,
        sha256=content_id(encoding.ids),
    )


def _tokens_of(piece: str, rendered: str, offsets: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """The first token of a piece of the rendered text, and the first one after it."""
    start = rendered.index(piece)
    end = start + len(piece)
    inside = [index for index, (left, right) in enumerate(offsets) if left < end and right > start]
    return inside[0], inside[-1] + 1


def _exact_text(
    rng: random.Random, opening: str, needle: Needle, depth: float, length: int, tokenizer: ChatTokenizer, reply: str
) -> str:
    """Compose a message that makes exactly `length` tokens in its template, the beginning of the reply included.

    As many sentences as fit are taken first, then a list is made that fills the rest. Both are measured on the whole
    text, so the result is exact; the number of corrections is bounded.
    """
    title, question = heading(rng, opening), f"\n\n{needle.question}"
    frames, items = shuffled(rng, LISTS), list_items(rng)
    sentences = _Sentences(prose(rng), tokenizer)

    def compose(taken: int, closing: str) -> str:
        body = sentences.first(taken)
        count = len(needle.pieces)
        depths = [(depth + number / count) % 1 for number in range(count)]
        # From the last place to the first, so that an insertion moves none that is still to come.
        for at, piece in sorted(zip(depths, needle.pieces, strict=True), reverse=True):
            place = sentences.place(taken, at)
            gap = "\n\n" if needle.block or not place else " "
            body.insert(place, gap + piece + ("\n\n" if needle.block else ""))
        return title + "".join(body) + closing + question

    def total(taken: int, closing: str = "") -> int:
        return len(tokenizer.encode(tokenizer.render(compose(taken, closing)) + reply).ids)

    bare = total(0)
    if bare > length:
        raise _TooShort(bare)
    cheapest = min(tokenizer.count([f" {list_sentence(frames[0], [item])}" for item in items]))
    room = max(0, length - bare - cheapest - 8)
    taken = sentences.fit(room)
    for _ in range(ROUNDS):
        if taken == 0:
            break
        # Sentences counted one by one may make more or fewer tokens than together: scale, and take again.
        scale = (total(taken) - bare) / sentences.size(taken)
        again = sentences.fit(room / scale)
        if again == taken:
            break
        taken = again

    gap = length - total(taken)
    for _ in range(ROUNDS):
        closing = None
        if gap >= 0:
            before = sentences.first(taken)[-1] if taken else ""
            closing = _closing(gap, frames, items, before, " " if taken else "\n\n", question, tokenizer)
        if closing is None:
            if taken == 0:
                raise _TooShort(length + 1)
            taken -= 1
            gap = length - total(taken)
            continue
        error = total(taken, closing) - length
        if error == 0:
            return compose(taken, closing)
        gap -= error
    raise ReproError(
        f"No text of exactly {length} tokens was found in {ROUNDS} tries.",
        "This tokenizer joins neighbouring sentences in a way that the builder did not foresee.",
        "Try a length one or two tokens larger, and report the model's name.",
    )


def _closing(
    gap: int,
    frames: Sequence[str],
    items: Sequence[str],
    before: str,
    separator: str,
    after: str,
    tokenizer: ChatTokenizer,
) -> str | None:
    """Make a list of things that adds `gap` tokens between `before` and `after`; None when no list does."""
    if gap == 0:
        return ""
    # What stands further away hardly matters; the caller measures the whole text.
    before, after = before[-40:], after[:40]
    base = tokenizer.count([before + after])[0]
    costs = dict(zip(items, tokenizer.count([f" {item}" for item in items]), strict=True))
    for frame in frames:

        def size(chosen: Sequence[str], frame: str = frame) -> int:
            return tokenizer.count([before + separator + list_sentence(frame, chosen) + after])[0] - base

        stem: list[str] = []
        for item in items:
            if size([*stem, item]) > gap:
                break
            stem.append(item)
        # Exchange the last items for one whose own cost says that the list would end exactly there; then measure.
        for cut in range(len(stem), max(len(stem) - 4, -1), -1):
            kept, others = stem[:cut], [item for item in items if item not in stem[:cut]]
            if not others:
                continue
            wanted = gap - (size([*kept, others[0]]) - costs[others[0]])
            for item in [other for other in others if costs[other] == wanted][:4]:
                if size([*kept, item]) == gap:
                    return separator + list_sentence(frame, [*kept, item])
    return None


class _Sentences:
    """Sentences taken from a stream when they are needed, with the sum of their sizes in tokens."""

    def __init__(self, stream: Iterator[str], tokenizer: ChatTokenizer) -> None:
        self._stream = stream
        self._tokenizer = tokenizer
        self._texts: list[str] = []
        self._ends = [0]

    def first(self, taken: int) -> list[str]:
        return self._texts[:taken]

    def size(self, taken: int) -> int:
        """Tokens of the first sentences, each counted on its own."""
        return self._ends[taken]

    def fit(self, tokens: float) -> int:
        """How many sentences make at most that many tokens."""
        while self._ends[-1] <= tokens:
            block = [next(self._stream) for _ in range(16 + len(self._texts) // 2)]
            for text, size in zip(block, self._tokenizer.count(block), strict=True):
                self._texts.append(text)
                self._ends.append(self._ends[-1] + size)
        return bisect_right(self._ends, tokens) - 1

    def place(self, taken: int, depth: float) -> int:
        """Before which of the first sentences the needle stands, so that about `depth` of the tokens come earlier."""
        wanted = depth * self._ends[taken]
        return min(range(taken + 1), key=lambda index: abs(self._ends[index] - wanted))
