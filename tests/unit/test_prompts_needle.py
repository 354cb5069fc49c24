"""An answer counts only when it stands there as a word of its own."""

import random
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specprefill_repro.prompts.needle import CITIES, DEPTHS, answer_found, depth_of, kind_of, make_needle
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
@given(st.integers(0, 2**32 - 1), st.sampled_from(list(NeedleKind)))
def test_needle_holds_its_answer_and_the_question_does_not(seed: int, kind: NeedleKind) -> None:
    needle = make_needle(random.Random(seed), kind)
    assert answer_found(needle.answer, needle.sentence)
    assert not answer_found(needle.answer, needle.question)
    assert needle.answer in CITIES if kind is NeedleKind.CITY else len(needle.answer) == 4


@pytest.mark.parametrize("kinds", [(NeedleKind.CITY,), tuple(NeedleKind), (*NeedleKind, *NeedleKind, NeedleKind.CITY)])
def test_kinds_and_depths_take_turns_until_all_combinations_are_met(kinds: tuple[NeedleKind, ...]) -> None:
    seen = {(kind_of(kinds, number), depth_of(kinds, number)) for number in range(len(kinds) * len(DEPTHS))}
    assert seen == set(product(kinds, DEPTHS))


def test_five_prompts_cover_all_depths() -> None:
    assert {depth_of(tuple(NeedleKind), number) for number in range(5)} == set(DEPTHS)
