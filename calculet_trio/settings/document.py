"""A configuration file as plain values, each with the line it stands on.

The file is read event by event, so that what makes YAML dangerous or surprising never happens: no aliases (and so
no bombs), no tags, no doubled keys, bounded size, depth and count, and the scalars of YAML 1.2's core schema: ``on``
is a text, ``010`` is ten, ``1:30`` is a text, and a date is a text.

Source: YAML 1.2.2 section 10.3; SPEC section 10.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import yaml

from calculet_trio.regular_file import open_unwaited
from calculet_trio.settings.allowed import KeyPath
from calculet_trio.settings.faults import DEFAULT, Fault, Origin

BYTES_MAX: Final = 1 << 20
"""Two thousand tenants with two keys each take about half of it."""
DEPTH_MAX: Final = 8
"""The deepest key of both schemas is at 3."""
VALUES_MAX: Final = 50_000
"""Two thousand tenants with every key take half of it."""
NUMBER_CHARACTERS_MAX: Final = 400
"""Longer digits are a text: turning them into a number takes time that grows with their square."""
FAULTS_MAX: Final = 1000

_INTEGER: Final = re.compile(r"[-+]?[0-9]+")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_WORDS: Final[Mapping[str, object]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


@attrs.frozen
class Document:
    """One file, or no file at all.

    Args:
        name: how messages call it.
        directory: what relative paths in it start from.
        values: its keys.
        origins: where each value stands, by its path.
    """

    name: str
    directory: Path
    values: Mapping[Any, Any] = attrs.field(factory=dict)
    origins: Mapping[KeyPath, Origin] = attrs.field(factory=dict)

    def origin(self, path: KeyPath) -> Origin:
        """Where the value at ``path`` comes from: `DEFAULT` if nobody wrote it."""
        return self.origins.get(path, DEFAULT)

    def nearest_origin(self, path: KeyPath) -> Origin:
        """The place to look at for ``path``: its own, or that of what it would stand in."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.origins:
                return self.origins[path[:length]]
        return Origin(self.name)

    def overlaid(self, path: tuple[str, ...], value: object, flag: str) -> Document:
        """This document with one value that the command line's ``flag`` gives."""
        origins = {key: origin for key, origin in self.origins.items() if key[: len(path)] != path}
        origins |= dict.fromkeys(_paths(value, path), Origin(flag))
        return attrs.evolve(self, values=_with(self.values, path, value), origins=origins)


def _paths(value: object, path: KeyPath) -> Iterator[KeyPath]:
    """``path``, and that of everything in ``value``."""
    yield path
    if isinstance(value, list | Mapping):
        for name, each in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _paths(each, (*path, name))


def _with(values: object, path: tuple[str, ...], value: object) -> Mapping[Any, Any]:
    inner = dict(values) if isinstance(values, Mapping) else {}
    inner[path[0]] = value if len(path) == 1 else _with(inner.get(path[0]), path[1:], value)
    return inner


