"""The table of keys: each attribute of a settings class is a key, with its default, what is allowed, and a sentence.

Parsing, errors, ``config show``, the JSON Schema and the commented defaults are all made from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

import attrs

from calculet_trio.settings.allowed import Allowed, KeyPath

_ENTRY: Final = "calculet_trio.settings.key"

Kind = TypeVar("Kind", bound=type)


@attrs.frozen
class Key:
    """One key of a class.

    Args:
        name: as it is written.
        says: its sentence.
        default: the value without it; `attrs.NOTHING` if it must be given.
        allowed: of a leaf.
        section: the class beneath, of a section or of each entry.
        entries_max: how many entries, of a list of them.
        what: the entries' name, in the plural.
    """

    name: str
    says: str
    default: Any
    allowed: Allowed | None = None
    section: type | None = None
    entries_max: int | None = None
    what: str = ""

    @property
    def is_required(self) -> bool:
        return self.default is attrs.NOTHING


@attrs.frozen
class Contradiction:
    """Keys whose values do not go together.

    Args:
        paths: all keys it depends on; the fault is told at the first of them that somebody wrote.
        problem: what is wrong, with the values in it.
    """

    paths: tuple[KeyPath, ...]
    problem: str


def key(allowed: Allowed, default: Any, says: str) -> Any:
    """A leaf."""
    return attrs.field(default=default, metadata={_ENTRY: {"allowed": allowed, "says": says}})


def section(kind: Callable[[], Any], says: str) -> Any:
    """A mapping of further keys, those of the class ``kind``."""
    return attrs.field(factory=kind, metadata={_ENTRY: {"section": kind, "says": says}})


def entries(kind: Callable[..., Any], says: str, *, what: str, most: int) -> Any:
    """A list of mappings, each with the keys of the class ``kind``."""
    return attrs.field(
        default=(), metadata={_ENTRY: {"section": kind, "entries_max": most, "what": what, "says": says}}
    )


def keys_of(kind: type) -> tuple[Key, ...]:
    """The keys of a settings class, in order."""
    found = []
    for field in attrs.fields(kind):
        default = field.default.factory() if isinstance(field.default, attrs.Factory) else field.default  # type: ignore[arg-type]
        found.append(Key(field.name, default=default, **field.metadata[_ENTRY]))
    return tuple(found)


def leaves_of(settings: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Key, Any]]:
    """Every leaf beneath ``settings``: its path, its key and its value; an empty list of entries is one leaf."""
    for each in keys_of(type(settings)):
        place = (*path, each.name)
        value = getattr(settings, each.name)
        if each.section is None or value == ():
            yield place, each, value
        elif each.entries_max is None:
            yield from leaves_of(value, place)
        else:
            for index, entry in enumerate(value):
                yield from leaves_of(entry, (*place, index))
