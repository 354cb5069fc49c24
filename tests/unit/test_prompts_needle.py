"""An answer counts only when it stands there as a word of its own."""

import ast
import json
import random
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specprefill_repro.prompts.needle import CITIES, DEPTHS, answer_found, depth_of, kind_of, make_needle, parts_found
from specprefill_repro.study.schema import NeedleKind


@pytest.mark.parametrize(
    ("answer", "text", "found"),
    [
        ("48213", "48213", True),
        ("48213", "The secret number is 48213.", True),
        ("48213", "It is **48213**, as written", True),
        ("48213", "148213", False),
        ("48213", "482130", False),
        ("48213", "48213.5", False),
        ("48213", "1,48213", False),
        ("48213", "48,213", False),
        ("48213", "48 213", False),
        ("48213", "x48213", False),
        ("48213", "", False),
        ("Rome", "rome", True),
        ("Rome", "ROME!", True),
        ("Rome", "Romeo and Juliet", False),
        ("Rome", "the syndrome", False),
        ("Rome", "Rome_2", False),
    ],
)
def test_answer_found(answer: str, text: str, found: bool) -> None:
    assert answer_found(answer, text) is found


@settings(deadline=None)
@given(st.text(min_size=1, max_size=6), st.text(max_size=20))
def test_answer_is_text_and_not_a_pattern(answer: str, text: str) -> None:
    assert answer_found(answer, f"- {answer} -")
    if answer.isascii() and text.isascii() and answer.lower() not in text.lower():
        assert not answer_found(answer, text)


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([NeedleKind.NUMBER, NeedleKind.CITY]))
def test_needle_holds_its_answer_and_the_question_does_not(seed: int, kind: NeedleKind) -> None:
    needle = make_needle(random.Random(seed), kind)
    assert answer_found(needle.answer, *needle.pieces)
    assert not answer_found(needle.answer, needle.question)
    assert needle.answer in CITIES if kind is NeedleKind.CITY else len(needle.answer) == 4


@pytest.mark.parametrize("kinds", [(NeedleKind.CITY,), tuple(NeedleKind), (*NeedleKind, *NeedleKind, NeedleKind.CITY)])
def test_kinds_and_depths_take_turns_until_all_combinations_are_met(kinds: tuple[NeedleKind, ...]) -> None:
    seen = {(kind_of(kinds, number), depth_of(kinds, number)) for number in range(len(kinds) * len(DEPTHS))}
    assert seen == set(product(kinds, DEPTHS))


def test_five_prompts_cover_all_depths() -> None:
    assert {depth_of(tuple(NeedleKind), number) for number in range(5)} == set(DEPTHS)


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(list(NeedleKind)))
def test_the_right_answer_is_found_in_full_and_nothing_gives_none_of_it(seed: int, kind: NeedleKind) -> None:
    needle = make_needle(random.Random(seed), kind)
    rest = (
        needle.answer.removeprefix(needle.reply.removeprefix("```python\n")) if kind is not NeedleKind.SEVERAL else ""
    )
    if kind is NeedleKind.SEVERAL:
        rest = ", ".join(needle.answer.split())
    for reply, text in (
        (needle.reply, rest),
        ("", f"{'```python' if kind is NeedleKind.CODE else ''}\n{needle.answer}"),
    ):
        assert all(parts_found(kind, needle.answer, reply, text).values())
    assert not any(parts_found(kind, needle.answer, needle.reply, " I do not know.").values())
    # All of it stands in the text, none of it in the question.
    pieces = " ".join(needle.pieces)
    words = json.loads(needle.answer).values() if kind is NeedleKind.JSON else needle.answer.splitlines()
    words = needle.answer.split() if kind is NeedleKind.SEVERAL else words
    assert all(str(word) in pieces and str(word) not in needle.question for word in words)
    if kind is NeedleKind.CODE:
        ast.parse(needle.answer)


def test_several_needles_have_different_answers_in_different_pieces() -> None:
    needle = make_needle(random.Random(3), NeedleKind.SEVERAL)
    assert len(needle.pieces) == len(needle.answer.split()) == 3
    assert [number in piece for number, piece in zip(needle.answer.split(), needle.pieces, strict=True)] == [True] * 3


@pytest.mark.parametrize(
    ("text", "line", "body"),
    [
        ("wine):\n    return 3 * wine + 5\n```", True, True),
        ("wine):\n    return 3 * wine + 6", True, False),
        ("wine):\n  return 3 * wine + 5", True, False),
        ("wine): return 3 * wine + 5", False, False),
        ("beer):\n    return 3 * wine + 5", False, True),
        ("", False, False),
    ],
)
def test_code_counts_only_word_for_word(text: str, line: bool, body: bool) -> None:
    answer = "def weigh_cart(wine):\n    return 3 * wine + 5"
    found = parts_found(NeedleKind.CODE, answer, "```python\ndef weigh_cart(", text)
    assert found == {"def weigh_cart(wine):": line, "return 3 * wine + 5": body}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('Ann Lee", "city": "Rome", "room": 1234}', {"valid", "owner", "city", "room"}),
        ('Ann Lee", "city": "Rome", "room": "1234"} and more', {"valid", "owner", "city", "room"}),
        ('Ann Lee", "city": "Oslo", "room": 1234}', {"valid", "owner", "room"}),
        ('Ann Lee", "city": "Rome"}', {"owner", "city"}),
        ('Ann Lee", "city": "Rome", "room": 1234, "key": 1}', {"owner", "city", "room"}),
        ('Ann Lee", "city": "Rome", "room": 1234', set()),
        ("Ann Lee", set()),
        ('Ann Lee", "city": ' + "[" * 100_000, set()),
    ],
)
def test_json_must_parse_and_hold_exactly_what_was_asked(text: str, found: set[str]) -> None:
    answer = json.dumps({"owner": "Ann Lee", "city": "Rome", "room": 1234})
    parts = parts_found(NeedleKind.JSON, answer, '{"owner": "', text)
    assert {name for name, there in parts.items() if there} == found
