"""The table of keys as a commented file in which every key has its default: where an operator begins.

``config/*.yaml`` are these texts.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from typing import Any, Final

from calculet_trio.settings.allowed import Fixed
from calculet_trio.settings.keys import Key, keys_of
from calculet_trio.settings.structuring import plain

WIDTH: Final = 110
INDENT: Final = "  "


def written_defaults(kind: type) -> str:
    """A file of the settings class ``kind`` that says what no file would say, with a comment above each key."""
    title = next(each.allowed.words for each in keys_of(kind) if each.name == "schema" and each.allowed)
    word = title.partition("/")[0].removeprefix("calculet-")
    head = f"# Every key of {title} with its default (`calculet-trio config defaults {word}`); keep what you change.\n"
    return head + "\n".join(_lines(kind, "")) + "\n"


def _lines(kind: type, indent: str) -> Iterator[str]:
    for each in keys_of(kind):
        if not indent:
            yield ""
        yield from _comment(each, indent)
        if each.section is None:
            yield f"{indent}{each.name}: {_flow(_example(each))}"
        elif each.entries_max is None:
            yield f"{indent}{each.name}:"
            yield from _lines(each.section, indent + INDENT)
        else:
            yield f"{indent}{each.name}: []"
            yield from _entry(each.section, indent)


def _entry(kind: type, indent: str) -> Iterator[str]:
    """One entry of a list, as a comment that can be uncommented."""
    marker = "- "
    for each in keys_of(kind):
        yield from (f"{indent}# {line}" for line in _comment(each, "    "))
        yield f"{indent}# {INDENT}{marker}{each.name}: {_flow(_example(each))}"
        marker = "  "


def _comment(key: Key, indent: str) -> Iterator[str]:
    allowed = "" if key.allowed is None or isinstance(key.allowed, Fixed) else f" Allowed: {key.allowed.words}."
    yield from textwrap.wrap(
        key.says + allowed,
        WIDTH,
        initial_indent=f"{indent}# ",
        subsequent_indent=f"{indent}# ",
        break_on_hyphens=False,
        break_long_words=False,
    )


def _example(key: Key) -> Any:
    if not key.is_required:
        return plain(key.default)
    return key.allowed.text if isinstance(key.allowed, Fixed) else f"the-{key.name}"


def _flow(value: Any) -> str:
    """``value`` on one line of YAML."""
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z][A-Za-z0-9./_-]*", value):
        return value
    return json.dumps(value)
