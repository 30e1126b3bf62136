"""What errors show of texts."""

from __future__ import annotations

import pytest

from calculet_trio.visible import difference


@pytest.mark.parametrize(
    ("text", "other", "at"), [("", "", 0), ("ab", "ab", 2), ("ab", "abc", 2), ("abc", "ab", 2), ("axc", "abc", 1)]
)
def test_two_texts_part_at_their_first_different_character(text: str, other: str, at: int) -> None:
    assert difference(text, other) == at
