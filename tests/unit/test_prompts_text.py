"""The prose must be varied, free of answers, and the same on every machine."""

import hashlib
import itertools
import random
import re
import zlib

from hypothesis import given, settings
from hypothesis import strategies as st

from specprefill_repro.prompts.needle import CITIES
from specprefill_repro.prompts.text import LISTS, OPENINGS, SHAPES, heading, list_items, list_sentence, plural, prose

SEEDS = st.integers(0, 2**32 - 1)


def sample(seed: object, characters: int = 10_000) -> str:
    text, stream = "", prose(random.Random(str(seed)))
    while len(text) < characters:
        text += next(stream)
    return text[:characters]


@settings(deadline=None, max_examples=40)
@given(SEEDS)
def test_prose_does_not_compress_like_repeated_text(seed: int) -> None:
    text = sample(seed).encode()
    repeated = (text[:400] * 25)[: len(text)]
    assert len(zlib.compress(text, 9)) / len(text) > 0.35
    assert len(zlib.compress(repeated, 9)) / len(repeated) < 0.1


@settings(deadline=None, max_examples=40)
@given(SEEDS)
def test_hardly_any_sentence_comes_twice(seed: int) -> None:
    sentences = [sentence.strip() for sentence in itertools.islice(prose(random.Random(seed)), 300)]
    assert len(set(sentences)) >= 297


@settings(deadline=None, max_examples=40)
@given(SEEDS)
def test_sentences_are_well_formed(seed: int) -> None:
    for sentence in itertools.islice(prose(random.Random(seed)), 100):
        assert re.fullmatch(r"( |\n\n)\"?[A-Z][^{}\n]*[.\"]", sentence), sentence
        assert "  " not in sentence
        assert not re.search(r"\ba [aeio]", sentence), sentence
        assert not re.search(r"\ban [^aeiou]", sentence), sentence


@settings(deadline=None, max_examples=40)
@given(SEEDS)
def test_no_digit_and_no_real_city_stands_in_prose_headings_or_lists(seed: int) -> None:
    rng = random.Random(seed)
    text = " ".join([sample(seed), heading(rng, OPENINGS[0]), *list_items(rng)])
    assert not re.search(r"\d", text)
    assert not re.search(rf"\b({'|'.join(CITIES)})\b", text, re.IGNORECASE)


def test_no_word_of_the_vocabulary_is_a_city() -> None:
    assert not {word.casefold() for word in OPENINGS} & {city.casefold() for city in CITIES}


def test_prose_is_plain_ascii_without_markup() -> None:
    text = sample("markup", 100_000) + "".join(OPENINGS) + "".join(LISTS).replace("{items}", "")
    assert text.isascii()
    assert not set(text) & set("<>|{}[]\\%#$`")


def test_every_slot_of_every_template_is_known() -> None:
    # 20,000 sentences draw every line of every shape; an unknown slot raises.
    assert sum(1 for _ in itertools.islice(prose(random.Random("slots")), 20_000)) == 20_000
    assert len(SHAPES) >= 5


def test_prose_of_a_seed_never_changes() -> None:
    # The hash was taken once. When it changes, every stored prompt gets another text.
    assert hashlib.sha256(sample("pinned").encode()).hexdigest() == PINNED


PINNED = "ed1d4f1f1b35dbe6939a78d1fcc8ebb920693c446e5c3de20bed8b5dc888ddc9"


def test_plurals() -> None:
    nouns = ("rope", "fox", "finch", "ferry", "donkey", "fisherman", "goose", "trout", "compass", "torch")
    assert [plural(noun) for noun in nouns] == [
        *("ropes", "foxes", "finches", "ferries", "donkeys", "fishermen", "geese", "trout", "compasses", "torches")
    ]


def test_list_sentence_joins_items() -> None:
    assert list_sentence(LISTS[1], ["ropes"]) == "The last crate held ropes."
    assert list_sentence(LISTS[1], ["ropes", "old kettles", "tin"]) == "The last crate held ropes, old kettles and tin."
