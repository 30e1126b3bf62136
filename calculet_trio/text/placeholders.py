"""Keeps what users wrote from becoming special tokens on its way through a chat template.

A special token's literal in a user's string (``<|im_end|>``) is replaced by a character that occurs nowhere
else before the template sees it, and put back as plain text after the rendered prompt has been split into
special tokens and text. So are pieces at a string's edges that a neighbour could complete to a literal:
``<|im_`` at an end, ``end|>`` at a beginning, or a whole string such as ``|im_end|``. The words that
templates compare with (``user``, ``function``) have no such pieces and stay themselves.

Imports the standard library only: the template's worker process starts with it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

_PRIVATE_USE = (range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE), range(0xE000, 0xF900))
_EDGE_CHARACTERS_MIN = 2
"""A single character at an edge stays: its neighbour would have to be the rest, which is guarded itself."""


class PlaceholdersExhausted(Exception):
    """The user's text uses every private-use character and special literals besides."""


class SpecialLiterals:
    """The literals of a model's special tokens, and their pieces that are worth guarding."""

    def __init__(self, literals: Iterable[str]) -> None:
        self._known = sorted({literal for literal in literals if literal}, key=len, reverse=True)
        self.pattern = re.compile("|".join(map(re.escape, self._known)) or r"(?!)")
        self._longest = max(map(len, self._known), default=0)
        heads = {literal[:size] for literal in self._known for size in range(_EDGE_CHARACTERS_MIN, len(literal))}
        tails = {literal[-size:] for literal in self._known for size in range(_EDGE_CHARACTERS_MIN, len(literal))}
        self._heads = {piece for piece in heads if not _is_word(piece)}
        self._tails = {piece for piece in tails if not _is_word(piece)}

    def is_middle(self, text: str) -> bool:
        """Whether neighbours on both sides could make a literal of ``text``."""
        return len(text) < self._longest and not _is_word(text) and any(text in literal for literal in self._known)

    def head_length(self, text: str) -> int:
        """Length of the longest end of ``text`` that begins a literal; 0 for none."""
        return next((size for size in self._edge_sizes(text) if text[-size:] in self._heads), 0)

    def tail_length(self, text: str) -> int:
        """Length of the longest beginning of ``text`` that ends a literal; 0 for none."""
        return next((size for size in self._edge_sizes(text) if text[:size] in self._tails), 0)

    def _edge_sizes(self, text: str) -> range:
        return range(min(self._longest - 1, len(text)), _EDGE_CHARACTERS_MIN - 1, -1)


class Placeholders:
    """The replacements made for one prompt.

    Args:
        literals: what to guard against.
        value: the prompt as a JSON value, every string in it a user's.
        apart_from: text whose characters must not be used either: the template's.
    """

    def __init__(self, literals: SpecialLiterals, value: Any, *, apart_from: str) -> None:
        self._literals = literals
        self._value = value
        self._free = _unused_characters(value, apart_from)
        self._original: dict[str, str] = {}  # placeholder, as it may be spelled → what stood there
        self._placeholder: dict[str, str] = {}

    def hidden(self) -> Any:
        """A copy of the value in which no string, key or value, can become part of a special token.

        Raises:
            PlaceholdersExhausted: no character is left to stand for a literal.
        """
        return self._hidden(self._value)

    def split(self, rendered: str) -> list[tuple[str, bool]]:
        """The rendered prompt as (text, is special) pieces; users' text is back in its place, as text."""
        pieces: list[tuple[str, bool]] = []
        begin = 0
        for match in self._literals.pattern.finditer(rendered):
            if match.start() > begin:
                pieces.append((self._restored(rendered[begin : match.start()]), False))
            pieces.append((match.group(), True))
            begin = match.end()
        if begin < len(rendered):
            pieces.append((self._restored(rendered[begin:]), False))
        return pieces

    def _hidden(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._guarded(value)
        if isinstance(value, dict):
            return {self._guarded(key): self._hidden(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._hidden(item) for item in value]
        return value

    def _guarded(self, text: str) -> str:
        if self._literals.is_middle(text):
            return self._stand_in(text)
        text = self._literals.pattern.sub(lambda match: self._stand_in(match.group()), text)
        head = self._literals.head_length(text)
        if head:
            text = text[:-head] + self._stand_in(text[-head:])
        tail = self._literals.tail_length(text)
        return self._stand_in(text[:tail]) + text[tail:] if tail else text

    def _stand_in(self, text: str) -> str:
        if text not in self._placeholder:
            placeholder = next(self._free, None)
            if placeholder is None:
                raise PlaceholdersExhausted
            self._placeholder[text] = placeholder
            self._original[placeholder] = text
            self._original[json.dumps(placeholder)[1:-1]] = text  # a template may ask tojson for ASCII
        return self._placeholder[text]

    def _restored(self, text: str) -> str:
        if not self._original:
            return text
        spelled = "|".join(map(re.escape, self._original))
        return re.sub(spelled, lambda match: self._original[match.group()], text)


def _is_word(text: str) -> bool:
    return text.replace("_", "a").isalnum()


def _unused_characters(value: Any, apart_from: str) -> Iterator[str]:
    taken = set(apart_from).union(*_strings(value))  # looked at when the first one is asked for
    yield from (chr(code) for codes in _PRIVATE_USE for code in codes if chr(code) not in taken)


def _strings(value: Any) -> Iterator[str]:
    waiting: list[Any] = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            waiting += [*item.keys(), *item.values()]
        elif isinstance(item, list):
            waiting += item
