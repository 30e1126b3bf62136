"""What a check found: a mark, what was seen, and what to do."""

from __future__ import annotations

from enum import Enum
from typing import Final

import attrs

TEXT_CHARACTERS_MAX: Final = 600
"""A finding is a sentence or two; what a strange file or a strange server says may be longer."""


class Mark(Enum):
    """How a finding weighs; the order of the members is the order of their weight."""

    OK = "ok"
    """As it should be, or not needed here."""
    WARNING = "warning"
    """Works, yet something here will hurt someone some day."""
    FAILURE = "failure"
    """Something that is needed does not work."""

    @property
    def symbol(self) -> str:
        return {"ok": "✓", "warning": "!", "failure": "✗"}[self.value]


def printable(text: str) -> str:
    """``text`` as one bounded line that no terminal obeys: it may come from a file or server that nobody knows."""
    line = " ".join(text.split())
    if len(line) > TEXT_CHARACTERS_MAX:
        line = f"{line[: TEXT_CHARACTERS_MAX - 1]}…"
    return "".join(character if character.isprintable() else "\ufffd" for character in line)


def _printable_or_none(text: str | None) -> str | None:
    return None if text is None else printable(text)


@attrs.frozen
class Finding:
    """One check's result.

    Args:
        mark: how it weighs.
        seen: the facts, in one sentence.
        todo: what a person does about it; None if there is nothing to do.
    """

    mark: Mark
    seen: str = attrs.field(converter=printable)
    todo: str | None = attrs.field(default=None, converter=_printable_or_none)


def ok(seen: str) -> Finding:
    """✓: ``seen`` is as it should be."""
    return Finding(Mark.OK, seen)


def warning(seen: str, *, todo: str) -> Finding:
    """!: it works, but ``todo`` should be done."""
    return Finding(Mark.WARNING, seen, todo)


def failure(seen: str, *, todo: str) -> Finding:
    """✗: it does not work until ``todo`` is done."""
    return Finding(Mark.FAILURE, seen, todo)
