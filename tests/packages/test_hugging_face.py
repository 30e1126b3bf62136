"""A Hugging Face tokenizer directory: what it becomes says what their own library says."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from calculet_trio.errors import PackageError
from calculet_trio.packages.hugging_face import CONTROL, NORMAL, UNUSED, USER_DEFINED, HuggingFaceTokenizer
from calculet_trio.text.bpe import BpeTokenizer
from calculet_trio.text.tokenizer import SpecialIds
from tests.packages.tiny_tokenizer import TEXTS, qwen_like, write_tokenizer

MORE_TEXTS = (*TEXTS, "The quick BROWN fox's 12345 tails\r\n\r\n  end ", "<think>\nso</think>", "é ü ﬁ 中文 🙂🙂")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_tokenizer(tmp_path / "tokenizer")


def change(directory: Path, name: str, **changes: Any) -> None:
    path = directory / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def opened(directory: Path, vocab_size: int = 300) -> HuggingFaceTokenizer:
    return HuggingFaceTokenizer(directory, vocab_size=vocab_size)


def everything_of(directory: Path) -> None:
    tokenizer = opened(directory)
    tokenizer.vocabulary(), tokenizer.special(), tokenizer.architecture()


@pytest.mark.parametrize("text", MORE_TEXTS)
def test_ids_are_those_of_the_library_that_wrote_it(directory: Path, text: str) -> None:
    ours = BpeTokenizer.from_vocabulary(opened(directory).vocabulary(), SpecialIds())
    ids = ours.encode(text)
    assert ids == qwen_like().encode(text, add_special_tokens=False).ids
    assert ours.decode(ids) == text


def test_rows_without_a_token_are_unused_and_added_tokens_keep_their_kind(directory: Path) -> None:
    vocabulary = opened(directory).vocabulary()
    assert vocabulary["pre"] == "qwen2"
    assert len(vocabulary["tokens"]) == len(vocabulary["token_types"]) == 300
    assert vocabulary["tokens"][290:294] == ["<|endoftext|>", "<|im_end|>", "<think>", "[293]"]
    assert vocabulary["token_types"][289:294] == [NORMAL, CONTROL, CONTROL, USER_DEFINED, UNUSED]


def test_a_reply_ends_where_either_configuration_says_so(directory: Path) -> None:
    special = opened(directory).special()
    assert (special.bos, special.eos, special.end_of_turn, special.add_bos) == (None, 291, (290, 291), False)


def test_the_networks_numbers_are_those_of_its_configuration(directory: Path) -> None:
    numbers = opened(directory).architecture()
    assert (numbers.family, numbers.layers, numbers.kv_heads, numbers.head_dim) == ("qwen3moe", 4, 1, 4)
    assert (numbers.feed_forward, numbers.experts, numbers.experts_used, numbers.vocab_size) == (96, 8, 2, 300)


def test_a_template_file_goes_before_the_configuration(directory: Path) -> None:
    assert opened(directory).chat_template() == "{{ messages }}"
    change(directory, "tokenizer_config.json", chat_template=[{"name": "default", "template": "D"}, {"name": "t"}])
    assert opened(directory).chat_template() == "D"
    (directory / "chat_template.jinja").write_text("own file")
    assert opened(directory).chat_template() == "own file"


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("tokenizer.json", {"model": {"type": "Unigram"}}, 'model is a "Unigram"; allowed: a byte-level BPE'),
        ("tokenizer.json", {"normalizer": {"type": "Lowercase"}}, 'normalizer is "Lowercase"; allowed: none, NFC'),
        ("tokenizer.json", {"pre_tokenizer": {"type": "Whitespace"}}, "cuts words in a way that is not known"),
        ("tokenizer.json", {"added_tokens": [{"content": "x", "id": 300}]}, 'token "x" has id 300; allowed: below 300'),
        ("tokenizer_config.json", {"eos_token": "<none>"}, 'eos_token is "<none>", which is no token'),
        ("generation_config.json", {"eos_token_id": 300}, "eos_token_id has 300, which is no token"),
        ("config.json", {"num_hidden_layers": "many"}, 'num_hidden_layers is "many"; allowed: 1 to'),
    ],
)
def test_what_is_not_supported_is_refused_by_file_and_key(
    directory: Path, name: str, changes: dict[str, object], words: str
) -> None:
    change(directory, name, **changes)
    with pytest.raises(PackageError) as refused:
        everything_of(directory)
    assert name in refused.value.message
    assert words in refused.value.message


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json"])
@pytest.mark.parametrize("data", [None, b"{", b"[]", b"\xff", b"[" * 200_000])
def test_a_file_that_is_missing_or_damaged_is_named(directory: Path, name: str, data: bytes | None) -> None:
    if data is None:
        (directory / name).unlink()
    else:
        (directory / name).write_bytes(data)
    with pytest.raises(PackageError, match=name):
        opened(directory).architecture()


STRANGE: tuple[Any, ...] = (None, True, -1, 1e308, 10**4000, "x", "\ud800", [], {}, [None], {"a": 1}, ["a", ["b"]])


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in a file; of many alike the first three."""
    yield path
    within = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    for key, inner in within[: 3 if isinstance(value, list) else 12]:
        yield from places(inner, (*path, key))


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "generation_config.json", "config.json"])
def test_whatever_stands_anywhere_is_taken_or_refused_in_a_short_sentence(directory: Path, name: str) -> None:
    value = json.loads((directory / name).read_text())
    refusals = set()
    for path in places(value):
        for strange in STRANGE:
            changed = {"whole": json.loads(json.dumps(value))}
            place: Any = changed
            for key in ("whole", *path)[:-1]:
                place = place[key]
            place[("whole", *path)[-1]] = strange
            (directory / name).write_text(json.dumps(changed["whole"]))
            try:
                everything_of(directory)
            except PackageError as refused:
                refusals.add(refused.message)
    assert refusals
    assert all(message.isprintable() and len(message) < 1000 for message in refusals)


def test_a_pipe_in_a_file_s_place_is_not_waited_for(directory: Path) -> None:
    (directory / "tokenizer.json").unlink()
    os.mkfifo(directory / "tokenizer.json")
    with pytest.raises(PackageError, match="not a regular file"):
        opened(directory)
