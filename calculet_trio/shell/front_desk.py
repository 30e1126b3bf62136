"""FrontDesk: the `calculet_trio.shell.service.Service` that surfaces hold.

A request's way: it *arrives* and gets a waiting place, its prompt is prepared, it is *offered*, *admitted*,
and then its handler reads its stream. Whatever ends the handler ends the request.

Source: SPEC section 3, 4 (S §3, §4).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from calculet_trio.core.device_reading import DeviceReading
from calculet_trio.core.events import Arrived, Event, Offered
from calculet_trio.core.slots import Slot
from calculet_trio.core.snapshot import CoreSnapshot
from calculet_trio.errors import ModelNotFound, ServiceUnavailable
from calculet_trio.shell.dispatcher import CompletionDispatcher
from calculet_trio.shell.prompts import PromptDesk
from calculet_trio.shell.sampler_pool import SamplerPool
from calculet_trio.shell.service import Health, InferenceRequest, RequestHandle, ServedModel
from calculet_trio.text.params import Prompt
from calculet_trio.text.reply import ReplyStream


class FrontDesk:
    """Takes requests in and gives handles out.

    Args:
        post: tells the core.
        snapshot: the core's counts, at once.
        dispatcher: owner of the streams.
        samplers: owner of the text sides.
        aliases: the names that are, or are being made, servable.
        overdue: what should have ended by now, or None; asked by every look at the health.
        notes: what an operator should know though chat works.
        slots: the core's lanes, at once.
        device: the device's last reading.
    """

    def __init__(
        self,
        *,
        post: Callable[[Event], None],
        snapshot: Callable[[], CoreSnapshot],
        dispatcher: CompletionDispatcher,
        samplers: SamplerPool,
        aliases: tuple[str, ...],
        overdue: Callable[[], str | None],
        notes: Callable[[], tuple[str, ...]],
        slots: Callable[[], tuple[Slot, ...]],
        device: Callable[[], DeviceReading | None],
    ) -> None:
        self._post = post
        self._snapshot = snapshot
        self._dispatcher = dispatcher
        self._samplers = samplers
        self._aliases = aliases
        self._overdue = overdue
        self._notes = notes
        self.slots = slots
        self.device = device
        self._models: dict[str, tuple[ServedModel, PromptDesk]] = {}

    def publish(self, model: ServedModel, prompts: PromptDesk) -> None:
        """From now on the alias means this model. Called before the core hears of it."""
        self._models[model.alias] = (model, prompts)

    @property
    def open_streams(self) -> int:
        """Streams of requests that have not ended."""
        return len(self._dispatcher)

    @property
    def text_sides(self) -> int:
        """Text sides that are held for requests."""
        return len(self._samplers)

    def close(self) -> None:
        """Let the models' text processes go."""
        for _, prompts in self._models.values():
            prompts.close()

    # ---- Service --------------------------------------------------------------------------------

    def health(self) -> Health:
        """See `calculet_trio.shell.service.Service.health`."""
        now = self._snapshot()
        status, mode = now.status, now.engine_mode
        overdue = self._overdue() if status.word == "ok" else None
        word, reason = (status.word, status.reason) if overdue is None else ("failed", overdue)
        return Health(word, reason, self._notes(), mode.word, None if mode.doubt is None else mode.doubt.value)

    def models(self) -> tuple[ServedModel, ...]:
        """See `calculet_trio.shell.service.Service.models`."""
        return tuple(model for model, _ in self._models.values())

    @asynccontextmanager
    async def open(self, request: InferenceRequest) -> AsyncIterator[RequestHandle]:
        """See `calculet_trio.shell.service.Service.open`."""
        if request.alias not in self._aliases:
            raise ModelNotFound(request.alias, served=self._aliases)
        deadline_s = None if request.deadline_s is None else trio.current_time() + request.deadline_s
        stream = self._dispatcher.open()
        try:
            self._post(Arrived(stream.request, request.tenant, request.alias, deadline_s))
            await stream.placed()
            prompts = self._prompts(request.alias)
            prompt = await prompts.prepare(request.prompt)
            self._samplers.join(stream.request, ReplyStream(prompts.tokenizer, request.reply, prompt))
            self._post(Offered(stream.request, prompt, request.max_new_tokens))
            await stream.admitted()
            yield stream
        finally:
            self._dispatcher.leave(stream)

    async def tokenize(self, alias: str, text: str, *, parse_special: bool) -> list[int]:
        """See `calculet_trio.shell.service.Service.tokenize`."""
        return await self._prompts(alias).tokenize(text, parse_special=parse_special)

    async def detokenize(self, alias: str, tokens: list[int]) -> str:
        """See `calculet_trio.shell.service.Service.detokenize`."""
        return await self._prompts(alias).detokenize(tokens)

    async def apply_template(self, alias: str, prompt: Prompt) -> str:
        """See `calculet_trio.shell.service.Service.apply_template`."""
        return await self._prompts(alias).render(prompt)

    def _prompts(self, alias: str) -> PromptDesk:
        if alias not in self._aliases:
            raise ModelNotFound(alias, served=self._aliases)
        if alias not in self._models:
            raise ServiceUnavailable("the model is being loaded", code="loading", retry_after_s=2.0)
        return self._models[alias][1]
