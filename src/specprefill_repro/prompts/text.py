"""Varied English prose from a seed: a small grammar over the vocabulary in `words.py`.

Only `random.Random.random()` is drawn from, the one method whose sequence Python promises to keep between versions.
"""

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from specprefill_repro.prompts import words

Item = TypeVar("Item")

VOWEL_AFTER_A = re.compile(r"\b([Aa]) (?=[aeiouAEIOU])(?!use)")
SLOT = re.compile(r"\{(\w+)\}")

# Slots in braces: who (a full name once per paragraph), she/her, town, building, trade are fixed within a paragraph,
# so that its sentences speak of the same people and places. All other slots are drawn anew each time.
PORTRAIT = (
    "{who}, {a} {mood} {trade} from {town}, {handled} {a} {adjective} {thing} {time}.",
    "{time}, {she} {went} down to the {landscape} with {a} {thing} under one arm.",
    "Nobody in {town} had ever {handled} so many {things}, and {first} {said} it {adverb}.",
    "{her} {relative}, {a} {retired} {job}, {said} that {quality} mattered more than {quality2}.",
    "The {building} smelled of {goods} and {goods2}, which {first} {adverb} called the smell of {quality}.",
    "On the shelf above {her} bed stood {a} {adjective} {thing} and {count} {adjective2} {things}.",
    "{reason}, {she} {handled} the {thing} and sold it to {a} {job} who was {mood}.",
    "{first} had learned the trade from {a} {adjective} {job} named {surname2}.",
    "The work took {count} weeks and much {goods3}, {reason}.",
    '"{quality} is like {a} {thing}," {she} {said}, "it is {adjective} until somebody needs it."',
    "{she} was {mood} about the {goods}, less so about the {animal} that {went} through the garden.",
)
PLACE = (
    "The {building} of {town} stands between the {landscape} and {a} {adjective} {landscape2}.",
    "Its walls are {adjective} and its {things} are {adjective2}, as travellers {adverb} remark.",
    "{count} {jobs} lived there {time}, each with {a} {thing} of their own.",
    "Beyond the {landscape} lies {town2}, known for its {goods} and for {a} {adjective} {building2}.",
    "Whoever {went} there {time} could hear {animals} and smell {goods}.",
    "The oldest map shows {a} {building2} where the {landscape} now begins.",
    "A {adjective} path leads past {count} {things} and ends at the {landscape2}.",
    "People there speak of {quality} the way others speak of {goods}.",
    "{weather} often hangs over the {building2} {time}.",
    "The {landscape} belongs to no one, {reason}.",
    "Most of the {goods} sold in {town2} is carried across this {landscape} by {a} {adjective} {animal}.",
)
RECORD = (
    "The records of the {building} list {count} {things}, {count2} barrels of {goods} and one {adjective} {thing}.",
    "Some of these were {handled} by the {trade}, the others {handled2} {reason}.",
    "An entry made {time} mentions {a} {adjective} {animal}, {handled} by {first} {surname}.",
    "The clerk {adverb} {handled} the {thing} and {handled2} the {things}.",
    "In the margin somebody has drawn {a} {animal} with {a} {thing}.",
    "{goods}, {goods2} and {goods3} came from {town}; the {things} came from further away.",
    "No price is given for the {goods}, {reason}.",
    "One page is missing, and the next begins with {weather} over the {landscape}.",
    "The handwriting changes {time}, perhaps with the arrival of {a} {mood} {job}.",
    "Of the {count} {adjective} {things}, all but {count2} were returned to the {building}.",
)
EVENT = (
    "{time}, {weather} came over the {landscape}, and the {jobs} {went} home.",
    "The {animals} were the first to notice, then the {trade} in the {building}.",
    "{who} {went} across the {landscape} with {count} {things}, {reason}.",
    "Somebody had left {a} {adjective} {thing} beside the {building}, half full of {goods}.",
    "By then the {jobs} of {town} had {handled} every {thing} that they could find.",
    "{a} {adjective} {animal} {went} out of the {building} and {adverb} over the {landscape}.",
    "What happened next is disputed: the {job} {said} one thing, the {trade} another.",
    "{adverb} and without a lamp, {she} {went} back for the {thing}.",
    "It was over within {count} minutes, and the {landscape} looked as {adjective} as before.",
    "Only the {goods} was lost, along with {count} {adjective} {things}.",
    "Later {first} {said} that {quality} had saved them, not {quality2}.",
)
CRAFT = (
    "To make {a} {adjective} {thing}, {a} {trade} needs {goods}, {goods2} and a good deal of {quality}.",
    "First the {goods} is {handled} and left to rest {time}.",
    "Then it is {adverb} {handled} with {a} {adjective} {thing2}, never with {a} {thing3}.",
    "Apprentices in {town} spend {count} months on the {thing2} alone.",
    "If the {goods2} is too {adjective}, the {thing} will turn out {adjective2}, {reason}.",
    "{who} keeps {a} {thing3} for this purpose, {handled} {time}.",
    "The finished {thing} is {handled}, {handled2} and shown to the {job}.",
    "A {mood} buyer may ask for {goods3} instead, which is {adjective} but smells of {animals}.",
    "Old hands say that the {landscape} gives the best {goods}.",
    "Every {thing2} in the {building} was made this way, except for the {adjective} ones.",
)
DEBATE = (
    "The council of {town} argued {time} about {a} {adjective} {thing}.",
    "{first} {surname}, the {trade}, {said} that the {building} had no need of {things}.",
    '"We have {goods}, we have {goods2}, and we have {quality}," {she} {said} {adverb}.',
    "The {job} {said} the opposite, {reason}.",
    "{count} members were {mood}; the others {adverb} {handled} their {things}.",
    "At last {a} {adjective} letter from {town2} was {handled} aloud.",
    "It spoke of {quality}, of {weather}, and of the {animals} on the {landscape}.",
    "In the end the {thing} was {handled} and the matter {handled2}.",
    "Some say that {quality} won that day, and some that the {goods} simply ran out.",
    "Since then no {job} has {handled} {a} {thing2} in the {building} {time}.",
)
LETTER = (
    "Dear {first}, the {things} that you sent from {town2} arrived {time}.",
    "One {thing} was {adjective}, but the {trade} here has {handled} it {adverb}.",
    "You ask about the {building}: it is as {adjective} as ever, and the {jobs} are {mood}.",
    "Yesterday {a} {animal} {went} into the kitchen and {handled} the {goods}.",
    "I have {handled} your {thing2} and put it beside the {adjective} {thing3}.",
    "We expect {weather} {time}, so the {landscape} will be {adjective2}.",
    "Please bring {count} {things} and some {goods2} when you come to {town}.",
    "Your {relative} {said} {adverb} that {quality} is wasted on {a} {job}.",
    "The road by the {landscape} is {adjective}, so come by the {landscape2}.",
    "Nothing else is new at the {building2}, {reason}.",
)
SHAPES = (PORTRAIT, PLACE, RECORD, EVENT, CRAFT, DEBATE, LETTER)

