"""Words around numbers, for sentences in a terminal and on a page."""


def counted(number: int, what: str) -> str:
    """Such as `1 published figure`, `2 expectations of this study` or `1,024 trials`."""
    noun, of, rest = what.partition(" of ")
    return f"{number:,} {noun}{'' if number == 1 else 's'}{of}{rest}"
