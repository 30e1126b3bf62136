"""From a document's plain values to settings and back; cattrs walks, and every fault is collected.

Source: SPEC section 10.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from typing import Any, Final, Protocol, TypeVar

import attrs
import cattrs
from cattrs.errors import AttributeValidationNote, ForbiddenExtraKeysError, IterableValidationNote
from cattrs.gen import make_dict_structure_fn, override

from calculet_trio.settings.allowed import KeyPath, Refusal, Refused
from calculet_trio.settings.document import Document
from calculet_trio.settings.faults import Fault, described, hidden
from calculet_trio.settings.keys import Contradiction, Key, keys_of

NAME_CHARACTERS_MAX: Final = 80
"""More of a wrong key is not compared: the search for the nearest one grows with the square."""


class Settings(Protocol):
    """A settings class that is a whole file."""

    def contradictions(self) -> Iterator[Contradiction]:
        """What does not go together in it."""


T = TypeVar("T", bound=Settings)


def structured(document: Document, kind: type[T]) -> tuple[T | None, tuple[Fault, ...]]:
    """The settings in ``document``, and everything that is wrong with them.

    Returns:
        Settings and faults. With faults, the settings are what is left without the keys that they are about
        (None if too little is): enough to look further, never to be used.
    """
    settings, faults = _made(document.values, kind, document)
    wrong = [_removable(fault.path) for fault in faults]
    if faults:
        settings, _ = _made(_without(document.values, wrong), kind, document)
    if settings is None:
        return None, faults
    concerned = {path[:length] for path in wrong for length in range(1, len(path) + 1)}
    contradictions = [each for each in settings.contradictions() if not _concerns(each, set(wrong), concerned)]
    return settings, (*faults, *(_placed(each, document) for each in contradictions))


def _made(values: object, kind: type[T], document: Document) -> tuple[T | None, tuple[Fault, ...]]:
    try:
        return _CONVERTER.structure(values, kind), ()
    except (cattrs.BaseValidationError, Refused) as error:
        return None, tuple(_faults(error, (), document, kind))


def _removable(path: KeyPath) -> KeyPath:
    """The key to leave out for a fault at ``path``: an element goes with its list, so that none moves up."""
    while path and isinstance(path[-1], int):
        path = path[:-1]
    return path


def _without(values: object, paths: Collection[KeyPath]) -> object:
    """A copy of ``values`` without what stands at ``paths``."""
    rest = copy.deepcopy(values)
    for path in paths:
        place: Any = rest
        for part in path[:-1]:
            inside = isinstance(place, list) or (isinstance(place, Mapping) and part in place)
            place = place[part] if inside else None
        if isinstance(place, dict) and path:
            place.pop(path[-1], None)
    return rest


def _concerns(contradiction: Contradiction, wrong: Collection[KeyPath], above: Collection[KeyPath]) -> bool:
    """Whether it may have been found only because a wrong key was left out.

    Args:
        contradiction: between keys that are left.
        wrong: the keys left out.
        above: they, and all that they stood in.
    """
    return any(
        path in above or any(path[:length] in wrong for length in range(1, len(path))) for path in contradiction.paths
    )


def plain(value: Any) -> Any:
    """A setting as YAML and JSON have it."""
    if isinstance(value, Enum):
        return value.value
    if attrs.has(type(value)):
        return {each.name: plain(getattr(value, each.name)) for each in keys_of(type(value))}
    if isinstance(value, tuple):
        return [plain(each) for each in value]
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    return value


def _placed(contradiction: Contradiction, document: Document) -> Fault:
    written = [path for path in contradiction.paths if path in document.origins]
    path = written[0] if written else contradiction.paths[0]
    return Fault(document.nearest_origin(path), path, contradiction.problem)


# ---- cattrs ---------------------------------------------------------------------------------------------


def _section_hook(kind: type) -> Any:
    """How cattrs makes a settings class: what is not a mapping is refused, each leaf asks its key."""
    known: Any = {each.name: override(struct_hook=_key_hook(each)) for each in keys_of(kind)}
    make: Any = make_dict_structure_fn(kind, _CONVERTER, _cattrs_forbid_extra_keys=True, **known)

    def structure_section(value: object, _kind: object) -> Any:
        if not isinstance(value, Mapping):
            raise Refused(Refusal(value, f"a mapping with keys among {', '.join(each.name for each in keys_of(kind))}"))
        return make(value, kind)

    return structure_section


def _key_hook(key: Key) -> Any:
    def structure_leaf(value: object, _kind: object) -> Any:
        assert key.allowed is not None
        return key.allowed.accept(value)

    def structure_entries(value: object, _kind: object) -> Any:
        assert key.entries_max is not None
        if not isinstance(value, list) or len(value) > key.entries_max:
            size = f" (it has {len(value)})" if isinstance(value, list) else ""
            raise Refused(Refusal(value, f"a list of at most {key.entries_max} {key.what}{size}"))
        return _CONVERTER.structure(value, tuple[key.section, ...])  # type: ignore[name-defined]

    def structure_section(value: object, _kind: object) -> Any:
        return _CONVERTER.structure(value, key.section)  # type: ignore[arg-type]

    if key.allowed is not None:
        return structure_leaf
    return structure_section if key.entries_max is None else structure_entries


_CONVERTER: Final = cattrs.Converter(detailed_validation=True)
_CONVERTER.register_structure_hook_factory(attrs.has, _section_hook)


# ---- faults ---------------------------------------------------------------------------------------------


def _faults(error: BaseException, path: KeyPath, document: Document, kind: type) -> Iterator[Fault]:
    """Every leaf of cattrs' tree of exceptions."""
    if isinstance(error, cattrs.BaseValidationError):
        for inner in error.exceptions:
            yield from _faults(inner, (*path, *_step(inner)), document, kind)
    elif isinstance(error, ForbiddenExtraKeysError):
        here = _kind_at(kind, path)
        for name in sorted(error.extra_fields, key=str):
            place = (*path, name)
            problem = f"is not a known key{_suggestion(name, here, kind)}"
            yield Fault(document.nearest_origin(place), place, problem, ", ".join(each.name for each in keys_of(here)))
    elif isinstance(error, Refused):
        for refusal in error.refusals:
            place = (*path, *refusal.below)
            problem = refusal.problem or (hidden if refusal.secret else described)(refusal.value)
            yield Fault(document.nearest_origin(place), place, problem, refusal.allowed)
    elif isinstance(error, KeyError):
        missing = next(each for each in keys_of(_kind_at(kind, path[:-1])) if each.name == path[-1])
        allowed = missing.allowed.words if missing.allowed else ""
        yield Fault(document.nearest_origin(path[:-1]), path, "is missing", allowed)
    else:
        raise error


def _step(error: BaseException) -> KeyPath:
    for note in getattr(error, "__notes__", ()):
        if isinstance(note, AttributeValidationNote):
            return (note.name,)
        if isinstance(note, IterableValidationNote):
            return (note.index,)
    return ()


def _kind_at(kind: type, path: KeyPath) -> type:
    for part in path:
        if isinstance(part, str):
            kind = next(each.section for each in keys_of(kind) if each.name == part)  # type: ignore[assignment]
    return kind


def _suggestion(name: object, here: type, whole: type) -> str:
    """The nearest key here, or the place where the same word is a key."""
    near = difflib.get_close_matches(str(name)[:NAME_CHARACTERS_MAX], [each.name for each in keys_of(here)], n=1)
    if near:
        return f" (did you mean {near[0]}?)"
    elsewhere = [place for place in _places(whole) if place.rsplit(".", 1)[-1] == name]
    return f" here ({elsewhere[0]} is)" if elsewhere else ""


def _places(kind: type, before: str = "") -> Iterator[str]:
    for each in keys_of(kind):
        if before:
            yield f"{before}{each.name}"
        if each.section is not None:
            yield from _places(each.section, f"{before}{each.name}{'[]' if each.entries_max else ''}.")
