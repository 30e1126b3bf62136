"""What every tokenizer can do: text to ids without surprises, ids to true bytes.

Control tokens (``<|im_end|>``) are special: no text of a user ever becomes one. They come into a prompt
only as a `Segment` that the chat template itself wrote, or where a caller asks for them by name.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import attrs

from calculet_trio.errors import InvalidRequest

_SEARCH_CHARACTERS: Final = 1 << 16
"""Searched for special literals in one go: at most about 10 ms with the GIL held."""


@attrs.frozen(kw_only=True)
class SpecialIds:
    """The model's special ids that have a meaning for a conversation.

    Args:
        bos: begins a text, or None.
        eos: ends a text, or None.
        end_of_turn: further ids that end a reply.
        add_bos: whether a prompt must begin with ``bos``.
    """

    bos: int | None = None
    eos: int | None = None
    end_of_turn: tuple[int, ...] = ()
    add_bos: bool = False


@attrs.frozen
class Segment:
    """A piece of a prompt: text, or exactly one special token's literal."""

    text: str
    special: bool = False


class Tokenizer(ABC):
    """A vocabulary and the way text is cut into it. Immutable after construction; safe in any thread.

    Args:
        literals: every special (control) token's text → its id.
        special: which of the ids mean what.
        vocab_size: ids are ``0 .. vocab_size - 1``.
        longest_token_bytes: bytes of the longest token that text can become.
    """

    def __init__(
        self, literals: Mapping[str, int], special: SpecialIds, *, vocab_size: int, longest_token_bytes: int
    ) -> None:
        self.special = special
        self.vocab_size = vocab_size
        self.longest_token_bytes = longest_token_bytes
        self._literals = dict(literals)
        self._special_ids = frozenset(literals.values())
        self._end_ids = frozenset(special.end_of_turn) | ({special.eos} if special.eos is not None else set())
        longest_first = sorted(self._literals, key=len, reverse=True)
        self._longest_literal = max(map(len, self._literals), default=0)
        self._literal_pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    # ---- what a kind of tokenizer defines -----------------------------------------------------

    @abstractmethod
    def token_bytes(self, token: int) -> bytes:
        """The bytes that ``token`` stands for; of a special token, its literal.

        Raises:
            IndexError: the id is outside the vocabulary.
        """

    @abstractmethod
    def _encode_text(self, text: str) -> list[int]:
        """Ids of well-formed text in which nothing is special."""

    # ---- ids ----------------------------------------------------------------------------------

    @property
    def special_literals(self) -> tuple[str, ...]:
        """The texts of all special tokens."""
        return tuple(self._literals)

    def special_id(self, text: str) -> int | None:
        """The special token whose literal is exactly ``text``, or None."""
        return self._literals.get(text)

    def is_special(self, token: int) -> bool:
        """Whether ``token`` is a control token, which a reply never shows."""
        return token in self._special_ids

    def is_end(self, token: int) -> bool:
        """Whether ``token`` is the model's own end of a reply."""
        return token in self._end_ids

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of ``tokens``, literals of special ones included; bytes that form no character are U+FFFD."""
        return b"".join(map(self.token_bytes, tokens)).decode("utf-8", "replace")

    # ---- text ---------------------------------------------------------------------------------

    def encode(self, text: str, *, parse_special: bool = False) -> list[int]:
        """The ids of ``text``, no BOS added. Blocks; linear in the text, with the GIL released on long ones.

        Args:
            text: anything; bound it first, see `text_bytes_limit`.
            parse_special: take literals of special tokens in ``text`` for those tokens. Never for user text
                in a prompt.

        Raises:
            InvalidRequest: ``text`` holds a lone surrogate, which no bytes stand for.
        """
        _require_characters(text)
        if not parse_special:
            return self._encode_text(text)
        ids: list[int] = []
        begin = 0
        for match in self._literals_in(text):
            ids += self._encode_text(text[begin : match.start()])
            ids.append(self._literals[match.group()])
            begin = match.end()
        return ids + self._encode_text(text[begin:])

    def _literals_in(self, text: str) -> Iterator[re.Match[str]]:
        """Literals of special tokens, from left to right; in windows, because a search keeps the GIL."""
        begin = 0
        while begin < len(text):
            window_end = begin + _SEARCH_CHARACTERS
            match = self._literal_pattern.search(text, begin, window_end + self._longest_literal)
            if match is None or match.start() >= window_end:  # what begins beyond may be cut short by the window
                begin = window_end
                continue
            yield match
            begin = match.end()

    def encode_prompt(self, segments: Sequence[Segment]) -> list[int]:
        """The ids of a whole prompt, BOS included where the model wants one.

        Adjacent text segments are encoded as one text, since merges do not stop at a segment's edge.

        Raises:
            InvalidRequest: a text holds a lone surrogate.
        """
        ids: list[int] = []
        text: list[str] = []
        for segment in segments:
            if not segment.special:
                text.append(segment.text)
                continue
            ids += self.encode("".join(text))
            ids.append(self._literals[segment.text])
            text.clear()
        ids += self.encode("".join(text))
        bos = self.special.bos
        if self.special.add_bos and bos is not None and ids[:1] != [bos]:
            ids.insert(0, bos)
        return ids

    def text_bytes_limit(self, limit_tokens: int) -> int:
        """Bytes (UTF-8) above which no text fits into ``limit_tokens``; check it before tokenizing.

        A text of more bytes, none of it special, has more than ``limit_tokens`` tokens, because no token of text
        holds more than ``longest_token_bytes``. The converse is not true: below the bound, tokenize and count.
        """
        return limit_tokens * self.longest_token_bytes


def _require_characters(text: str) -> None:
    if text.isascii():
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"the text is not valid Unicode: a lone surrogate at character {error.start}") from None
