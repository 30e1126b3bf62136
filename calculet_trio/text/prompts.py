"""Prompts into token ids: the one way from what a client sent to what the device reads."""

from __future__ import annotations

from collections.abc import Sequence

from calculet_trio.errors import ContextLengthExceeded, InvalidRequest
from calculet_trio.text.params import ChatPrompt, Prompt, TextPrompt, TokenPrompt
from calculet_trio.text.template import TemplateWorker
from calculet_trio.text.tokenizer import Segment, Tokenizer


class PromptReader:
    """Reads every kind of prompt for one model. Safe in any thread; calls block for template and tokenizer.

    Args:
        tokenizer: the model's.
        template: its chat template, or None if it has none.
    """

    def __init__(self, tokenizer: Tokenizer, template: TemplateWorker | None) -> None:
        self._tokenizer = tokenizer
        self._template = template

    def read(self, prompt: Prompt, *, limit_tokens: int) -> list[int]:
        """The prompt's token ids, at least one.

        An empty prompt is the beginning-of-text token, where the model has one.

        Args:
            prompt: contents are plain strings.
            limit_tokens: the longest prompt worth counting; text that cannot fit is not even tokenized.

        Raises:
            InvalidRequest: the template refused, an id is outside the vocabulary, nothing to begin with.
            ContextLengthExceeded: the text has too many bytes for ``limit_tokens``, whatever they are.
        """
        if isinstance(prompt, TokenPrompt):
            ids = self._checked(prompt.ids)
        else:
            param = "messages" if isinstance(prompt, ChatPrompt) else "prompt"
            # A character has a byte at least: the cheap look comes before the template, the exact one after.
            # (A template that leaves old messages out is not asked whether it would have made enough room.)
            self._require_room(_characters(prompt), limit_tokens, param=param)
            segments = self.segments(prompt)
            size_bytes = sum(
                len(segment.text.encode("utf-8", "replace")) for segment in segments if not segment.special
            )
            self._require_room(size_bytes, limit_tokens, param=param)
            ids = self._tokenizer.encode_prompt(segments)
        if ids:
            return ids
        bos = self._tokenizer.special.bos
        if bos is None:
            raise InvalidRequest("the prompt is empty, and this model has no token to begin with", param="prompt")
        return [bos]

    def segments(self, prompt: ChatPrompt | TextPrompt) -> list[Segment]:
        """The prompt as text and special tokens, before it is tokenized.

        Raises:
            InvalidRequest: the template refused, or the model has none.
        """
        if isinstance(prompt, TextPrompt):
            return [Segment(prompt.text)]
        if self._template is None:
            raise InvalidRequest("this model has no chat template; use /v1/completions", param="messages")
        return self._template.render(prompt)

    def _checked(self, ids: Sequence[int]) -> list[int]:
        vocab_size = self._tokenizer.vocab_size
        for index, token in enumerate(ids):
            if not 0 <= token < vocab_size:
                raise InvalidRequest(
                    f"prompt[{index}] is not a token of this model; ids are 0 to {vocab_size - 1}",
                    param=f"prompt[{index}]",
                )
        return list(ids)

    def _require_room(self, size_bytes: int, limit_tokens: int, *, param: str) -> None:
        if size_bytes > self._tokenizer.text_bytes_limit(limit_tokens):
            fewest_tokens = -(-size_bytes // self._tokenizer.longest_token_bytes)
            raise ContextLengthExceeded(
                prompt_tokens=fewest_tokens, limit_tokens=limit_tokens, param=param, at_least=True
            )


def _characters(prompt: ChatPrompt | TextPrompt) -> int:
    if isinstance(prompt, TextPrompt):
        return len(prompt.text)
    contents = (message.get("content") for message in prompt.messages)
    return sum(len(content) for content in contents if isinstance(content, str))
