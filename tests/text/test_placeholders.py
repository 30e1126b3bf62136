"""What users wrote never becomes a special token, and comes back as it was."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calculet_trio.text.placeholders import Placeholders, PlaceholdersExhausted, SpecialLiterals

SPECIALS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<filename>"]
LITERALS = SpecialLiterals(SPECIALS)
PIECES = [
    *SPECIALS,
    "<|im_",
    "<|",
    "<",
    "|",
    "im_end",
    "|im_end|",
    "im_end|>",
    "end|>",
    "|>",
    ">",
    " ",
    "a",
    "\U000f0000",
]
USER_TEXT = st.lists(st.sampled_from(PIECES), max_size=5).map("".join)


def rendered(literals: SpecialLiterals, strings: list[str], glue: str) -> list[tuple[str, bool]]:
    placeholders = Placeholders(literals, strings, apart_from=glue)
    return placeholders.split(glue.join(placeholders.hidden()))


@given(st.lists(USER_TEXT, max_size=5), st.sampled_from(["", "\n", " "]))
def test_nothing_of_a_user_becomes_special_alone_or_together(strings: list[str], glue: str) -> None:
    pieces = rendered(LITERALS, strings, glue)
    assert not any(special for _, special in pieces)
    assert "".join(text for text, _ in pieces) == glue.join(strings)


@given(USER_TEXT, st.sampled_from([("<", ">"), ("<|", "|>"), ("", ">"), ("<", ""), ("<|im_", "|>")]))
def test_a_template_that_writes_half_a_literal_around_it_makes_none(text: str, around: tuple[str, str]) -> None:
    before, after = around
    placeholders = Placeholders(LITERALS, [text], apart_from="")
    [hidden] = placeholders.hidden()
    words = {"im_end", "im_start", "endoftext", "filename", "end", "start"}  # words stay: templates compare with them
    pieces = placeholders.split(before + hidden + after)
    if text not in words:
        assert not any(special for _, special in pieces)
    assert "".join(piece for piece, _ in pieces) == before + text + after


@pytest.mark.parametrize(
    ("before", "text", "after"),
    [
        ("", "<|im_end|", ">"),
        ("", "x <|im_", "end|>"),
        ("<|", "im_end|> x", ""),
        ("<", "|im_end|", ">"),
        ("<", "|im_end|>", ""),
        ("", "x <filename", ">"),
    ],
)
def test_a_literal_begun_or_ended_by_the_user_stays_text(before: str, text: str, after: str) -> None:
    placeholders = Placeholders(LITERALS, [text], apart_from="")
    [hidden] = placeholders.hidden()
    assert placeholders.split(before + hidden + after) == [(before + text + after, False)]


@given(st.lists(st.tuples(USER_TEXT, st.sampled_from(SPECIALS)), max_size=4))
def test_what_the_template_writes_is_special(turns: list[tuple[str, str]]) -> None:
    placeholders = Placeholders(LITERALS, [text for text, _ in turns], apart_from="")
    hidden = placeholders.hidden()
    pieces = placeholders.split("".join(literal + text for text, (_, literal) in zip(hidden, turns, strict=True)))
    assert [text for text, special in pieces if special] == [literal for _, literal in turns]
    assert "".join(text for text, _ in pieces) == "".join(literal + text for text, literal in turns)


VALUES = st.recursive(
    st.none() | st.integers() | USER_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(USER_TEXT, inner, max_size=3),
    max_leaves=6,
)


@given(VALUES)
def test_every_string_of_a_value_is_guarded_keys_too(value: Any) -> None:
    def strings(item: Any) -> list[str]:
        if isinstance(item, str):
            return [item]
        if isinstance(item, dict):
            return [text for pair in item.items() for part in pair for text in strings(part)]
        return [text for part in item for text in strings(part)] if isinstance(item, list) else []

    placeholders = Placeholders(LITERALS, value, apart_from="")
    hidden = strings(placeholders.hidden())
    assert not any(literal in text for text in hidden for literal in SPECIALS)
    back = ["".join(text for text, _ in placeholders.split(text)) for text in hidden]
    assert back == strings(value)


def test_the_words_that_templates_compare_with_stay() -> None:
    literals = SpecialLiterals(["<|user|>", "<|assistant|>", "<|function|>"])
    value = {"role": "user", "type": "function", "content": "the user is an assistant, plain < > | text\n- <b>bold</b>"}
    assert Placeholders(literals, value, apart_from="").hidden() == value


def test_characters_that_user_or_template_wrote_are_not_taken() -> None:
    placeholders = Placeholders(LITERALS, ["\U000f0000 <|im_end|>"], apart_from="\U000f0001")
    [hidden] = placeholders.hidden()
    assert hidden == "\U000f0000 \U000f0002"
    assert placeholders.split(hidden) == [("\U000f0000 <|im_end|>", False)]


def test_a_placeholder_in_ascii_json_comes_back() -> None:
    placeholders = Placeholders(LITERALS, ["<|im_end|>"], apart_from="")
    placeholders.hidden()
    assert placeholders.split(r'"\udb80\udc00"') == [('"<|im_end|>"', False)]


def test_a_text_of_all_private_use_characters_is_refused() -> None:
    everything = "".join(map(chr, [*range(0xE000, 0xF900), *range(0xF0000, 0xFFFFE), *range(0x100000, 0x10FFFE)]))
    with pytest.raises(PlaceholdersExhausted):
        Placeholders(LITERALS, [everything, "<|im_end|>"], apart_from="").hidden()
    assert Placeholders(LITERALS, [everything], apart_from="").hidden() == [everything]


def test_a_model_without_special_tokens() -> None:
    assert rendered(SpecialLiterals([]), ["a", "b"], " ") == [("a b", False)]
