"""What a key's value may be: one object that checks a value, says so in words, and says so to an editor.

Everything else about a key is derived from these: the error a person reads, the JSON Schema, the comments of
``config/``. Source: SPEC section 10.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Mapping
from enum import Enum
from typing import Any, Final, Protocol

import attrs

KeyPath = tuple[str | int, ...]
"""Where a value stands: ``("tenants", 0, "weight")``."""

TEXT_CHARACTERS_MAX: Final = 4096
"""The longest path of the system; no text of ours is longer."""


def dotted(path: KeyPath) -> str:
    """``path`` as people write it: ``tenants[0].weight``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


@attrs.frozen
class Refusal:
    """One value that is not allowed.

    Args:
        value: as it was read.
        allowed: in words.
        below: where it stands beneath the key, for an element of a list.
        secret: it is not to be shown.
        problem: what is wrong, where "is VALUE" does not say it.
    """

    value: object
    allowed: str
    below: KeyPath = ()
    secret: bool = False
    problem: str | None = None


class Refused(ValueError):
    """A key's value holds these refusals; at least one."""

    def __init__(self, *refusals: Refusal) -> None:
        super().__init__("; ".join(refusal.allowed for refusal in refusals))
        self.refusals = refusals


class Allowed(Protocol):
    """A kind of value."""

    @property
    def words(self) -> str:
        """What is allowed, after "allowed: "."""

    def accept(self, value: object) -> Any:
        """``value`` as settings hold it.

        Raises:
            Refused: with every refusal in it.
        """

    def schema(self) -> dict[str, Any]:
        """As JSON Schema says it."""


@attrs.frozen
class Whole:
    """An integer from ``least`` to ``most``; never ``true``, never ``2.0``."""

    least: int
    most: int

    @property
    def words(self) -> str:
        return f"an integer from {self.least} to {self.most}"

    def accept(self, value: object) -> int:
        if type(value) is not int or not self.least <= value <= self.most:
            raise Refused(Refusal(value, self.words))
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.least, "maximum": self.most}


@attrs.frozen
class Real:
    """A finite number from ``least`` to ``most``."""

    least: float
    most: float

    @property
    def words(self) -> str:
        return f"a number from {self.least:g} to {self.most:g}"

    def accept(self, value: object) -> float:
        # Compared before it is converted: a float would turn the largest integers into an error of its own.
        if type(value) not in (int, float) or not self.least <= value <= self.most:  # type: ignore[operator]
            raise Refused(Refusal(value, self.words))
        accepted = float(value)  # type: ignore[arg-type]
        assert math.isfinite(accepted)
        return accepted

    def schema(self) -> dict[str, Any]:
        return {"type": "number", "minimum": self.least, "maximum": self.most}


@attrs.frozen
class YesNo:
    """``true`` or ``false``."""

    words: str = "true or false"

    def accept(self, value: object) -> bool:
        if not isinstance(value, bool):
            raise Refused(Refusal(value, self.words))
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


@attrs.frozen
class Choice:
    """One of an enum's values."""

    kind: type[Enum]

    @property
    def words(self) -> str:
        return " or ".join(self._names)

    @property
    def _names(self) -> list[str]:
        return [str(member.value) for member in self.kind]

    def accept(self, value: object) -> Enum:
        if not isinstance(value, str) or value not in self._names:
            raise Refused(Refusal(value, self.words))
        return self.kind(value)

    def schema(self) -> dict[str, Any]:
        return {"enum": self._names}


@attrs.frozen
class Fixed:
    """One text and no other."""

    text: str

    @property
    def words(self) -> str:
        return self.text

    def accept(self, value: object) -> str:
        if value != self.text:
            raise Refused(Refusal(value, self.words))
        return self.text

    def schema(self) -> dict[str, Any]:
        return {"const": self.text}


