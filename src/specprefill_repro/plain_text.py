"""Text from others, such as a chip's name in a bundle, made harmless for a terminal and a page."""

import unicodedata

HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Categories of Unicode: control characters, invisible ones that change how others are read, and line separators."""


def without_controls(text: str) -> str:
    """Show control characters and those that reverse the direction of text by their code, so that none takes effect."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(f"⟨U+{ord(char):04X}⟩" if _hidden(char) else char for char in text)


def _hidden(char: str) -> bool:
    return unicodedata.category(char) in HIDDEN and char not in "\n\t"
