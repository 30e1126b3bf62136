"""What is wrong with a configuration: every fault of it at once, each with its place, its key, and what is allowed.

Source: SPEC section 10.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final, NoReturn

import attrs

from calculet_trio.errors import ConfigurationRefused
from calculet_trio.settings.allowed import KeyPath, dotted

SHOWN_FAULTS_MAX: Final = 50
"""More than a person reads; the rest is counted."""
SHOWN_CHARACTERS_MAX: Final = 80


@attrs.frozen
class Origin:
    """Where a value comes from.

    Args:
        name: a file as it was named, a flag, or ``default``.
        line: in the file, from 1.
    """

    name: str
    line: int | None = None

    def __str__(self) -> str:
        return self.name if self.line is None else f"{self.name}:{self.line}"


DEFAULT: Final = Origin("default")


@attrs.frozen
class Fault:
    """One thing to mend.

    Args:
        origin: where it stands.
        path: the key; empty for the file as a whole.
        problem: what is wrong: ``is 99999``, ``is not a known key``.
        allowed: what would be right; empty where the problem says it.
    """

    origin: Origin
    path: KeyPath
    problem: str
    allowed: str = ""

    @property
    def key(self) -> str:
        return dotted(self.path)

    def __str__(self) -> str:
        sentence = f"{self.key} {self.problem}".strip()
        return f"{self.origin}: {sentence}" + (f"; allowed: {self.allowed}" if self.allowed else "")


def refuse(faults: Sequence[Fault]) -> NoReturn:
    """End with all of ``faults``, at least one.

    Raises:
        ConfigurationRefused: always.
    """
    assert faults
    lines = [str(fault) for fault in faults[:SHOWN_FAULTS_MAX]]
    if len(faults) > SHOWN_FAULTS_MAX:
        lines.append(f"and {len(faults) - SHOWN_FAULTS_MAX} more")
    head = "the configuration is refused: " if len(lines) == 1 else f"the configuration has {len(faults)} faults:\n  "
    raise ConfigurationRefused(
        head + "\n  ".join(lines), hint="`calculet-trio config defaults service` (or scheduler) shows every key"
    )


def shown(value: object) -> str:
    """``value`` as JSON, cut to what fits a line."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**SHOWN_CHARACTERS_MAX:
        return "an integer of more than 80 digits"
    text = json.dumps(value, default=str, ensure_ascii=False)
    text = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
    return text if len(text) <= SHOWN_CHARACTERS_MAX else f"{text[:SHOWN_CHARACTERS_MAX]}…"


def described(value: object) -> str:
    """The problem of a wrong ``value``."""
    return "is empty" if value is None else f"is {shown(value)}"


def hidden(value: object) -> str:
    """The problem of a wrong value that may be a secret."""
    return f"is not one ({len(value)} characters, not shown)" if isinstance(value, str) else "is not one (not shown)"
