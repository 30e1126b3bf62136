"""Bytes of tokens into text as they come, whole characters only.

Tokens of a byte-level vocabulary may end in the middle of a character; what a client is shown may not.
"""

from __future__ import annotations

import codecs


class Detokenizer:
    """Incremental UTF-8: the joined results equal decoding all bytes at once, whatever the split.

    Bytes that begin a character wait for the rest of it, at most three of them. Bytes that can never be
    part of a character become U+FFFD, one for each maximal piece, and so does a character whose rest
    never came (`flush`): the reply says that something stood there.

    Source: The Unicode Standard, chapter 3, "U+FFFD Substitution of Maximal Subparts".
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def pending_bytes(self) -> int:
        """Bytes of the unfinished character."""
        return len(self._decoder.getstate()[0])

    def feed(self, piece: bytes) -> str:
        """The characters that ``piece`` completes."""
        return self._decoder.decode(piece)

    def flush(self) -> str:
        """What is left of an unfinished character: one U+FFFD, or nothing."""
        return self._decoder.decode(b"", final=True)
