"""Byte-level BPE: llama.cpp's ids, and what no text may become."""

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calculet_trio.errors import InvalidRequest, PackageError
from calculet_trio.text.bpe import CONTROL_TOKEN, PRE_TOKENIZERS, USER_DEFINED_TOKEN, BpeTokenizer
from calculet_trio.text.byte_tokenizer import ByteTokenizer
from calculet_trio.text.tokenizer import Segment, SpecialIds
from tests.text import llama
from tests.text.vocabularies import (
    CROSSING_CHARACTERS,
    SPECIAL_IDS,
    SPECIALS,
    THINK,
    UNMERGED_WORDS,
    crossing_vocabulary,
    tiny_vocabulary,
)

TINY = BpeTokenizer.from_vocabulary(tiny_vocabulary("h i", "Ġ hi", "a a", "aa aa"), SPECIAL_IDS)

ODD_TEXTS = [
    "",
    " ",
    "Hello, World! don't WON'T we'LL 's 'S",
    "😀😸👨‍👩‍👧 é e\u0301 ﬁ ß İ",
    "日本語 中文字符 한국어 ภาษาไทย हिन्दी עברית",
    "def f(x):\n    return {'a': [1, 22, 333, 4444]}\n\n\n#!/bin/sh\r\n\t\tx",
    "   leading\n \n  \n\ttrailing   ",
    "a  b   c    d\u00a0e\u3000f\u2003g\u2028h\u200bi",
    "".join(map(chr, range(32))) + "\x7f\x80\x85\x9f",
    "1234567 ٣٤ ² Ⅷ ½ 3.14e-10 0x1F",
    "$+=<>^~|_ ... !!! ?! --- ***",
    "<|im_end|> <|endoftext|> <filename>",
    "\ufeff\ufffd\ue000\U000f0001\U0010ffff\u0378",
]
PIECES = [piece for text in ODD_TEXTS for piece in text.split(" ")] + [" ", "  ", "\n", "\r\n", "\t", "'s", "'LL", "7"]


def random_texts(count: int) -> Iterator[str]:
    rng = random.Random(20261129)
    for n in range(count):
        if n % 3:
            yield "".join(rng.choice(PIECES) for _ in range(rng.randint(1, 12)))
        else:
            codes = [rng.randrange(rng.choice([0x300, 0x3000, 0x110000])) for _ in range(rng.randint(1, 8))]
            yield "".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000)


def crossing_texts(count: int) -> Iterator[str]:
    rng = random.Random(20261130)
    for _ in range(count):
        pieces = [*CROSSING_CHARACTERS, *UNMERGED_WORDS]
        yield "".join(rng.choice(pieces) for _ in range(rng.randint(1, 24)))


# ---- against llama.cpp ----------------------------------------------------------------------------


def test_ids_of_the_real_model_are_those_of_llama_cpp(smollm2_gguf: Path, smollm2_vocabulary: dict[str, Any]) -> None:
    tokenizer = BpeTokenizer.from_vocabulary(smollm2_vocabulary, SpecialIds(bos=1, eos=2, end_of_turn=(2, 0)))
    with llama.serving(smollm2_gguf) as oracle:
        for text in [*ODD_TEXTS, *random_texts(1500)]:
            assert tokenizer.encode(text) == oracle.encode(text), repr(text)
            parsed = oracle.encode(text, parse_special=True)
            assert tokenizer.encode(text, parse_special=True) == parsed, repr(text)


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_every_pre_tokenizer_cuts_words_where_llama_cpp_does(pre: str, tmp_path: Path) -> None:
    vocabulary = crossing_vocabulary(pre)
    tokenizer = BpeTokenizer.from_vocabulary(vocabulary, SpecialIds())
    llama.write_tiny_model(tmp_path / "tiny.gguf", vocabulary)
    with llama.serving(tmp_path / "tiny.gguf") as oracle:
        for text in [*ODD_TEXTS, *crossing_texts(1000), THINK, f"a{THINK}b", *UNMERGED_WORDS]:
            assert tokenizer.encode(text) == oracle.encode(text), repr(text)


def test_pre_tokenizers_differ() -> None:
    texts = list(crossing_texts(200))
    tokenizers = [BpeTokenizer.from_vocabulary(crossing_vocabulary(pre), SpecialIds()) for pre in PRE_TOKENIZERS]
    answers = {tuple(tuple(tokenizer.encode(text)) for text in texts) for tokenizer in tokenizers}
    assert len(answers) == len(PRE_TOKENIZERS)


