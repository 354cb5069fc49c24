"""Prompts must be exactly as long as asked, all different at once, and the same everywhere."""

import hashlib
import itertools
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specprefill_repro.errors import ReproError
from specprefill_repro.files import read_model, write_json, write_text
from specprefill_repro.models.schema import LocalSource, Manifest
from specprefill_repro.project import Project
from specprefill_repro.prompts import build
from specprefill_repro.prompts.build import build_prompt_set, write_prompts
from specprefill_repro.prompts.needle import DEPTHS, answer_found
from specprefill_repro.prompts.schema import PromptSet
from specprefill_repro.prompts.text import prose
from specprefill_repro.prompts.tokenizer import ChatTokenizer, load_tokenizer
from specprefill_repro.study.load import load_study
from specprefill_repro.study.plan import prompts_needed
from specprefill_repro.study.schema import NeedleKind
from tiny_model import SPECIALS, write_tiny_tokenizer

BOTH = (NeedleKind.NUMBER, NeedleKind.CITY)
SHA = "0" * 64


def chat_ids(tokenizer: ChatTokenizer, text: str, reply: str = "") -> tuple[int, ...]:
    return tuple(tokenizer.encode(tokenizer.render(text) + reply).ids)


def prose_corpus() -> str:
    stream = prose(random.Random("corpus"))
    return "".join(next(stream) for _ in range(3000))


@pytest.fixture(scope="module", params=[600, 4000])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    """Hardly more than letters, and most words of the prose whole."""
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tiny_tokenizer(folder, vocabulary=request.param, corpus=prose_corpus() if request.param > 1000 else "a b c")
    return load_tokenizer(folder)


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    folder = tmp_path_factory.mktemp("words")
    write_tiny_tokenizer(folder, vocabulary=4000, corpus=prose_corpus())
    return load_tokenizer(folder)


def prompts_of(
    tokenizer: ChatTokenizer,
    *,
    seed: int = 1,
    pair: str = "pair",
    kinds: tuple[NeedleKind, ...] = BOTH,
    length: int = 700,
    count: int = 4,
) -> PromptSet:
    return build_prompt_set(seed, pair, kinds, length, count, tokenizer, SHA)


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(450, 3000))
def test_laws_of_a_prompt(tokenizer: ChatTokenizer, seed: int, length: int) -> None:
    made = prompts_of(tokenizer, seed=seed, length=length)
    assert len({prompt.ids[prompt.free_from] for prompt in made.prompts}) == len(made.prompts)
    for number, prompt in enumerate(made.prompts):
        # Exactly as long as asked, and what encoding the text anew gives.
        assert len(prompt.ids) == length == made.length
        assert (prompt.ids, prompt.free_from) == (chat_ids(tokenizer, prompt.text, prompt.reply), tokenizer.free_from())
        assert prompt.kind is BOTH[number % 2]
        assert prompt.depth in DEPTHS
        # The needle once, its answer once, its span where it is said to be.
        (needle,) = prompt.needles
        assert prompt.text.count(needle) == 1
        assert answer_found(prompt.answer, needle)
        assert not answer_found(prompt.answer, prompt.text.replace(needle, ""))
        ((first, last),) = prompt.needle_tokens
        assert tokenizer.decode(prompt.ids[first:last]).strip() == needle
        # The answer's own tokens are what comes next: the beginning of the reply ends where one of them begins.
        space = "" if prompt.reply.endswith(" ") else " "
        answered = chat_ids(tokenizer, prompt.text, prompt.reply + space + prompt.answer)
        assert prompt.reply
        assert answered[: len(prompt.ids)] == prompt.ids
        # Data, not markup; the question stands at the end.
        assert not any(special in prompt.text for special in SPECIALS)
        assert "{" not in prompt.text
        assert prompt.text.endswith("?")
        # Recomputed here from its definition.
        canonical = json.dumps(list(prompt.ids), separators=(",", ":")).encode()
        assert prompt.sha256 == hashlib.sha256(canonical).hexdigest()


