"""JSON to frozen classes and back, strictly: a wrong key is named by its path, with its value and what is allowed.

cattrs does the walking; what is added here is that an integer is an integer (no ``true``, no ``2.0``), that
unknown and doubled keys are refused, and the sentence a person reads.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sized
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, get_args, get_origin

import attrs
import cattrs
from cattrs.errors import AttributeValidationNote, ForbiddenExtraKeysError, IterableValidationNote

from calculet_trio.errors import PackageError
from calculet_trio.regular_file import open_regular
from calculet_trio.visible import visible

T = TypeVar("T")

BYTES_MAX: Final = 4 * 1024 * 1024
"""A manifest is a few dozen kilobytes; more is not one, and is not read into memory."""
SHOWN_CHARACTERS_MAX: Final = 80
NAMES_SHOWN_MAX: Final = 8
REBUILD_HINT: Final = "build or pull the package again"


@attrs.frozen
class Range:
    """``Annotated[int, Range(least, most)]``: an integer within both bounds, themselves allowed."""

    least: int
    most: int

    def refusal(self, value: int) -> str | None:
        return None if self.least <= value <= self.most else f"{self.least} to {self.most}"


@attrs.frozen
class Pattern:
    """``Annotated[str, Pattern(regex, words)]``: a string that is wholly ``regex``, which ``words`` describe."""

    regex: str
    words: str

    def refusal(self, value: str) -> str | None:
        return None if re.fullmatch(self.regex, value) else self.words


@attrs.frozen
class Printable:
    """``Annotated[str, Printable(least, most)]``: so many characters, none of which a terminal would hide or obey."""

    least: int
    most: int

    def refusal(self, value: str) -> str | None:
        is_so = self.least <= len(value) <= self.most and value.isprintable()
        return None if is_so else f"{self.least} to {self.most} printable characters"


@attrs.frozen
class Extent:
    """``Annotated[int | str, Extent()]``: an integer of 64 bits, or a name."""

    def refusal(self, value: int | str) -> str | None:
        is_so = abs(value) < 2**63 if isinstance(value, int) else value.isprintable() and 1 <= len(value) <= 64
        return None if is_so else "an integer of 64 bits, or a name of 1 to 64 printable characters"


@attrs.frozen
class Entries:
    """``Annotated[tuple[T, ...], Entries(least, most)]``: so many entries, both bounds themselves allowed."""

    least: int
    most: int

    def refusal(self, value: Sized) -> str | None:
        return None if self.least <= len(value) <= self.most else f"{self.least} to {self.most} entries"


class _WrongValue(ValueError):
    """A leaf that is not what its key allows."""

    def __init__(self, value: object, allowed: str) -> None:
        super().__init__(f"is {shown(value)}; allowed: {allowed}")


def shown(value: object) -> str:
    """``value`` as JSON, cut to what fits a line."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return visible(text if len(text) <= SHOWN_CHARACTERS_MAX else f"{text[:SHOWN_CHARACTERS_MAX]}…")


def few(names: Iterable[str]) -> str:
    """The first names, and how many there are beside them."""
    first = list(names)
    more = f" and {len(first) - NAMES_SHOWN_MAX} more" if len(first) > NAMES_SHOWN_MAX else ""
    return ", ".join(visible(name[:SHOWN_CHARACTERS_MAX]) for name in first[:NAMES_SHOWN_MAX]) + more


def _leaf(kinds: tuple[type, ...], allowed: str) -> Any:
    def structure_leaf(value: object, _type: object) -> object:
        if type(value) not in kinds:
            raise _WrongValue(value, allowed)
        return value

    return structure_leaf


def _structure_enum(value: object, kind: type[Enum]) -> Enum:
    for member in kind:
        if member.value == value:
            return member
    raise _WrongValue(value, ", ".join(str(member.value) for member in kind))


def _structure_float(value: object, _type: object) -> float:
    if type(value) not in (int, float):
        raise _WrongValue(value, "a number")
    return float(value)  # type: ignore[arg-type]


