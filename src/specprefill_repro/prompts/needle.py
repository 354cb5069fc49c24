"""What is hidden in a prompt, the question about it, and the check of an answer."""

import json
import random
import re
from dataclasses import dataclass
from math import lcm
from typing import Any

from specprefill_repro.prompts.text import pick, shuffled
from specprefill_repro.prompts.words import FIRST_NAMES, GOODS, HANDLED, SURNAMES, THINGS
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


COLOURS = ("red", "green", "blue", "white", "black", "yellow")
SEVERAL = 3


@dataclass(frozen=True)
class Needle:
    pieces: tuple[str, ...]
    """Hold the answer; stand somewhere in the text, the first at the prompt's depth, the others evenly spread."""
    question: str
    """Stands at the end of the user's message."""
    reply: str
    """Beginning of the model's reply, up to where the answer stands."""
    answer: str
    """What a full answer holds, for people and, for some kinds, to be looked for."""
    block: bool = False
    """Whether the pieces are paragraphs of their own."""


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
        answer = _number(rng)
        return Needle(
            pieces=(f"The treasure is hidden in room {answer}.",),
            question="Question: In which room is the treasure hidden?",
            # Digits are tokens of their own, and so is the space before them: the next token is the first digit.
            reply="The treasure is hidden in room ",
            answer=answer,
        )
    if kind is NeedleKind.CITY:
        answer = pick(rng, CITIES)
        return Needle(
            pieces=(f"The treasure is hidden in the city of {answer}.",),
            question="Question: In which city is the treasure hidden?",
            reply="The treasure is hidden in the city of",
            answer=answer,
        )
    return {NeedleKind.SEVERAL: _several, NeedleKind.CODE: _code, NeedleKind.JSON: _json_record}[kind](rng)


def _number(rng: random.Random) -> str:
    return str(1_000 + int(rng.random() * 9_000))


def _several(rng: random.Random) -> Needle:
    colours, numbers = shuffled(rng, COLOURS)[:SEVERAL], [_number(rng) for _ in range(SEVERAL)]
    last = len(colours) - 1
    named = ", the ".join(colours[:last]) + f" and the {colours[last]}"
    return Needle(
        pieces=tuple(f"The {c} key opens room {n}." for c, n in zip(colours, numbers, strict=True)),
        question=f"Question: Which rooms do the {named} key open?",
        reply=f"The {colours[0]} key opens room ",
        answer=" ".join(numbers),
    )


def _code(rng: random.Random) -> Needle:
    verb, thing, argument = (
        word.replace("-", "_") for word in (pick(rng, HANDLED), pick(rng, THINGS), pick(rng, GOODS))
    )
    lines = (
        f"def {verb}_{thing}({argument}):",
        f"    return {2 + int(rng.random() * 98)} * {argument} + {_number(rng)}",
    )
    return Needle(
        pieces=("```python\n" + "\n".join(lines) + "\n```",),
        question=f"Question: What is the code of the function {verb}_{thing}, word for word?",
        reply=f"```python\ndef {verb}_{thing}(",
        answer="\n".join(lines),
        block=True,
    )


def _json_record(rng: random.Random) -> Needle:
    owner, room = f"{pick(rng, FIRST_NAMES)} {pick(rng, SURNAMES)}", _number(rng)
    return Needle(
        pieces=(f"The treasure of {owner} is hidden in room {room}.",),
        question="Question: In which room is the treasure hidden, and whose is it, "
        "as JSON with the keys room and owner?",
        reply='{"room": ',
        answer=json.dumps({"room": int(room), "owner": owner}),
    )


def parts_found(kind: NeedleKind, answer: str, reply: str, text: str) -> dict[str, bool]:
    """Which parts of the answer the model gave; it answered in full when all are there.

    Numbers and cities must stand as words of their own; each line of code verbatim, indentation included; JSON must
    parse (`valid`), and then hold exactly the keys asked for, each with its value.

    Args:
        reply: beginning of the reply that the prompt already held.
        text: what the model added.
    """
    if kind is NeedleKind.CODE:
        lines = (reply + text).splitlines()
        return {line.strip(): line in lines for line in answer.splitlines()}
    if kind is NeedleKind.JSON:
        wanted, found = json.loads(answer), first_object(reply + text)
        values = {key: found is not None and str(found.get(key)) == str(value) for key, value in wanted.items()}
        return {"valid": found is not None and found.keys() == wanted.keys(), **values}
    parts = answer.split() if kind is NeedleKind.SEVERAL else [answer]
    return {part: answer_found(part, text) for part in parts}


def first_object(text: str) -> dict[str, Any] | None:
    """The first JSON object that begins in `text`; None when there is none or it is cut short or broken."""
    start = text.find("{")
    if start < 0:
        return None
    try:
        found, _ = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def answer_found(answer: str, text: str) -> bool:
    """Say whether `text` holds `answer` as a word of its own, in upper or lower case.

    A number must stand alone: 48213 is not in 148213, 48213.5 or 48213,7.
    """
    pattern = rf"(?<!\w)(?<!\d[.,]){re.escape(answer)}(?!\w)(?![.,]\d)"
    return re.search(pattern, text, re.IGNORECASE) is not None