def test_every_kind_hides_all_its_pieces_where_it_says(words: ChatTokenizer) -> None:
    made = prompts_of(words, kinds=tuple(NeedleKind), length=900, count=10)
    for prompt in made.prompts:
        assert len(prompt.ids) == 900
        assert len(prompt.needles) == len(prompt.needle_tokens) == (3 if prompt.kind is NeedleKind.SEVERAL else 1)
        for needle, (first, last) in zip(prompt.needles, prompt.needle_tokens, strict=True):
            assert prompt.text.count(needle) == 1
            assert needle in words.decode(prompt.ids[first:last])
        starts = sorted(first for first, _ in prompt.needle_tokens)
        # Far apart, so that no one chunk holds two.
        assert all(after - before > 150 for before, after in itertools.pairwise(starts))


def test_a_study_may_leave_the_whole_reply_to_the_model(words: ChatTokenizer) -> None:
    made = build_prompt_set(1, "pair", BOTH, 300, 4, words, SHA, begin_reply=False)
    for prompt in made.prompts:
        assert prompt.reply == ""
        assert (prompt.ids, prompt.free_from) == (chat_ids(words, prompt.text), words.free_from())
        assert len(prompt.ids) == 300


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.sampled_from([(NeedleKind.CITY,), BOTH]))
def test_prompt_depends_neither_on_count_nor_on_pair(
    words: ChatTokenizer, seed: int, count: int, kinds: tuple[NeedleKind, ...]
) -> None:
    few = prompts_of(words, seed=seed, count=count, kinds=kinds, length=300)
    many = prompts_of(words, seed=seed, count=12, kinds=kinds, length=300, pair="other")
    assert few.prompts == many.prompts[:count]


def test_every_length_in_a_row_can_be_made(words: ChatTokenizer) -> None:
    for length in range(200, 240):
        assert {len(prompt.ids) for prompt in prompts_of(words, length=length).prompts} == {length}


def test_other_seed_or_length_gives_other_prompts(words: ChatTokenizer) -> None:
    sets = [prompts_of(words), prompts_of(words, seed=2), prompts_of(words, length=701)]
    assert len({prompt.text for each in sets for prompt in each.prompts}) == 12


def test_needles_stand_at_their_depths(words: ChatTokenizer) -> None:
    for prompt in prompts_of(words, length=3000, count=10).prompts:
        reached = (prompt.needle_tokens[0][0] - prompt.free_from) / (len(prompt.ids) - prompt.free_from)
        assert abs(reached - prompt.depth) < 0.05


def test_many_prompts_begin_differently(words: ChatTokenizer) -> None:
    made = prompts_of(words, length=300, count=30)
    assert len({prompt.ids[prompt.free_from] for prompt in made.prompts}) == 30


def test_too_many_prompts_are_explained(words: ChatTokenizer) -> None:
    with pytest.raises(ReproError, match="can begin differently; 5000 are wanted"):
        prompts_of(words, length=300, count=5000)


@pytest.mark.parametrize("length", [1, 60])
def test_too_short_length_names_one_that_works(tokenizer: ChatTokenizer, length: int) -> None:
    with pytest.raises(ReproError, match="too short") as caught:
        prompts_of(tokenizer, length=length)
    shortest = int(caught.value.next.split(" or more")[0].rsplit(" ", 1)[1])
    assert {len(prompt.ids) for prompt in prompts_of(tokenizer, length=shortest).prompts} == {shortest}
    with pytest.raises(ReproError, match="too short"):
        prompts_of(tokenizer, length=shortest - 1)


