"""What changed between two plain values, in words."""

import re
from collections.abc import Iterator
from typing import Any

LONGEST = 60
KEYS = ("id", "path", "name")
"""What tells the entries of a list apart, in this order of preference."""
SHORT_DIGEST = re.compile(r"[0-9a-f]{16}")
LONG_DIGEST = re.compile(r"[0-9a-f]{64}")


def changes(old: Any, new: Any, place: str = "") -> Iterator[str]:
    """One sentence for each place where two values of JSON differ, such as `treated: keep 0.2 -> 0.3`.

    Digests of 16 digits only say that something changed; of 64, their beginning is shown.
    """
    if old == new:
        return
    were_lists = isinstance(old, list)
    old, new = _by_key(old, new), _by_key(new, old)
    if not isinstance(old, dict) or not isinstance(new, dict):
        if _is_short_digest(old) and _is_short_digest(new):
            yield f"{place} changed".strip()
        else:
            yield f"{place} {_text(old)} -> {_text(new)}".strip()
        return
    if were_lists and old.keys() == new.keys() and list(old) != list(new):
        yield f"{place} in another order".strip()
    for key in {**old, **new}:
        inner = f"{place}: {key}" if place else f"{key}"
        if key not in old:
            yield f"{inner} added{_value(new[key])}"
        elif key not in new:
            yield f"{inner} removed{_value(old[key])}"
        else:
            yield from changes(old[key], new[key], inner)


def _by_key(value: Any, other: Any) -> Any:
    """A list of objects as a dictionary, so that one entry more does not change all that follow it.

    An empty list is one of objects when the `other` is.
    """
    both = [*value, *other] if isinstance(value, list) and isinstance(other, list) else [None]
    if not all(isinstance(entry, dict) for entry in both):
        return value
    for key in KEYS:
        names = [entry.get(key) for entry in value]
        if all(isinstance(name, str) for name in names) and len(set(names)) == len(names):
            return dict(zip(names, value, strict=True))
    return {f"number {number}": entry for number, entry in enumerate(value, 1)}


def _is_short_digest(value: Any) -> bool:
    return isinstance(value, str) and SHORT_DIGEST.fullmatch(value) is not None


def _value(value: Any) -> str:
    """Behind `added` or `removed`: nothing for what is long or says nothing."""
    return "" if isinstance(value, dict | list) or _is_short_digest(value) else f" ({_text(value)})"


def _text(value: Any) -> str:
    if isinstance(value, str) and LONG_DIGEST.fullmatch(value):
        return value[:12]
    if isinstance(value, list):
        text = f"[{', '.join(_text(each) for each in value)}]"
    elif value is None:
        return "none"
    elif isinstance(value, bool):
        return "yes" if value else "no"
    else:
        text = str(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
