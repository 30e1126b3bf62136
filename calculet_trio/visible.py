"""Text of strangers, for people: whatever a terminal would not show, or would obey, is spelled out."""

from __future__ import annotations


def visible(text: str, *, apart_from: str = "") -> str:
    """``text`` with each character that is not printable as Python escapes it; those of ``apart_from`` stay."""
    if text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable() or character in apart_from
        else character.encode("unicode_escape", "backslashreplace").decode("ascii")
        for character in text
    )


def difference(text: str, other: str) -> int:
    """Where two texts part, in characters: an error that shows their beginnings may show the same twice."""
    pairs = enumerate(zip(text, other, strict=False))
    return next((at for at, (one, two) in pairs if one != two), min(len(text), len(other)))