class _Unreadable(Exception):
    """The file cannot be read any further."""

    def __init__(self, problem: str, line: int | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.line = line


def read_document(path: Path) -> tuple[Document, tuple[Fault, ...]]:
    """The mapping in the YAML file ``path``, and what is wrong with it as YAML.

    Returns:
        The document (empty if it cannot be read as one) and its faults: either the one at which reading
        ended, or every doubled key.
    """
    reader = _Reader(str(path))
    try:
        values = reader.read(_text_of(path))
    except _Unreadable as error:
        return Document(str(path), path.parent), (Fault(Origin(str(path), error.line), (), error.problem),)
    return Document(str(path), path.parent, values, reader.origins), tuple(reader.faults)


def _text_of(path: Path) -> str:
    try:
        with open_unwaited(path) as file:  # `--config <(make it)` is a pipe, and meant
            data = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise _Unreadable(f"cannot be read: {error.strerror}") from None
    if len(data) > BYTES_MAX:
        raise _Unreadable(f"is larger than {BYTES_MAX} bytes, which no configuration is")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _Unreadable("is not UTF-8", data.count(b"\n", 0, error.start) + 1) from None


class _Reader:
    """Reads one document; afterwards ``origins`` and ``faults`` are whole."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._count = 0
        self.origins: dict[KeyPath, Origin] = {}
        self.faults: list[Fault] = []

    def read(self, text: str) -> Mapping[Any, Any]:
        try:
            return self._document(iter(yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))))
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark
            problem = f"is not YAML: {error.problem or error.context}"
            raise _Unreadable(problem, None if mark is None else mark.line + 1) from None
        except yaml.YAMLError as error:
            raise _Unreadable(f"is not YAML: {str(error).splitlines()[0]}") from None

    def _document(self, events: Iterator[yaml.Event]) -> Mapping[Any, Any]:
        for event in events:
            if isinstance(event, yaml.NodeEvent):
                break
        else:
            raise _Unreadable("is empty; it begins with a line like `schema: calculet-service/v1`")
        values = self._value(event, events, ())
        if not isinstance(values, dict):
            raise _Unreadable("is not a mapping of keys to values", _line(event))
        for event in events:
            if isinstance(event, yaml.NodeEvent):
                raise _Unreadable("holds a second document", _line(event))
        return values

    def _value(self, event: yaml.NodeEvent, events: Iterator[yaml.Event], path: KeyPath) -> object:
        self._count += 1
        line = _line(event)
        if self._count > VALUES_MAX:
            raise _Unreadable(f"holds more than {VALUES_MAX} values", line)
        if len(path) > DEPTH_MAX:
            raise _Unreadable(f"is nested more than {DEPTH_MAX} deep", line)
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise _Unreadable("has an anchor or alias (& or *); write the value where it is needed", line)
        if getattr(event, "tag", None) is not None:
            raise _Unreadable("has a tag (!); plain values need none", line)
        if path:
            # A key's own line was noted already, and is where people look.
            self.origins.setdefault(path, Origin(self._name, line))
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(events, path)
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(events, path)
        assert isinstance(event, yaml.ScalarEvent)
        return _scalar(event.value) if event.style in (None, "") else event.value

    def _sequence(self, events: Iterator[yaml.Event], path: KeyPath) -> list[object]:
        found: list[object] = []
        while isinstance(event := next(events), yaml.NodeEvent):
            found.append(self._value(event, events, (*path, len(found))))
        return found

    def _mapping(self, events: Iterator[yaml.Event], path: KeyPath) -> dict[str | int, object]:
        found: dict[str | int, object] = {}
        while isinstance(event := next(events), yaml.NodeEvent):
            key, line = _key(event), _line(event)
            place = (*path, key)
            if key in found:
                first = self.origins[place].line
                self._note(Fault(Origin(self._name, line), place, f"stands twice, first in line {first}"))
            self.origins.setdefault(place, Origin(self._name, line))
            value_event = next(events)
            assert isinstance(value_event, yaml.NodeEvent)
            value = self._value(value_event, events, place)
            found.setdefault(key, value)
        return found

    def _note(self, fault: Fault) -> None:
        self.faults.append(fault)
        if len(self.faults) > FAULTS_MAX:
            raise _Unreadable(f"has more than {FAULTS_MAX} doubled keys", fault.origin.line)


def _line(event: yaml.Event) -> int:
    assert event.start_mark is not None, "the parser marks every event"
    return event.start_mark.line + 1


def _key(event: yaml.NodeEvent) -> str | int:
    """A mapping's key: an integer where it is written as one, else its text."""
    if not isinstance(event, yaml.ScalarEvent) or event.tag is not None or event.anchor is not None:
        raise _Unreadable("has a key that is not a plain word", _line(event))
    found = _scalar(event.value) if event.style in (None, "") else event.value
    return found if type(found) is int else str(event.value)


def _scalar(text: str) -> object:
    if text in _WORDS:
        return _WORDS[text]
    if len(text) <= NUMBER_CHARACTERS_MAX:
        if _INTEGER.fullmatch(text):
            return int(text)
        if _FLOAT.fullmatch(text):
            return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text
