"""The fact that is hidden in a prompt, the question about it, and the check of an answer."""

import random
import re
from dataclasses import dataclass
from math import lcm

from specprefill_repro.prompts.text import pick
from specprefill_repro.study.schema import NeedleKind

# In turn by prompt number; mixed, so that a small set already reaches the start, the middle and the end.
DEPTHS = (0.5, 0.1, 0.9, 0.3, 0.7)

# Well known, one word each, and in no other list of ours.
CITIES = (
    "Amsterdam Athens Baghdad Bangkok Barcelona Beijing Berlin Boston Brussels Budapest Cairo Chicago Copenhagen Delhi "
    "Dublin Edinburgh Geneva Hamburg Havana Helsinki Istanbul Jakarta Jerusalem Kyoto Lisbon London Madrid Manila "
    "Melbourne Miami Milan Montreal Moscow Mumbai Munich Nairobi Naples Oslo Paris Prague Rome Santiago Seattle Seoul "
    "Shanghai Singapore Stockholm Sydney Tehran Tokyo Toronto Venice Vienna Warsaw Zurich"
).split()


@dataclass(frozen=True)
class Needle:
    sentence: str
    """Holds the answer; stands somewhere in the text."""
    question: str
    """Stands at the end of the user's message."""
    reply: str
    """Beginning of the model's reply, up to where the answer stands."""
    answer: str


def kind_of(kinds: tuple[NeedleKind, ...], number: int) -> NeedleKind:
    """Kind of prompt `number`: the kinds in turn."""
    return kinds[number % len(kinds)]


def depth_of(kinds: tuple[NeedleKind, ...], number: int) -> float:
    """Depth of prompt `number`: the depths in turn, one step on after each full round, so that every kind meets all."""
    return DEPTHS[(number + number // lcm(len(kinds), len(DEPTHS))) % len(DEPTHS)]


def make_needle(rng: random.Random, kind: NeedleKind) -> Needle:
    """Draw a fact of that kind.

    The wording is one that a model of 135 million parameters answers from a dense prefill, with the answer among its
    first twelve tokens: four digits, and `Question:` in front, without which it often talks about the text instead.
    """
    if kind is NeedleKind.NUMBER:
        answer = str(1_000 + int(rng.random() * 9_000))
        return Needle(
            sentence=f"The treasure is hidden in room {answer}.",
            question="Question: In which room is the treasure hidden?",
            # Digits are tokens of their own, and so is the space before them: the next token is the first digit.
            reply="The treasure is hidden in room ",
            answer=answer,
        )
    answer = pick(rng, CITIES)
    return Needle(
        sentence=f"The treasure is hidden in the city of {answer}.",
        question="Question: In which city is the treasure hidden?",
        reply="The treasure is hidden in the city of",
        answer=answer,
    )


def answer_found(answer: str, text: str) -> bool:
    """Say whether `text` holds `answer` as a word of its own, in upper or lower case.

    A number must stand alone: 48213 is not in 148213, 48213.5 or 48213,7.
    """
    pattern = rf"(?<!\w)(?<!\d[.,]){re.escape(answer)}(?!\w)(?![.,]\d)"
    return re.search(pattern, text, re.IGNORECASE) is not None