@attrs.frozen
class Text:
    """A string that is wholly ``pattern``, which ``words`` describe.

    Args:
        words: what is allowed.
        pattern: a regular expression that Python and JSON Schema read alike.
        secret: a wrong value may be a key that somebody put here; it is never shown.
    """

    words: str
    pattern: str = r"[^\x00\r\n]+"
    secret: bool = False

    def accept(self, value: object) -> str:
        fits = isinstance(value, str) and len(value) <= TEXT_CHARACTERS_MAX and re.fullmatch(self.pattern, value)
        if not fits or not isinstance(value, str):
            raise Refused(Refusal(value, self.words, secret=self.secret))
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": f"^{self.pattern}$", "maxLength": TEXT_CHARACTERS_MAX}


@attrs.frozen
class OrNull:
    """``inner``, or null, which means ``meaning``."""

    inner: Allowed
    meaning: str

    @property
    def words(self) -> str:
        return f"{self.inner.words}, or null ({self.meaning})"

    def accept(self, value: object) -> Any:
        if value is None:
            return None
        try:
            return self.inner.accept(value)
        except Refused as refused:
            # An element of a list has nothing to gain from the list's null.
            raise Refused(
                *(attrs.evolve(each, allowed=each.allowed if each.below else self.words) for each in refused.refusals)
            ) from None

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [self.inner.schema(), {"type": "null"}]}


@attrs.frozen
class ListOf:
    """``least`` to ``most`` different values of one kind.

    Args:
        inner: of each.
        what: the elements' name, in the plural.
        least: as few as this.
        most: as many as this.
        alone: one value may stand without brackets.
    """

    inner: Allowed
    what: str
    least: int
    most: int
    alone: bool = False

    @property
    def words(self) -> str:
        count = f"at most {self.most}" if not self.least else f"{self.least} to {self.most}"
        return f"{'one or ' if self.alone else ''}a list of {count} different {self.what}, each {self.inner.words}"

    def accept(self, value: object) -> tuple[Any, ...]:
        if self.alone and not isinstance(value, list | Mapping):
            return (self.inner.accept(value),)
        if not isinstance(value, list) or not self.least <= len(value) <= self.most:
            raise Refused(Refusal(value, self.words, secret=_is_secret(self.inner)))
        accepted: list[Any] = []
        refusals: list[Refusal] = []
        for index, each in enumerate(value):
            try:
                found = self.inner.accept(each)
            except Refused as refused:
                refusals += (attrs.evolve(inner, below=(index, *inner.below)) for inner in refused.refusals)
                continue
            if found in accepted:
                refusals.append(Refusal(each, f"each of the {self.what} once", (index,), _is_secret(self.inner)))
            accepted.append(found)
        if refusals:
            raise Refused(*refusals)
        return tuple(accepted)

    def schema(self) -> dict[str, Any]:
        whole = {
            "type": "array",
            "items": self.inner.schema(),
            "minItems": self.least,
            "maxItems": self.most,
            "uniqueItems": True,
        }
        return {"anyOf": [self.inner.schema(), whole]} if self.alone else whole


@attrs.frozen
class MapOf:
    """At most ``most`` entries ``key: value``; keys are 1 or more."""

    key: Whole
    value: Allowed
    most: int

    @property
    def words(self) -> str:
        return f"a mapping of at most {self.most}, from {self.key.words} to {self.value.words}"

    def accept(self, value: object) -> dict[Hashable, Any]:
        if not isinstance(value, Mapping) or len(value) > self.most:
            raise Refused(Refusal(value, self.words))
        accepted: dict[Hashable, Any] = {}
        refusals: list[Refusal] = []
        for name, each in value.items():
            try:
                self.key.accept(name)
            except Refused:
                refusals.append(Refusal(name, self.key.words, (name,), problem="is not such a key"))
                continue
            try:
                accepted[name] = self.value.accept(each)
            except Refused as refused:
                refusals += (attrs.evolve(inner, below=(name, *inner.below)) for inner in refused.refusals)
        if refusals:
            raise Refused(*refusals)
        return accepted

    def schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            # JSON's keys are texts, so the most is told by its number of digits only.
            "patternProperties": {f"^[1-9][0-9]{{0,{len(str(self.key.most)) - 1}}}$": self.value.schema()},
            "additionalProperties": False,
            "maxProperties": self.most,
        }


def _is_secret(kind: Allowed) -> bool:
    return isinstance(kind, Text) and kind.secret
