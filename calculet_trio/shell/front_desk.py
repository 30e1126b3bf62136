"""FrontDesk: the `calculet_trio.shell.service.Service` that surfaces hold.

A request's way: it *arrives* and gets a waiting place, its prompt is prepared, it is *offered*, *admitted*,
and then its handler reads its stream. Whatever ends the handler ends the request.

Source: SPEC section 3, 4 (S §3, §4).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import trio

from calculet_trio.core.device_reading import DeviceReading
from calculet_trio.core.effects import Place
from calculet_trio.core.events import Arrived, Event, Offered
from calculet_trio.core.slots import Slot
from calculet_trio.core.snapshot import CoreSnapshot
from calculet_trio.errors import ModelNotFound, ServiceUnavailable
from calculet_trio.ids import GenerationId, RequestId
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
        self._models: dict[str, tuple[GenerationId | None, ServedModel]] = {}
        self._coming: set[str] = set(aliases)
        self._prompts: dict[GenerationId, PromptDesk] = {}

    def know(self, alias: str) -> None:
        """The alias is, or is being made, servable."""
        if alias not in self._aliases:
            self._aliases = (*self._aliases, alias)

    @contextmanager
    def loading(self, alias: str) -> Iterator[None]:
        """Around a load: whoever asks for the alias meanwhile is not told that there is no such model."""
        self.know(alias)
        self._coming.add(alias)
        try:
            yield
        finally:
            self._coming.discard(alias)

    def park(self, model: ServedModel) -> None:
        """The alias may be asked for, though its model is not on the device."""
        self._models.setdefault(model.alias, (None, model))
        self._coming.discard(model.alias)

    def publish(self, generation: GenerationId, model: ServedModel, prompts: PromptDesk) -> None:
        """From now on the alias means this model. Called before the core hears of it."""
        self._models[model.alias] = (generation, model)
        self._prompts[generation] = prompts

    def retire(self, generation: GenerationId) -> None:
        """Nobody is served by it any more; its text process goes. Its name stays, for those who wait for another."""
        prompts = self._prompts.pop(generation, None)
        if prompts is not None:
            prompts.close()

    def forget(self, alias: str) -> None:
        """The alias means nothing any more, unless something was published under it."""
        generation, _ = self._models.get(alias, (None, None))
        if generation not in self._prompts:
            self._models.pop(alias, None)

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
        for prompts in self._prompts.values():
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
        return tuple(model for _, model in self._models.values())

    def is_coming(self, alias: str) -> bool:
        """See `calculet_trio.shell.service.Service.is_coming`."""
        return alias in self._coming

    @asynccontextmanager
    async def open(self, request: InferenceRequest) -> AsyncIterator[RequestHandle]:
        """See `calculet_trio.shell.service.Service.open`."""
        if request.alias not in self._aliases:
            raise ModelNotFound(request.alias, served=self._aliases)
        deadline_s = None if request.deadline_s is None else trio.current_time() + request.deadline_s
        stream = self._dispatcher.open()
        try:
            self._post(Arrived(stream.request, request.tenant, request.alias, deadline_s))
            place: Place | None = await stream.placed()
            while place is not None:
                await self._offer(stream.request, place.generation, request)
                place = await stream.admitted()  # or placed again: another model has taken the alias meanwhile
            yield stream
        finally:
            self._dispatcher.leave(stream)

    async def _offer(self, request: RequestId, generation: GenerationId, asked: InferenceRequest) -> None:
        """Make the prompt that the generation understands, and offer it; one that has gone is offered nothing."""
        prompts = self._prompts.get(generation)
        if prompts is None:
            return
        try:
            prompt = await prompts.prepare(asked.prompt)
        except ServiceUnavailable:
            if generation in self._prompts:
                raise
            return  # its text process went with it; what becomes of those who wait for the alias, the core says
        self._samplers.join(request, ReplyStream(prompts.tokenizer, asked.reply, prompt))
        self._post(Offered(request, generation, prompt, asked.max_new_tokens))

    async def tokenize(self, alias: str, text: str, *, parse_special: bool) -> list[int]:
        """See `calculet_trio.shell.service.Service.tokenize`."""
        return await self._current(alias).tokenize(text, parse_special=parse_special)

    async def detokenize(self, alias: str, tokens: list[int]) -> str:
        """See `calculet_trio.shell.service.Service.detokenize`."""
        return await self._current(alias).detokenize(tokens)

    async def apply_template(self, alias: str, prompt: Prompt) -> str:
        """See `calculet_trio.shell.service.Service.apply_template`."""
        return await self._current(alias).render(prompt)

    def _current(self, alias: str) -> PromptDesk:
        if alias not in self._aliases:
            raise ModelNotFound(alias, served=self._aliases)
        if alias not in self._models:
            raise ServiceUnavailable("the model is being loaded", code="loading", retry_after_s=2.0)
        generation, _ = self._models[alias]
        prompts = None if generation is None else self._prompts.get(generation)
        if prompts is None:
            raise ServiceUnavailable("the model is not on the device now", code="loading", retry_after_s=2.0)
        return prompts