HEADINGS = (
    "{Opening}, or the {adjective} {thing} of {town}",
    "{Opening}: a chronicle of {town} and its {jobs}",
    "{Opening} and other notes from the {building} of {town}",
    "{Opening}: what the {jobs} of {town} remembered",
    "{Opening} in the {adjective} {landscape}, as told by {a} {trade}",
)

LISTS = (
    "Left over in the end were {items}.",
    "The last crate held {items}.",
    "Also for sale were {items}.",
    "On the cart lay {items}.",
    "The cellar was full of {items}.",
    "Still to be paid for were {items}.",
)

# Every word that a prompt may begin with.
OPENINGS = tuple(
    sorted(
        {
            word.capitalize()
            for vocabulary in (
                words.ADJECTIVES,
                words.ANIMALS,
                words.BUILDINGS,
                words.FIRST_NAMES,
                words.GOODS,
                words.LANDSCAPE,
                words.QUALITIES,
                words.SURNAMES,
                words.THINGS,
                words.TOWNS,
                words.TRADES,
            )
            for word in vocabulary
        }
    )
)

_RELATIVES = ("aunt", "brother", "cousin", "daughter", "father", "grandmother", "mother", "neighbour", "niece", "uncle")
_RETIRED = ("retired", "travelling", "former", "young", "learned", "celebrated", "penniless", "part-time")
_VOCABULARY: Mapping[str, Sequence[str]] = {
    "adjective": words.ADJECTIVES,
    "adverb": words.ADVERBS,
    "animal": words.ANIMALS,
    "building": words.BUILDINGS,
    "count": words.COUNTS,
    "first": words.FIRST_NAMES,
    "goods": words.GOODS,
    "handled": words.HANDLED,
    "job": words.TRADES,
    "landscape": words.LANDSCAPE,
    "mood": words.MOODS,
    "quality": words.QUALITIES,
    "reason": words.REASONS,
    "relative": _RELATIVES,
    "retired": _RETIRED,
    "said": words.SAID,
    "surname": words.SURNAMES,
    "thing": words.THINGS,
    "time": words.TIMES,
    "town": words.TOWNS,
    "trade": words.TRADES,
    "weather": words.WEATHER,
    "went": words.WENT,
}
_PLURALS = {"things": "thing", "jobs": "job", "animals": "animal"}