def test_megabytes_without_a_space_leave_other_threads_running(smollm2_vocabulary: dict[str, Any]) -> None:
    tokenizer = BpeTokenizer.from_vocabulary(smollm2_vocabulary, SpecialIds())
    text = "a" * 5_000_000
    assert len(text) > tokenizer.text_bytes_limit(2048), "a caller would have refused it"
    beats = 0
    done = threading.Event()

    def beat() -> None:
        nonlocal beats
        while not done.is_set():
            done.wait(0.001)  # gives the GIL up, and needs it back to count
            beats += 1

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        ids = tokenizer.encode(text)
    finally:
        done.set()
        thread.join()
    assert tokenizer.decode(ids) == text
    assert beats > 20


# ---- without a model ------------------------------------------------------------------------------


def test_merges_stop_at_words() -> None:
    texts = [TINY.token_bytes(token) for token in TINY.encode("hi hi aaaaa")]
    assert texts == [b"hi", b" hi", b" ", b"aaaa", b"a"]


@given(st.text())
def test_text_survives_the_way_there_and_back(text: str) -> None:
    assert TINY.decode(TINY.encode(text)) == text


@given(st.lists(st.sampled_from([*SPECIALS, "<|im_", "end|>", " ", "hi", "😀", "\n"])).map("".join))
def test_no_text_becomes_a_special_token(text: str) -> None:
    assert not any(map(TINY.is_special, TINY.encode(text)))
    assert TINY.encode_prompt([Segment(text)]) == TINY.encode(text)


@given(st.lists(st.sampled_from([*SPECIALS, "<|im_", "end|>", " ", "hi", "😀", "\n"])))
def test_special_tokens_are_parsed_where_asked_for(pieces: list[str]) -> None:
    text = "".join(pieces)
    ids = TINY.encode(text, parse_special=True)
    assert TINY.decode(ids) == text
    assert sum(map(TINY.is_special, ids)) == sum(text.count(special) for special in SPECIALS)


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_a_special_token_that_looks_like_a_word_is_none_to_text(pre: str) -> None:
    vocabulary = tiny_vocabulary(pre=pre)
    vocabulary["tokens"].append("secret")
    vocabulary["token_types"].append(CONTROL_TOKEN)
    tokenizer = BpeTokenizer.from_vocabulary(vocabulary, SPECIAL_IDS)
    assert tokenizer.decode(tokenizer.encode("a secret secret")) == "a secret secret"
    assert not any(map(tokenizer.is_special, tokenizer.encode("secret")))


def test_special_tokens_are_found_wherever_a_search_window_ends() -> None:
    tokenizer = ByteTokenizer(specials=("<|end|>", "<|end|><|more|>"))
    for before in range((1 << 16) - 20, (1 << 16) + 20):
        ids = tokenizer.encode("a" * before + "<|end|><|more|>b<|end|>", parse_special=True)
        assert ids[before:] == [257, ord("b"), 256]


def test_a_prompt_is_one_text_between_special_tokens() -> None:
    split = [Segment("<|im_start|>", special=True), Segment("h"), Segment("i"), Segment("<|im_end|>", special=True)]
    assert TINY.encode_prompt(split) == [1, *TINY.encode("hi"), 2]
    assert len(TINY.encode("hi")) == 1


def test_bos_is_added_once_where_the_model_wants_it() -> None:
    wanting = BpeTokenizer.from_vocabulary(tiny_vocabulary(), SpecialIds(bos=1, eos=2, add_bos=True))
    assert wanting.encode_prompt([Segment("a")]) == [1, *wanting.encode("a")]
    assert wanting.encode_prompt([Segment("<|im_start|>", special=True), Segment("a")]) == [1, *wanting.encode("a")]
    assert wanting.encode_prompt([]) == [1]
    assert wanting.encode("a") == wanting.encode("a", parse_special=True)
    assert TINY.encode_prompt([Segment("a")]) == TINY.encode("a")


def test_user_defined_tokens_are_whole_tokens_of_text() -> None:
    [token] = TINY.encode(THINK)
    assert TINY.token_bytes(token) == THINK.encode()
    assert not TINY.is_special(token)


