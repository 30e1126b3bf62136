"""Whole characters only, and the same text however its bytes are split."""

from hypothesis import given
from hypothesis import strategies as st

from calculet_trio.text.detokenizer import Detokenizer


def shown(*pieces: bytes) -> list[str]:
    detokenizer = Detokenizer()
    return [*map(detokenizer.feed, pieces), detokenizer.flush()]


def test_a_character_over_two_tokens_is_shown_when_it_is_whole() -> None:
    assert shown(b"\xf0\x9f", b"\x98\xb8", b"\xc3", b"\xa9", b" ok") == ["", "😸", "", "é", " ok", ""]


def test_a_character_without_its_end_becomes_one_replacement_at_the_end() -> None:
    assert shown(b"a\xf0\x9f", b"\x98") == ["a", "", "\ufffd"]


def test_what_can_never_be_a_character_is_replaced_at_once() -> None:
    assert shown(b"a\xff", b"\xf0\x9f", b"b") == ["a\ufffd", "", "\ufffdb", ""]


@given(st.lists(st.binary(max_size=6)))
def test_any_split_of_any_bytes_decodes_like_the_whole(pieces: list[bytes]) -> None:
    assert "".join(shown(*pieces)) == b"".join(pieces).decode("utf-8", "replace")


@given(st.text(), st.data())
def test_no_replacement_for_text_that_completes(text: str, data: st.DataObject) -> None:
    whole = text.replace("\ufffd", "").encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)))))
    pieces = [whole[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    outputs = shown(*pieces)
    assert "\ufffd" not in "".join(outputs)
    assert outputs[-1] == ""


@given(st.lists(st.binary(max_size=6)))
def test_at_most_three_bytes_wait(pieces: list[bytes]) -> None:
    detokenizer = Detokenizer()
    for piece in pieces:
        detokenizer.feed(piece)
        assert detokenizer.pending_bytes <= 3
