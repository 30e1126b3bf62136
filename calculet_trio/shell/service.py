"""What a surface may ask of the service: models, health, and one request at a time.

``api`` and ``admin`` hold a `Service` and nothing of the device. A request is opened with
``async with service.open(request) as handle``; leaving the block, for whatever reason, gives it up.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import attrs

from calculet_trio.core.device_reading import DeviceReading
from calculet_trio.core.effects import FinishReason
from calculet_trio.core.slots import Slot
from calculet_trio.text.params import Output, Prompt, ReplyParams


@attrs.frozen(kw_only=True)
class InferenceRequest:
    """A validated request.

    Args:
        alias: a served model's name.
        tenant: decided by the key alone.
        prompt: see `calculet_trio.text.params`.
        reply: how the reply is made and cut.
        max_new_tokens: tokens of reply at most; None for as many as the context holds.
        deadline_s: seconds from now after which it ends; None for the policy's default.
    """

    alias: str
    tenant: str
    prompt: Prompt
    reply: ReplyParams
    max_new_tokens: int | None = None
    deadline_s: float | None = None


@attrs.frozen
class Ending:
    """How a reply that succeeded ended."""

    reason: FinishReason
    truncated_by: str | None = None


@attrs.frozen
class Timings:
    """A request's times, as its handle measured them.

    Args:
        queue_s: from arrival to admission.
        prompt_s: from admission to the first token.
        predicted_s: from the first token to the last.
        predicted_tokens: tokens sampled, those that showed no text included.
    """

    queue_s: float
    prompt_s: float
    predicted_s: float
    predicted_tokens: int


class RequestHandle(Protocol):
    """An admitted request. Iterate it for `Output`; afterwards `ending` and `timings` are whole.

    Iterating raises `calculet_trio.errors.GenerationFailed` if the request is lost.

    **Cancellation**: safe at any point; the request is given up when its ``open`` block is left.
    """

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt, template included."""

    @property
    def cached_tokens(self) -> int:
        """Of these, those that were not prefilled again: an earlier reply had left them where they were needed."""

    @property
    def ending(self) -> Ending:
        """How it ended; only after the iteration is over."""

    @property
    def timings(self) -> Timings:
        """Times so far."""

    def __aiter__(self) -> AsyncIterator[Output]:
        """One `Output` per sampled token, and one more if anything was still held back at the end.

        An `Output` without text still stands for a sampled token; `Timings.predicted_tokens` counts them.
        """


@attrs.frozen
class ServedModel:
    """An alias that is Ready.

    Args:
        alias: its name in requests.
        loaded_unix_s: when it became Ready, for ``created``.
        context_tokens: its longest context.
        vocab_size: token ids are below this.
        meta: what ``/v1/models`` shows under ``meta`` (JSON values only).
    """

    alias: str
    loaded_unix_s: float
    context_tokens: int
    vocab_size: int
    meta: Mapping[str, Any]


@attrs.frozen
class Health:
    """Whether chat works; cached, never asks the device.

    Args:
        status: ``ok, loading, draining, recovering`` or ``failed``.
        reason: why it is not ok.
        notes: what an operator should know though chat works, a sentence each.
        engines: ``single``, ``ping_pong`` or ``degraded``.
        doubt: why new jobs keep to one engine, where they are degraded.
    """

    status: str
    reason: str | None = None
    notes: tuple[str, ...] = ()
    engines: str = "single"
    doubt: str | None = None


class Service(Protocol):
    """The surface's view of the daemon."""

    def health(self) -> Health:
        """At once, whatever the device does."""

    def models(self) -> tuple[ServedModel, ...]:
        """The aliases that may be asked for: Ready, being replaced, or waiting for their turn on the device."""

    def is_coming(self, alias: str) -> bool:
        """Whether a model is being loaded under an alias that has none yet."""

    def slots(self) -> tuple[Slot, ...]:
        """Every KV lane and what is in it, whosever it is."""

    def device(self) -> DeviceReading | None:
        """The device, as it last told of itself; None while it was not asked."""

    def open(self, request: InferenceRequest) -> AbstractAsyncContextManager[RequestHandle]:
        """Entering waits until the request is admitted.

        Raises:
            calculet_trio.errors.ModelNotFound: no such alias.
            calculet_trio.errors.InvalidRequest: the prompt cannot be served (template, ids, length).
            calculet_trio.errors.RequestRefused: full, loading, draining, expired in the queue.
            calculet_trio.errors.GenerationFailed: lost before it was admitted.

        **Cancellation**: atomic; a cancelled wait leaves nothing behind.
        """

    async def tokenize(self, alias: str, text: str, *, parse_special: bool) -> list[int]:
        """Token ids of ``text``, off the event loop."""

    async def detokenize(self, alias: str, tokens: list[int]) -> str:
        """Text of ``tokens``; bytes that form no character become U+FFFD."""

    async def apply_template(self, alias: str, prompt: Prompt) -> str:
        """The prompt as the model's chat template renders it."""
