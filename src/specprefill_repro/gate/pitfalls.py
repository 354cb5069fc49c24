"""Ways in which a SpecPrefill benchmark silently measures something else; what guards against each.

Each was seen in a public implementation or benchmark; docs/gate.md has the sources. The numbers are those of that list.
The gate guards against them once for each pair of models, before anything is timed. Where a record can show the fault
too, every single trial is checked for it (specprefill_repro.estimates.evidence).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Pitfall:
    what: str
    """What goes wrong, in words for a reader who knows neither the paper nor the code."""
    trial: str | None = None
    """What every trial's evidence must show against it; None where one trial can't show it."""


PITFALLS = {
    1: Pitfall(
        "SpecPrefill fails or is off, and the engine reads the whole prompt without a word.",
        "what ran is told by what the target's caches and rotary embeddings saw",
    ),
    2: Pitfall(
        "Settings get lost on the way: another keep rate or step is in force than the one on the label.",
        "the real share of tokens read and the look-ahead stand beside what was asked for",
    ),
    12: Pitfall(
        "As many tokens are kept as expected, but not those that scored best.",
        "the list of kept positions and its hash agree; random selection runs as a control",
    ),
    13: Pitfall("The draft samples without a seed, so that each run keeps other tokens."),
    14: Pitfall("Scores come from the wrong queries or keys: they mean nothing, at full speed."),
    15: Pitfall(
        "Kept tokens are moved together, so that each stands at another position than in the prompt.",
        "every rotary embedding of the target saw the kept positions",
    ),
    16: Pitfall("Positions are encoded in another layout than the model's own."),
    17: Pitfall("Only an unbroken run of tokens was tested, which hides wrong positions."),
    19: Pitfall(
        "The end of the prompt is dropped, so that the answer begins from the wrong place.",
        "the last prompt token is kept",
    ),
    20: Pitfall(
        "Something that one run leaves in the model changes the next one, dense runs included.",
        "every rotary embedding is the model's own again",
    ),
    21: Pitfall("Draft and target mean different words by the same numbers."),
    22: Pitfall(
        "Recurrent layers keep a running state in place of positions; nobody notes what they were given.",
        "every cache holds exactly the kept tokens",
    ),
    31: Pitfall(
        "Tokens read earlier wait in a cache, so that less is read than the label says.",
        "both models' caches are empty when the clock starts, and hold what was read when it stops",
    ),
    41: Pitfall(
        "After dropping tokens the model computes in a wider type: slower decoding, other numbers.",
        "keys and logits have the same type in both trials of a pair",
    ),
}
