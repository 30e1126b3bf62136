"""PromptDesk: makes token ids of what clients send, off the event loop and within bounds.

Source: SPEC section 3; API.md "Parameters" (bounds before tokenizing).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

import trio

from calculet_trio.errors import InvalidRequest
from calculet_trio.shell.blocking import BlockingRunner
from calculet_trio.text.params import ChatPrompt, Prompt, TextPrompt, TokenPrompt
from calculet_trio.text.tokenizer import Segment, Tokenizer

T = TypeVar("T")


class ChatTemplate(Protocol):
    """Renders conversations; `calculet_trio.text.template.TemplateWorker` is the real one."""

    def render(self, prompt: ChatPrompt) -> list[Segment]:
        """Text and special tokens in order. Blocks, within bounds of its own.

        Raises:
            calculet_trio.errors.InvalidRequest: the template refuses the conversation.
        """

    def close(self) -> None:
        """Let its process go."""


class PromptDesk:
    """One model's tokenizer and template, with a bound on how many prompts are prepared at once.

    Args:
        tokenizer: the model's.
        template: the model's chat template; None where the package has none.
        context_tokens: prompts of more text bytes than so many tokens can stand for are refused unseen.
        runner: how blocking calls run.
        places: prompts prepared at the same time; threads, so a long text never stops the event loop.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        *,
        context_tokens: int,
        runner: BlockingRunner,
        places: int = 2,
    ) -> None:
        self.tokenizer = tokenizer
        self._template = template
        self._text_bytes_max = tokenizer.text_bytes_limit(context_tokens)
        self._context_tokens = context_tokens
        self._runner = runner
        self._limiter = trio.CapacityLimiter(places)

    async def prepare(self, prompt: Prompt) -> Sequence[int]:
        """Token ids of a prompt, at least one.

        Raises:
            calculet_trio.errors.InvalidRequest: too long for any context, refused by the template, ids
                outside the vocabulary, or empty for a model without a BOS token.

        **Cancellation**: at once; the thread's result is thrown away.
        """
        tokens: Sequence[int]
        match prompt:
            case TokenPrompt(ids):
                tokens = self._checked(ids)
            case TextPrompt(text):
                self._check_bytes(text, "prompt")
                tokens = await self._off_loop(partial(self.tokenizer.encode_prompt, [Segment(text)]))
            case ChatPrompt():
                for index, message in enumerate(prompt.messages):
                    self._check_bytes(str(message.get("content") or ""), f"messages[{index}].content")
                tokens = await self._off_loop(lambda: self.tokenizer.encode_prompt(self._render(prompt)))
        if not tokens and self.tokenizer.special.bos is not None:
            return (self.tokenizer.special.bos,)
        if not tokens:
            raise InvalidRequest("the prompt is empty, and this model has no token to begin from", param="prompt")
        return tokens

    async def tokenize(self, text: str, *, parse_special: bool) -> list[int]:
        """Ids of a text of any length a request body can have."""
        return await self._off_loop(partial(self.tokenizer.encode, text, parse_special=parse_special))

    async def detokenize(self, tokens: Sequence[int]) -> str:
        """Text of ids; bytes that form no character become U+FFFD."""
        checked = self._checked(tuple(tokens), param="tokens")
        return await self._off_loop(partial(self.tokenizer.decode, checked))

    async def render(self, prompt: Prompt) -> str:
        """The prompt's text, special tokens as their literals."""
        match prompt:
            case ChatPrompt():
                return "".join(segment.text for segment in await self._off_loop(partial(self._render, prompt)))
            case TextPrompt(text):
                return text
            case TokenPrompt(ids):
                return await self.detokenize(ids)

    def close(self) -> None:
        """End the template's process."""
        if self._template is not None:
            self._template.close()

    def _render(self, prompt: ChatPrompt) -> list[Segment]:
        if self._template is None:
            raise InvalidRequest("this model's package has no chat template; use /v1/completions", param="messages")
        return self._template.render(prompt)

    def _checked(self, ids: Sequence[int], *, param: str = "prompt") -> Sequence[int]:
        vocab_size = self.tokenizer.vocab_size
        for index, token in enumerate(ids):
            if not 0 <= token < vocab_size:
                raise InvalidRequest(
                    f"{param}[{index}] is {token}; token ids of this model are 0 to {vocab_size - 1}", param=param
                )
        return ids

    def _check_bytes(self, text: str, param: str) -> None:
        """Refuse what cannot fit before anybody tokenizes it. A character is at least one byte."""
        if len(text) > self._text_bytes_max:
            raise InvalidRequest(
                f"{param} has {len(text)} characters; a context of {self._context_tokens} tokens "
                f"holds at most {self._text_bytes_max} bytes",
                param=param,
                code="context_length_exceeded",
            )

    async def _off_loop(self, call: Callable[[], T]) -> T:
        return await self._runner.run(call, self._limiter)
