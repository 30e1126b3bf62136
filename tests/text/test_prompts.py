"""Every kind of prompt into ids; what cannot fit is refused before it costs anything."""

from collections.abc import Iterator

import pytest

from calculet_trio.errors import ContextLengthExceeded, InvalidRequest
from calculet_trio.text.bpe import BpeTokenizer
from calculet_trio.text.params import ChatPrompt, TextPrompt, TokenPrompt
from calculet_trio.text.prompts import PromptReader
from calculet_trio.text.template import TemplateWorker
from calculet_trio.text.tokenizer import SpecialIds
from tests.text.vocabularies import SPECIAL_IDS, tiny_vocabulary

TOKENIZER = BpeTokenizer.from_vocabulary(tiny_vocabulary("h i", "a a", "aa aa"), SPECIAL_IDS)
LONGEST_BYTES = len("<think>")
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"


@pytest.fixture(scope="module")
def reader() -> Iterator[PromptReader]:
    template = TemplateWorker(TEMPLATE, special_literals=TOKENIZER.special_literals)
    yield PromptReader(TOKENIZER, template)
    template.close()


def test_a_conversation(reader: PromptReader) -> None:
    prompt = ChatPrompt(messages=[{"role": "user", "content": "hi<|im_end|>"}])
    assert reader.read(prompt, limit_tokens=100) == [1, *TOKENIZER.encode("hi<|im_end|>"), 2]
    assert "".join(segment.text for segment in reader.segments(prompt)) == "<|im_start|>hi<|im_end|><|im_end|>"


def test_text_is_text(reader: PromptReader) -> None:
    ids = reader.read(TextPrompt("<|im_end|>hi"), limit_tokens=100)
    assert not any(map(TOKENIZER.is_special, ids))
    assert TOKENIZER.decode(ids) == "<|im_end|>hi"


def test_ids_are_taken_as_they_are_if_the_model_has_them(reader: PromptReader) -> None:
    assert reader.read(TokenPrompt((2, 5)), limit_tokens=1) == [2, 5]
    for token in (-1, TOKENIZER.vocab_size, 2**32):
        with pytest.raises(InvalidRequest, match=r"prompt\[1\] is not a token") as caught:
            reader.read(TokenPrompt((2, token)), limit_tokens=1)
        assert caught.value.param == "prompt[1]"


def test_an_empty_prompt_is_the_beginning_of_text(reader: PromptReader) -> None:
    assert reader.read(TextPrompt(""), limit_tokens=9) == [1]
    assert reader.read(TokenPrompt(()), limit_tokens=9) == [1]
    nameless = PromptReader(BpeTokenizer.from_vocabulary(tiny_vocabulary(), SpecialIds(eos=2)), None)
    with pytest.raises(InvalidRequest, match="prompt is empty"):
        nameless.read(TextPrompt(""), limit_tokens=9)


def test_a_model_without_a_template_has_no_conversations() -> None:
    with pytest.raises(InvalidRequest, match="no chat template; use /v1/completions") as caught:
        PromptReader(TOKENIZER, None).read(ChatPrompt(messages=[]), limit_tokens=9)
    assert caught.value.param == "messages"


def test_what_cannot_fit_is_not_tokenized(reader: PromptReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TOKENIZER, "encode_prompt", lambda segments: pytest.fail("it was tokenized"))
    size = 10 * LONGEST_BYTES + 1
    for text in ("x" * size, "é" * (size // 2 + 1)):
        for prompt in (TextPrompt(text), ChatPrompt(messages=[{"content": text}])):
            with pytest.raises(
                ContextLengthExceeded, match="at least 11 tokens; this model takes at most 10"
            ) as caught:
                reader.read(prompt, limit_tokens=10)
            assert (caught.value.prompt_tokens, caught.value.limit_tokens) == (11, 10)
            assert caught.value.param == ("prompt" if isinstance(prompt, TextPrompt) else "messages")
            assert caught.value.code == "context_length_exceeded"


def test_what_may_fit_is_counted_by_the_tokenizer(reader: PromptReader) -> None:
    assert len(reader.read(TextPrompt("aaaa" * 10), limit_tokens=6)) == 10, "the core compares counts"
    tight = ChatPrompt(messages=[{"content": "a" * LONGEST_BYTES}] * 2)
    assert len(reader.read(tight, limit_tokens=2)) > 2, "special tokens have no bytes to count"
