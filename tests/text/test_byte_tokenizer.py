"""The scripted runtime's tokenizer keeps the promises of every tokenizer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calculet_trio.text.byte_tokenizer import BYTE_SPECIALS, ByteTokenizer

EXTRA = [b"\xf0\x9f", b"hello", b"", b"\nUs"]
TOKENIZER = ByteTokenizer(EXTRA)


@given(st.text())
def test_text_is_its_bytes(text: str) -> None:
    assert TOKENIZER.encode(text) == list(text.encode())
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


def test_special_tokens_follow_the_bytes() -> None:
    assert TOKENIZER.encode("a<|im_end|>", parse_special=True) == [97, 257]
    assert [TOKENIZER.special_id(text) for text in BYTE_SPECIALS] == [256, 257, 258]
    assert [token for token in range(TOKENIZER.vocab_size) if TOKENIZER.is_special(token)] == [256, 257, 258]
    assert [token for token in range(TOKENIZER.vocab_size) if TOKENIZER.is_end(token)] == [257, 258]


def test_extra_tokens_are_found_by_their_bytes() -> None:
    for text_bytes in EXTRA:
        assert TOKENIZER.token_bytes(TOKENIZER.token_of(text_bytes)) == text_bytes
    assert TOKENIZER.token_of(b"h") == ord("h")
    assert TOKENIZER.encode("hello") == list(b"hello")
    with pytest.raises(ValueError, match="not in list"):
        TOKENIZER.token_of(b"nobody")


def test_ids_outside_the_vocabulary_have_no_bytes() -> None:
    for token in (-1, TOKENIZER.vocab_size):
        with pytest.raises(IndexError):
            TOKENIZER.token_bytes(token)
