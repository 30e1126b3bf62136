"""Prompts become token ids, off the loop and within bounds."""

from __future__ import annotations

import attrs
import pytest

from calculet_trio.errors import InvalidRequest
from calculet_trio.shell.blocking import ThreadRunner
from calculet_trio.shell.prompts import PromptDesk
from calculet_trio.text.byte_tokenizer import ByteTokenizer
from calculet_trio.text.params import ChatPrompt, TextPrompt, TokenPrompt


def desk(*, bos=None):
    tokenizer = ByteTokenizer()
    tokenizer.special = attrs.evolve(tokenizer.special, bos=bos)
    return PromptDesk(tokenizer, None, context_tokens=16, runner=ThreadRunner())


async def test_an_empty_prompt_begins_from_bos_where_the_model_has_one():
    """B21: also where the model does not want it before other text."""
    assert list(await desk(bos=256).prepare(TextPrompt(""))) == [256]
    assert list(await desk(bos=256).prepare(TextPrompt("a"))) == [97]
    with pytest.raises(InvalidRequest, match="empty"):
        await desk().prepare(TextPrompt(""))


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        (TextPrompt("x" * 17), "prompt"),
        (
            ChatPrompt(messages=[{"role": "user", "content": "a"}, {"role": "user", "content": "x" * 17}]),
            "messages[1].content",
        ),
        (TokenPrompt((1, 259)), "prompt"),
        (TokenPrompt((-1,)), "prompt"),
    ],
)
async def test_what_cannot_be_served_is_refused_by_its_field(prompt, param):
    with pytest.raises(InvalidRequest) as refused:
        await desk().prepare(prompt)
    assert refused.value.param == param


async def test_a_chat_needs_a_template():
    with pytest.raises(InvalidRequest, match="no chat template"):
        await desk().prepare(ChatPrompt(messages=[{"role": "user", "content": "a"}]))


async def test_bytes_that_form_no_character_are_shown_as_such():
    assert await desk().detokenize([0xF0, 0x9F, 97]) == "\ufffda"