def test_what_is_special_and_what_ends() -> None:
    assert [TINY.is_special(token) for token in range(5)] == [True, True, True, False, False]
    assert [TINY.is_end(token) for token in range(4)] == [True, False, True, False]
    assert TINY.special_id("<|im_end|>") == 2
    assert TINY.special_id("hi") is None
    assert TINY.special_id(THINK) is None
    assert TINY.token_bytes(2) == b"<|im_end|>"
    assert set(TINY.special_literals) == set(SPECIALS)


def test_a_byte_without_a_token_is_dropped_and_keeps_its_neighbours_apart() -> None:
    tokenizer = BpeTokenizer.from_vocabulary(tiny_vocabulary("a a", absent="b"), SPECIAL_IDS)
    assert [tokenizer.token_bytes(token) for token in tokenizer.encode("abaa")] == [b"a", b"aa"]


@given(st.text(min_size=1))
def test_no_text_has_fewer_tokens_than_its_bytes_say(text: str) -> None:
    tokens = len(TINY.encode(text))
    assert len(text.encode()) <= TINY.text_bytes_limit(tokens)


def test_ids_outside_the_vocabulary_have_no_bytes() -> None:
    for token in (-1, TINY.vocab_size, 2**32):
        with pytest.raises(IndexError):
            TINY.token_bytes(token)


def test_a_lone_surrogate_is_the_clients_mistake() -> None:
    for encode in (TINY.encode, lambda text: TINY.encode_prompt([Segment(text)])):
        with pytest.raises(InvalidRequest, match="surrogate at character 1"):
            encode("a\ud800b")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"model": "llama"}, "tokenizer model 'llama' is not supported; supported: gpt2"),
        ({"pre": "tekken"}, "pre-tokenizer 'tekken' is not supported; supported: .*qwen2, smollm"),
        ({"tokens": None}, "no list 'tokens'"),
        ({"token_types": [1]}, "260 tokens but 1 token types"),
        ({"merges": ["x yz"]}, "merge 'x yz' speaks of a token"),
    ],
)
def test_a_vocabulary_that_cannot_work_is_refused_by_name(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PackageError, match=sentence):
        BpeTokenizer.from_vocabulary({**tiny_vocabulary(), **change}, SPECIAL_IDS)


def grown(*more: str, kind: int) -> dict[str, Any]:
    """A vocabulary with more tokens of one kind."""
    vocabulary = tiny_vocabulary()
    vocabulary["tokens"] = [*vocabulary["tokens"], *more]
    vocabulary["token_types"] = [*vocabulary["token_types"], *[kind] * len(more)]
    return vocabulary


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["x" * 1025], "has a token of 1025 characters; allowed: 1024"),
        ([f"<|{number}|>" for number in range(16_385)], "special tokens of .* characters; allowed: 16384"),
        (
            [f"<|{number:01000d}|>" for number in range(1100)],
            "of 1104400|of 110[0-9]+ characters; allowed: 16384 of 1048576",
        ),
    ],
)
def test_what_would_keep_those_busy_who_search_for_it_is_refused(more: list[str], sentence: str) -> None:
    with pytest.raises(PackageError, match=sentence):
        BpeTokenizer.from_vocabulary(grown(*more, kind=CONTROL_TOKEN), SPECIAL_IDS)


def test_any_number_of_tokens_of_users_is_made_in_one_pass() -> None:
    words = [f"<{number}>" for number in range(50_000)]
    tokenizer = BpeTokenizer.from_vocabulary(grown(*words, kind=USER_DEFINED_TOKEN), SPECIAL_IDS)
    first = len(tiny_vocabulary()["tokens"])
    assert tokenizer.encode("<49999>") == [first + 49_999]
    assert tokenizer.token_bytes(first + 7) == b"<7>"


@pytest.mark.parametrize("kind", [CONTROL_TOKEN, USER_DEFINED_TOKEN])
def test_a_token_without_text_is_found_in_no_text(kind: int) -> None:
    tokenizer = BpeTokenizer.from_vocabulary(grown("", kind=kind), SPECIAL_IDS)
    assert tokenizer.encode("ab", parse_special=True) == TINY.encode("ab")
    assert "" not in tokenizer.special_literals


def test_a_special_id_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(PackageError, match="special token 999 is outside"):
        BpeTokenizer.from_vocabulary(tiny_vocabulary(), SpecialIds(eos=999))