def _structure_extent(value: object, _type: object) -> int | str:
    if type(value) not in (int, str):
        raise _WrongValue(value, "an integer or a name")
    return value  # type: ignore[return-value]


def _structure_bounded(value: object, kind: object) -> object:
    bare, *bounds = get_args(kind)
    found: Any = _CONVERTER.structure(value, bare)
    for bound in bounds:
        refusal = bound.refusal(found)
        if refusal is not None:
            raise _WrongValue(value, refusal)
    return found


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Enum)


def _is_bounded(kind: Any) -> bool:
    return get_origin(kind) is Annotated


def _make_converter() -> cattrs.Converter:
    converter = cattrs.Converter(forbid_extra_keys=True)
    converter.register_structure_hook(int, _leaf((int,), "an integer"))
    converter.register_structure_hook(str, _leaf((str,), "a string"))
    converter.register_structure_hook(bool, _leaf((bool,), "true or false"))
    converter.register_structure_hook(float, _structure_float)
    converter.register_structure_hook(int | str, _structure_extent)
    converter.register_structure_hook_func(_is_enum, _structure_enum)
    converter.register_structure_hook_func(_is_bounded, _structure_bounded)
    return converter


_CONVERTER: Final = _make_converter()


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _no_doubled_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {shown(key)} stands twice")
        found[key] = value
    return found


def read(path: Path, *, bytes_max: int = BYTES_MAX) -> object:
    """The JSON value in ``path``.

    Raises:
        PackageError: not there, larger than ``bytes_max``, or not strict JSON.
    """
    try:
        with open_regular(path) as file:
            data = file.read(bytes_max + 1)
    except FileNotFoundError:
        raise PackageError(f"{path} does not exist: the directory is not a package", hint=REBUILD_HINT) from None
    except OSError as error:
        raise PackageError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > bytes_max:
        raise PackageError(f"{path} is larger than {bytes_max} bytes, which no such file is", hint=REBUILD_HINT)
    try:
        return json.loads(data.decode(), object_pairs_hook=_no_doubled_keys, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise PackageError(f"{path} is not valid JSON: {error}", hint=REBUILD_HINT) from None


def structure(value: object, kind: type[T], path: Path) -> T:
    """``value`` as an instance of ``kind``.

    Raises:
        PackageError: the first key that does not fit, by its path.
    """
    try:
        return _CONVERTER.structure(value, kind)
    except (cattrs.BaseValidationError, ValueError, TypeError, AttributeError, KeyError) as error:
        key, sentence = _first_fault(error)
        raise PackageError(f"{path}: {key.lstrip('.') or 'the whole'} {sentence}", hint=REBUILD_HINT) from None


def unstructure(value: object) -> object:
    """``value`` as JSON has it."""
    return _CONVERTER.unstructure(value)


def _first_fault(error: BaseException) -> tuple[str, str]:
    """Path and sentence of the first leaf that did not fit, from cattrs' tree of exceptions."""
    path = ""
    while isinstance(error, cattrs.BaseValidationError):
        for note in (note for inner in error.exceptions[:1] for note in getattr(inner, "__notes__", ())):
            if isinstance(note, AttributeValidationNote):
                path += f".{note.name}"
            elif isinstance(note, IterableValidationNote):
                path += f"[{repr(note.index)[:SHOWN_CHARACTERS_MAX]}]"
        error = error.exceptions[0]
    return path, _sentence(error)


def _sentence(error: BaseException) -> str:
    if isinstance(error, KeyError):
        return "is missing"
    if isinstance(error, ForbiddenExtraKeysError):
        return f"has unknown keys: {few(sorted(error.extra_fields))}"
    if isinstance(error, _WrongValue):
        return str(error)
    return f"is of a wrong kind ({error})"


def write(value: object, path: Path) -> None:
    """Write JSON to ``path`` through a temporary sibling, so that a reader sees all of it or nothing."""
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(f"{text}\n", encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
