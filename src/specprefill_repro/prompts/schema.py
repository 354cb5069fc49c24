"""A prompt and a set of prompts, as they lie on disk."""

from specprefill_repro.schema import Frozen
from specprefill_repro.study.schema import NeedleKind


class Prompt(Frozen):
    id: str
    """For people: kind, length, number, such as number-512-003."""
    kind: NeedleKind
    depth: float
    """Where the (first) needle stands, as a share of the text: 0 first, 1 last."""
    needles: tuple[str, ...]
    """What is hidden in the text and holds the answer."""
    answer: str
    text: str
    """The user's message, before the chat template."""
    reply: str
    """Beginning of the model's reply that the prompt already holds; empty when it holds none."""
    ids: tuple[int, ...]
    """What the model reads, chat template and beginning of the reply included."""
    free_from: int
    """Index of the first token that the chat template leaves free."""
    needle_tokens: tuple[tuple[int, int], ...]
    """Of each needle, its first token and the first one after it."""
    seed: str
    sha256: str
    """Of the canonical JSON of `ids`."""


class PromptSet(Frozen):
    """Prompts of one pair and one length; number i is the same however many the set holds."""

    pair: str
    tokenizer_sha256: str
    length: int
    prompts: tuple[Prompt, ...]
