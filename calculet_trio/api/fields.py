"""Typed reading of a JSON object's fields; every refusal names the field and the limit.

A field that is absent or null has its default. JSON's types are kept apart: ``true`` is no number, ``5.0`` and
``"5"`` are no integers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from calculet_trio.errors import InvalidRequest

_notes: Final[ContextVar[dict[str, dict[str, Any]] | None]] = ContextVar("notes", default=None)


@contextmanager
def noting() -> Iterator[dict[str, dict[str, Any]]]:
    """Within the block, each field that is read is noted by its path, with its JSON Schema; for the description."""
    notes: dict[str, dict[str, Any]] = {}
    token = _notes.set(notes)
    try:
        yield notes
    finally:
        _notes.reset(token)


def type_name(value: object) -> str:
    """What JSON calls the value's type."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "an array"
    return "an object"


class Fields:
    """One JSON object and the path that leads to it.

    Args:
        members: the parsed object.
        path: how an error names the object itself; empty for the body.
    """

    __slots__ = ("_members", "_path")

    def __init__(self, members: Mapping[str, Any], path: str = "") -> None:
        self._members = members
        self._path = path

    def param(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def refuse(self, name: str, fault: str) -> InvalidRequest:
        """The refusal of one field: ``refuse("n", "must be …")``."""
        param = self.param(name)
        return InvalidRequest(f"{param} {fault}", param=param)

    def raw(self, name: str) -> Any:
        """The value as it came, None if absent."""
        notes = _notes.get()
        if notes is not None:
            notes.setdefault(self.param(name), {})
        return self._members.get(name)

    def has(self, name: str) -> bool:
        """Whether the field is there at all, null included."""
        return name in self._members

    def instead(self, name: str) -> str:
        """The end of a refusal that says what must be: what is there instead, or that nothing is."""
        return f", not {type_name(self._members[name])}" if name in self._members else ", and is missing"

    def _note(self, name: str, kind: str, **more: Any) -> None:
        """A null is always taken, and means the default; what is also read `raw` may be of other types."""
        notes = _notes.get()
        if notes is not None:
            schema = {"type": [kind, "null"], **{k: v for k, v in more.items() if v is not None}}
            notes.setdefault(self.param(name), schema)

    def boolean(self, name: str, default: bool = False) -> bool:
        self._note(name, "boolean", default=default)
        value = self._members.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refuse(name, f"must be true or false, not {type_name(value)}")
        return value

    def integer(self, name: str, *, minimum: int, maximum: int | None = None) -> int | None:
        """An integer in ``[minimum, maximum]``; None if absent."""
        self._note(name, "integer", minimum=minimum, maximum=maximum)
        value = self._members.get(name)
        if value is None:
            return None
        limit = f"at least {minimum}" if maximum is None else f"between {minimum} and {maximum}"
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.refuse(name, f"must be an integer {limit}")
        if value < minimum or (maximum is not None and value > maximum):
            raise self.refuse(name, f"must be {limit}")
        return value

    def number(self, name: str, default: float, *, minimum: float, maximum: float, above: bool = False) -> float:
        """A number in ``[minimum, maximum]``, or in ``(minimum, maximum]`` where ``above``."""
        least = {"exclusiveMinimum" if above else "minimum": minimum}
        self._note(name, "number", default=default, maximum=maximum, **least)
        value = self._members.get(name)
        if value is None:
            return default
        limit = f"{'above' if above else 'at least'} {minimum:g} and at most {maximum:g}"
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.refuse(name, f"must be a number {limit}, not {type_name(value)}")
        # Compared before it is converted: an integer may be too large for a float.
        if not minimum <= value <= maximum or (above and value == minimum):
            raise self.refuse(name, f"must be {limit}")
        return float(value)

    def string(self, name: str) -> str | None:
        self._note(name, "string")
        value = self._members.get(name)
        if value is not None and not isinstance(value, str):
            raise self.refuse(name, f"must be a string, not {type_name(value)}")
        return value

    def array(self, name: str, *, maximum: int) -> list[Any] | None:
        """An array of ``maximum`` entries at most; None if absent."""
        self._note(name, "array", maxItems=maximum)
        value = self._members.get(name)
        if value is None:
            return None
        if not isinstance(value, list):
            raise self.refuse(name, f"must be an array, not {type_name(value)}")
        if len(value) > maximum:
            raise self.refuse(name, f"has {len(value)} entries; at most {maximum} are taken")
        return value

    def object(self, name: str, *, maximum: int) -> dict[str, Any] | None:
        """An object of ``maximum`` members at most; None if absent."""
        self._note(name, "object", maxProperties=maximum)
        value = self._members.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.refuse(name, f"must be an object, not {type_name(value)}")
        if len(value) > maximum:
            raise self.refuse(name, f"has {len(value)} members; at most {maximum} are taken")
        return value