def pick(rng: random.Random, items: Sequence[Item]) -> Item:
    """Return one of `items`, each as likely."""
    return items[int(rng.random() * len(items))]


def shuffled(rng: random.Random, items: Sequence[Item]) -> list[Item]:
    """Return `items` in an order drawn from `rng`."""
    keys = [rng.random() for _ in items]
    return [item for _, item in sorted(zip(keys, items, strict=True), key=lambda pair: pair[0])]


def plural(noun: str) -> str:
    """Return the plural of a noun of our vocabulary."""
    if noun in ("deer", "salmon", "trout"):
        return noun
    if noun == "goose":
        return "geese"
    if noun.endswith("man"):
        return noun[:-3] + "men"
    if noun.endswith(("s", "x", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


def prose(rng: random.Random) -> Iterator[str]:
    """Yield sentences without end, each with what separates it from the one before: a space or an empty line.

    The same state of `rng` gives the same sentences; no two paragraphs share their people and places.
    """
    while True:
        shape = pick(rng, SHAPES)
        cast = _cast(rng)
        lines = shuffled(rng, shape)[: 3 + int(rng.random() * 4)]
        # The first line of a shape introduces its subject.
        lines = [shape[0], *(line for line in lines if line != shape[0])]
        for number, line in enumerate(lines):
            yield (" " if number else "\n\n") + _sentence(rng, line, cast)


def heading(rng: random.Random, opening: str) -> str:
    """Return a title that begins with the word `opening`."""
    return _fill(rng, pick(rng, HEADINGS), {**_cast(rng), "Opening": opening})


def list_sentence(frame: str, items: Sequence[str]) -> str:
    """Put at least one item into a frame of `LISTS`: `The last crate held ropes, old kettles and tin.`"""
    joined = items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]
    return frame.replace("{items}", joined)


def list_items(rng: random.Random) -> list[str]:
    """Return 80 different items for `list_sentence`: bare words first, then words with an adjective."""
    words_shuffled = shuffled(rng, (*(plural(thing) for thing in words.THINGS), *words.GOODS))
    return words_shuffled[:40] + [f"{pick(rng, words.ADJECTIVES)} {word}" for word in words_shuffled[40:80]]


def _cast(rng: random.Random) -> dict[str, str]:
    """Draw the people and places of one paragraph."""
    first, surname = pick(rng, words.FIRST_NAMES), pick(rng, words.SURNAMES)
    she, her = pick(rng, (("she", "her"), ("he", "his")))
    return {
        "who": f"{first} {surname}",
        "first": first,
        "surname": surname,
        "she": she,
        "her": her,
        "town": pick(rng, words.TOWNS),
        "building": pick(rng, words.BUILDINGS),
        "landscape": pick(rng, words.LANDSCAPE),
        "trade": pick(rng, words.TRADES),
        "thing": pick(rng, words.THINGS),
        "a": "a",
    }


def _sentence(rng: random.Random, line: str, cast: Mapping[str, str]) -> str:
    text = _fill(rng, line, cast)
    start = 1 if text.startswith('"') else 0
    return text[:start] + text[start].upper() + text[start + 1 :]


def _fill(rng: random.Random, line: str, cast: Mapping[str, str]) -> str:
    def draw(slot: re.Match[str]) -> str:
        name = slot[1]
        if name in cast:
            return cast[name]
        name = name.rstrip("23")
        if name in _PLURALS:
            return plural(pick(rng, _VOCABULARY[_PLURALS[name]]))
        return pick(rng, _VOCABULARY[name])

    return VOWEL_AFTER_A.sub(r"\1n ", SLOT.sub(draw, line))
