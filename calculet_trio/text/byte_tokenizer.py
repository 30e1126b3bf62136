"""A tokenizer for tests and scripted runtimes: one token a byte, and whatever else a script names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from calculet_trio.text.tokenizer import SpecialIds, Tokenizer

BYTE_SPECIALS: Final = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")


class ByteTokenizer(Tokenizer):
    """Ids 0–255 are bytes, then the special tokens, then the extra tokens, in the order given.

    Text encodes to its bytes; extra tokens occur only where a script says so.

    Args:
        extra: the bytes of further tokens; any bytes, also halves of characters.
        specials: literals of the control tokens. The last two end a reply, the last is EOS.
    """

    def __init__(self, extra: Sequence[bytes] = (), specials: Sequence[str] = BYTE_SPECIALS) -> None:
        literals = {text: 256 + n for n, text in enumerate(specials)}
        ends = tuple(literals.values())[-2:]
        special = SpecialIds(eos=ends[-1] if ends else None, end_of_turn=ends)
        self._bytes = [bytes([byte]) for byte in range(256)] + [text.encode() for text in specials] + list(extra)
        super().__init__(literals, special, vocab_size=len(self._bytes), longest_token_bytes=1)
        self._first_extra = 256 + len(literals)

    def token_bytes(self, token: int) -> bytes:
        if not 0 <= token < self.vocab_size:
            raise IndexError(f"token {token} is outside the vocabulary of {self.vocab_size}")
        return self._bytes[token]

    def token_of(self, text_bytes: bytes) -> int:
        """The token that stands for exactly these bytes: an extra one, or a single byte.

        Raises:
            ValueError: there is none.
        """
        if len(text_bytes) == 1:
            return text_bytes[0]
        return self._bytes.index(text_bytes, self._first_extra)

    def _encode_text(self, text: str) -> list[int]:
        return list(text.encode())
