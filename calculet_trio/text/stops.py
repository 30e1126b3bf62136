"""Stop strings over a stream of tokens.

Matching is on bytes: a stop that begins or ends inside a token, or beside half a character, is found all
the same. UTF-8 is self-synchronizing, so a match in bytes is a match in characters.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import compress


class StopMatcher:
    """Finds the stop that is completed first, and holds back only what could still become one.

    Of stops completed by the same byte the longest counts. Both are independent of how the stream is cut
    into pieces. What is held is the longest suffix of the stream that is a proper prefix of some stop.

    Hidden pieces (literals of special tokens) take part in matching and are never shown, so that a stop
    may name a special token, alone or amid text.

    Args:
        stops: the strings; empty ones are ignored.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        # a lone surrogate is no character: such a stop matches nothing that a reply can hold
        self._stops = [_Prefixes(stop.encode("utf-8", "surrogatepass")) for stop in stops if stop]
        self._held = bytearray()
        self._shown = bytearray()  # one flag per byte of _held: whether it may be shown
        self._matched = False

    @property
    def matched(self) -> bool:
        """Whether a stop was completed. Nothing may be fed after that."""
        return self._matched

    def feed(self, piece: bytes, *, hidden: bool = False) -> bytes:
        """The bytes that may be shown now; on a match, those before the stop."""
        assert not self._matched, "the stream ended with its stop"
        if not self._stops:
            return b"" if hidden else piece
        self._held += piece
        self._shown += bytes([not hidden]) * len(piece)
        offset = len(self._held) - len(piece)
        for index, byte in enumerate(piece, 1):
            stopped_bytes = 0
            for stop in self._stops:
                if stop.advance(byte):
                    stopped_bytes = max(stopped_bytes, len(stop.text))
            if stopped_bytes:
                self._matched = True
                released = self._release(offset + index - stopped_bytes)
                self._held.clear()
                return released
        return self._release(len(self._held) - max(stop.matched_bytes for stop in self._stops))

    def flush(self) -> bytes:
        """What was held back, when nothing more will come. Nothing after a match."""
        return self._release(len(self._held))

    def _release(self, size: int) -> bytes:
        released = bytes(compress(self._held[:size], self._shown))
        del self._held[:size], self._shown[:size]
        return released


class _Prefixes:
    """One stop and how much of it the stream's end matches (Knuth, Morris, Pratt): a step is amortized O(1)."""

    __slots__ = ("_fallback", "matched_bytes", "text")

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.matched_bytes = 0
        self._fallback = [0] * len(text)  # [n]: the longest proper border of text[: n + 1]
        border = 0
        for n in range(1, len(text)):
            while border and text[n] != text[border]:
                border = self._fallback[border - 1]
            if text[n] == text[border]:
                border += 1
            self._fallback[n] = border

    def advance(self, byte: int) -> bool:
        """Take one more byte; True if it completes the stop."""
        matched = self.matched_bytes
        while matched and self.text[matched] != byte:
            matched = self._fallback[matched - 1]
        if self.text[matched] == byte:
            matched += 1
        self.matched_bytes = matched
        return matched == len(self.text)