def test_same_prompts_in_another_process_with_other_hash_seed(tmp_path: Path) -> None:
    write_tiny_tokenizer(tmp_path)
    script = (
        "import sys, pathlib; from specprefill_repro.prompts.build import *; "
        "t = load_tokenizer(pathlib.Path(sys.argv[1])); "
        f"print(content_id(build_prompt_set(5, 'p', tuple(NeedleKind), 800, 3, t, '{SHA}')))"
    )
    hashes = {
        subprocess.run(
            [sys.executable, "-c", script, str(tmp_path)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    here = build.content_id(build_prompt_set(5, "p", tuple(NeedleKind), 800, 3, load_tokenizer(tmp_path), SHA))
    assert hashes == {here + "\n"}


def test_work_grows_with_length_and_not_with_its_square(words: ChatTokenizer) -> None:
    encoded = []

    class Counting:
        def encode(self, text: str, **options: object) -> object:
            encoded.append(len(text))
            return words.tokenizer.encode(text, **options)

        def encode_batch(self, texts: list[str], **options: object) -> object:
            encoded.extend(map(len, texts))
            return words.tokenizer.encode_batch(texts, **options)

    counting = ChatTokenizer(Counting(), words.template, words.special, words.reserved)
    prompt = prompts_of(counting, length=30_000, count=1).prompts[0]
    assert len(prompt.ids) == 30_000
    assert sum(encoded) < 15 * len(prompt.text)


STUDY = """
name: small
title: A small study
question: Does it work?
seed: 3
pairs:
  one: {target: big, draft: little}
  two: {target: big, draft: big}
prompts: {kinds: [number, city], answer_tokens: 12}
comparisons:
  - {pair: one, treatment: speculative, lengths: [600], keep: [0.2], blocks: 2}
  - {pair: one, treatment: placebo, lengths: [600], blocks: 1}
  - {pair: two, treatment: placebo, lengths: [600], blocks: 1}
"""


def project_with_models(root: Path, *, big: int = 8192, little: int = 8192) -> Project:
    project = Project(root)
    write_text(project.study_file("small"), STUDY)
    for name, context in (("big", big), ("little", little)):
        write_tiny_tokenizer_into(project.model_folder(name))
        manifest = Manifest(
            name=name,
            source=LocalSource(kind="local", path="."),
            locked=True,
            model_type="llama",
            layers=2,
            vocabulary=600,
            context=context,
            parameters=1,
            weight_bytes=1,
            dtype="float16",
            quantization=None,
            tokenizer_sha256="a" * 64,
            weights_sha256="b" * 64,
            files=(),
            fingerprint="c" * 64,
        )
        write_json(project.model_manifest(name), manifest)
    return project


def write_tiny_tokenizer_into(folder: Path) -> None:
    folder.mkdir(parents=True)
    write_tiny_tokenizer(folder)


def test_file_holds_as_many_prompts_as_the_largest_cell_takes(tmp_path: Path) -> None:
    project = project_with_models(tmp_path)
    path = write_prompts(project, "small", "one", 600)
    wanted = prompts_needed(load_study(project, "small"), "one", 600)
    made = read_model(path, PromptSet)
    assert path == project.prompts("small", "one", 600)
    assert (made.pair, made.length, made.tokenizer_sha256, len(made.prompts)) == ("one", 600, "a" * 64, wanted)
    # Another pair with the same tokenizer reads the same prompts, and writing again gives the same bytes.
    other = read_model(write_prompts(project, "small", "two", 600), PromptSet).prompts
    assert other == made.prompts[: len(other)]
    before = path.read_bytes()
    assert write_prompts(project, "small", "one", 600).read_bytes() == before


@pytest.mark.parametrize(("contexts", "numbers"), [((611, 8192), "612"), ((8192, 607), "608")])
def test_prompt_beyond_a_context_is_refused_with_the_numbers(
    tmp_path: Path, contexts: tuple[int, int], numbers: str
) -> None:
    project = project_with_models(tmp_path, big=contexts[0], little=contexts[1])
    with pytest.raises(ReproError, match=f"make {numbers} tokens, but .* reads at most {min(contexts)}"):
        write_prompts(project, "small", "one", 600)
    assert not project.prompts("small", "one", 600).exists()


def test_prompt_that_just_fits_the_contexts_is_written(tmp_path: Path) -> None:
    assert write_prompts(project_with_models(tmp_path, big=612, little=608), "small", "one", 600).exists()


def test_unknown_pair_is_explained(tmp_path: Path) -> None:
    with pytest.raises(ReproError, match="no pair 'three'; it has: one, two"):
        write_prompts(project_with_models(tmp_path), "small", "three", 600)
