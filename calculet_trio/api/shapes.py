"""The objects of OpenAI's replies: choices, chunks, usage; and llama-server's timings.

Source: OpenAI API reference; API.md "Conventions that clients rely on"; reports B11, B12.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any, Final

import attrs

from calculet_trio.api.choices import Ended, Piece
from calculet_trio.api.logprobs import chat_logprobs, completion_logprobs
from calculet_trio.api.schemas import ParsedRequest
from calculet_trio.shell.service import Timings
from calculet_trio.text.params import TokenLogprob


def timings_of(ended: Ended) -> dict[str, Any]:
    """The timings of one choice."""
    return _timings_object(ended.prompt_tokens, ended.cached_tokens, ended.timings, ended.ending.truncated_by)


def _timings_object(
    prompt_tokens: int, cached_tokens: int, timings: Timings, truncated_by: str | None
) -> dict[str, Any]:
    """llama-server's ``timings``, with the time in the queue; its ``prompt_n`` are the tokens that were prefilled."""
    prefilled_tokens = prompt_tokens - cached_tokens
    predicted_s = timings.predicted_s
    shown: dict[str, Any] = {
        "queue_ms": _ms(timings.queue_s),
        "cache_n": cached_tokens,
        "prompt_n": prefilled_tokens,
        "prompt_ms": _ms(timings.prompt_s),
        "prompt_per_second": _per_second(prefilled_tokens, timings.prompt_s),
        "predicted_n": timings.predicted_tokens,
        "predicted_ms": _ms(predicted_s),
        "predicted_per_second": _per_second(timings.predicted_tokens, predicted_s),
    }
    if truncated_by is not None:
        shown["truncated_by"] = truncated_by
    return shown


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)


def _per_second(tokens: int, seconds: float) -> float:
    return round(tokens / seconds, 3) if seconds > 0 else 0.0


def overall(ended: Sequence[Ended]) -> dict[str, Any]:
    """The timings of all choices together: their tokens added up, of their times the longest."""
    times = [one.timings for one in ended]
    together = Timings(
        queue_s=max(t.queue_s for t in times),
        prompt_s=max(t.prompt_s for t in times),
        predicted_s=max(t.predicted_s for t in times),
        predicted_tokens=sum(t.predicted_tokens for t in times),
    )
    truncated = next((one.ending.truncated_by for one in ended if one.ending.truncated_by), None)
    prompt_tokens = sum(one.prompt_tokens for one in ended)
    return _timings_object(prompt_tokens, sum(one.cached_tokens for one in ended), together, truncated)


def usage_object(ended: Sequence[Ended], *, prompts: int) -> dict[str, Any]:
    """OpenAI's ``usage``: every prompt counted once, whatever ``n`` is; every token that was sampled."""
    firsts = sorted(ended, key=lambda one: one.index)[:: len(ended) // prompts]
    prompt_tokens = sum(one.prompt_tokens for one in firsts)
    completion_tokens = sum(one.timings.predicted_tokens for one in ended)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(one.cached_tokens for one in firsts)},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


# ---- replies ----------------------------------------------------------------------------------------


@attrs.frozen
class ReplyShape:
    """How one endpoint shows replies: the same way whole and in pieces.

    Args:
        whole: ``object`` of a whole reply.
        chunk: ``object`` of a piece.
        id_prefix: how its ids begin.
        is_chat: messages and deltas, or plain text.
    """

    whole: str
    chunk: str
    id_prefix: str
    is_chat: bool


CHAT: Final = ReplyShape("chat.completion", "chat.completion.chunk", "chatcmpl-", True)
COMPLETION: Final = ReplyShape("text_completion", "text_completion", "cmpl-", False)


class Reply:
    """One reply as it is shown: its id, its choices, its chunks.

    Args:
        shape: the endpoint's.
        parsed: what was asked for.
    """

    def __init__(self, shape: ReplyShape, parsed: ParsedRequest) -> None:
        self._shape = shape
        self._parsed = parsed
        self._id = shape.id_prefix + secrets.token_hex(12)
        self._created = int(time.time())
        self._offsets = [0] * len(parsed.choices)

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._parsed.model.alias}

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        chunk = {**self._head(self._shape.chunk), "choices": choices}
        if self._parsed.include_usage:
            chunk["usage"] = None
        return chunk

    def opening(self, index: int) -> dict[str, Any] | None:
        """The first chunk of a choice, which says the role; plain completions have none."""
        if not self._shape.is_chat:
            return None
        delta = {"role": "assistant", "content": ""}
        return self._chunk([{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}])

    def piece(self, piece: Piece) -> dict[str, Any] | None:
        """The chunk of one output; None where it shows nothing."""
        output = piece.output
        if not output.text and not output.logprobs:
            return None
        choice: dict[str, Any] = {"index": piece.index}
        if self._shape.is_chat:
            choice["delta"] = {"content": output.text}
        else:
            choice["text"] = output.text
        choice["logprobs"] = self._logprobs(piece.index, output.logprobs, len(output.text))
        choice["finish_reason"] = None
        return self._chunk([choice])

    def finish(self, ended: Ended) -> dict[str, Any]:
        """The last chunk of a choice: why it ended, and what it took."""
        said: dict[str, Any] = {"delta": {}} if self._shape.is_chat else {"text": ""}
        choice = {"index": ended.index, **said, "logprobs": None, "finish_reason": ended.ending.reason.value}
        return {**self._chunk([choice]), "timings": timings_of(ended)}

    def usage(self, ended: Sequence[Ended]) -> dict[str, Any]:
        """The chunk of usage, after the last choice."""
        return {**self._chunk([]), "usage": usage_object(ended, prompts=self._parsed.prompts)}

    def complete(self, pieces: Sequence[Sequence[Piece]], ended: Sequence[Ended]) -> dict[str, Any]:
        """The whole reply.

        Args:
            pieces: by choice, in order.
            ended: one a choice, by index.
        """
        choices = []
        for one, said in zip(ended, pieces, strict=True):
            text = "".join(piece.output.text for piece in said)
            entries = [entry for piece in said for entry in piece.output.logprobs]
            choice: dict[str, Any] = {"index": one.index}
            if self._shape.is_chat:
                choice["message"] = {"role": "assistant", "content": text, "refusal": None}
            else:
                choice["text"] = text
            choice["logprobs"] = self._logprobs(one.index, entries, 0) if self._parsed.logprobs else None
            choice["finish_reason"] = one.ending.reason.value
            choices.append(choice)
        return {
            **self._head(self._shape.whole),
            "choices": choices,
            "usage": usage_object(ended, prompts=self._parsed.prompts),
            "timings": overall(ended),
        }

    def _logprobs(self, index: int, entries: Sequence[TokenLogprob], characters: int) -> dict[str, Any] | None:
        offset = self._offsets[index]
        self._offsets[index] += characters
        if not self._parsed.logprobs or (not entries and characters):
            return None
        if self._shape.is_chat:
            return chat_logprobs(entries)
        return completion_logprobs(entries, text_offset=offset)
