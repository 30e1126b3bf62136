"""Stop strings: found over any split, and nothing held back that could be shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calculet_trio.text.stops import StopMatcher

ALPHABET = st.text("ab<é", max_size=5) | st.text("ab", max_size=12)
STOPS = st.lists(st.text("ab<é", min_size=1, max_size=4) | st.text("ab", min_size=5, max_size=9), max_size=4)


def shown(stops: list[str], *pieces: bytes) -> tuple[list[bytes], bool]:
    matcher = StopMatcher(stops)
    outputs = []
    for piece in pieces:
        outputs.append(matcher.feed(piece))
        if matcher.matched:
            break
    return [*outputs, matcher.flush()], matcher.matched


def cut(text: bytes, stops: list[str]) -> bytes:
    """The definition: before the stop that is completed first, the longest of those completed together."""
    for end in range(1, len(text) + 1):
        lengths = [len(stop.encode()) for stop in stops if text[:end].endswith(stop.encode())]
        if lengths:
            return text[: end - max(lengths)]
    return text


@pytest.mark.parametrize(
    ("stops", "pieces", "text"),
    [
        (["\nUser:"], [b"Hi", b"\nUs", b"er", b": x"], b"Hi"),
        (["five"], [b"four, fi", b"ve, six", b","], b"four, "),
        (["é"], [b"a\xc3", b"\xa9\xf0\x9f", b"\x98\xb8"], b"a"),
        (["aab"], [b"aaab"], b"a"),
        (["aabaaaa"], [b"aabaaab", b"aaaa"], b"aaba"),
        (["bc", "abcd"], [b"abcd"], b"a"),
        (["c", "abc"], [b"ab", b"c"], b""),
    ],
)
def test_a_stop_is_found_across_tokens(stops: list[str], pieces: list[bytes], text: bytes) -> None:
    outputs, matched = shown(stops, *pieces)
    assert b"".join(outputs) == text
    assert matched


def test_only_what_could_become_a_stop_is_held() -> None:
    outputs, _ = shown(["<|a-very-long-stop-string|>"], b"a", b"b", b"x<", b"y<|a", b"z")
    assert outputs == [b"a", b"b", b"x", b"<y", b"<|az", b""]


def test_of_two_stops_the_longer_held_prefix_counts() -> None:
    outputs, _ = shown(["ab!", "xxab?"], b"xxxab", b"c")
    assert outputs == [b"x", b"xxabc", b""]


def test_what_is_held_at_the_end_is_given_out() -> None:
    assert shown(["zz"], b"az") == ([b"a", b"z"], False)


@given(STOPS, st.lists(ALPHABET.map(str.encode)))
def test_any_split_is_cut_where_the_whole_is(stops: list[str], pieces: list[bytes]) -> None:
    text = b"".join(pieces)
    expected = cut(text, stops)
    assert b"".join(shown(stops, *pieces)[0]) == expected
    assert b"".join(shown(stops, *(bytes([byte]) for byte in text))[0]) == expected
    assert shown(stops, text)[1] == (expected != text)


@given(STOPS, st.lists(ALPHABET.map(str.encode)))
def test_held_is_the_longest_suffix_that_begins_a_stop(stops: list[str], pieces: list[bytes]) -> None:
    matcher = StopMatcher(stops)
    text, given_out = b"", 0
    for piece in pieces:
        text += piece
        given_out += len(matcher.feed(piece))
        if matcher.matched:
            return
        beginnings = {stop.encode()[:size] for stop in stops for size in range(1, len(stop.encode()))}
        held = max((size for size in range(len(text) + 1) if text[len(text) - size :] in beginnings), default=0)
        assert len(text) - given_out == held


def test_hidden_pieces_match_and_are_not_shown() -> None:
    matcher = StopMatcher(["<|im_start|>user"])
    outputs = [matcher.feed(b"ok"), matcher.feed(b"<|im_start|>", hidden=True), matcher.feed(b"us")]
    assert outputs == [b"ok", b"", b""]
    assert matcher.feed(b"er") == b""
    assert matcher.matched
    matcher = StopMatcher(["<|im_start|>user"])
    outputs = [matcher.feed(b"ok"), matcher.feed(b"<|im_start|>", hidden=True), matcher.feed(b"usual")]
    assert outputs == [b"ok", b"", b"usual"]


def test_hidden_pieces_are_not_shown_without_stops_either() -> None:
    matcher = StopMatcher([""])
    assert matcher.feed(b"<|im_start|>", hidden=True) + matcher.feed(b"a") == b"a"


def test_a_stop_of_megabytes_costs_its_length_once() -> None:
    stop = "a" * 300_000 + "b"
    outputs, matched = shown([stop], *[b"a" * 1000] * 400, b"b")
    assert b"".join(outputs) == b"a" * 100_000
    assert matched
