"""A real, small `Service` in one process: replies are scripted, tokens can be gated, everything is counted."""

from __future__ import annotations

import itertools
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import attrs
import trio

from calculet_trio.core.device_reading import DeviceReading
from calculet_trio.core.effects import FinishReason
from calculet_trio.core.slots import Slot
from calculet_trio.errors import CalculetError
from calculet_trio.shell.service import Ending, Health, InferenceRequest, ServedModel, Timings
from calculet_trio.text.params import Output, Prompt, TokenLogprob, TopLogprob

MODEL = ServedModel(alias="m", loaded_unix_s=1.7e9, context_tokens=2048, vocab_size=1000, meta={"lanes": 16})


@attrs.define
class Script:
    """What one request is given.

    Args:
        outputs: in order; an exception among them is raised there.
        reason: how it ends.
        gate: awaited before each output; None lets all pass.
    """

    outputs: Sequence[Output | Exception]
    reason: FinishReason = FinishReason.STOP
    gate: trio.MemoryReceiveChannel[None] | None = None


def said(*texts: str) -> Script:
    return Script([Output(text) for text in texts])


def with_logprobs(text: str, logprob: float = -0.5, top: Sequence[float] = ()) -> Output:
    entry = TokenLogprob(
        7, text.encode(), logprob, tuple(TopLogprob(i, f"t{i}".encode(), lp) for i, lp in enumerate(top))
    )
    return Output(text, (entry,))


class FakeHandle:
    def __init__(self, script: Script, service: FakeService) -> None:
        self._script = script
        self._service = service
        self._tokens = 0
        self.prompt_tokens = 5
        self.cached_tokens = service.cached_tokens
        self.is_being_read = False

    @property
    def ending(self) -> Ending:
        return Ending(self._script.reason)

    @property
    def timings(self) -> Timings:
        return Timings(queue_s=0.001, prompt_s=0.002, predicted_s=0.003, predicted_tokens=self._tokens)

    async def __aiter__(self) -> AsyncIterator[Output]:
        self.is_being_read = True
        try:
            for output in self._script.outputs:
                if self._script.gate is not None:
                    await self._script.gate.receive()
                await trio.lowlevel.checkpoint()
                if isinstance(output, Exception):
                    raise output
                self._tokens += 1
                self._service.tokens_run += 1
                yield output
        finally:
            self.is_being_read = False


class FakeService:
    """See `calculet_trio.shell.service.Service`."""

    def __init__(self) -> None:
        self.script: Callable[[InferenceRequest], Script] = lambda request: said("Hello", " world")
        self.refusal: CalculetError | None = None
        self.admission: trio.Event | None = None
        self.status = Health("ok")
        self.lanes: tuple[Slot, ...] = ()
        self.reading: DeviceReading | None = None
        self.served: tuple[ServedModel, ...] = (MODEL,)
        self.cached_tokens = 0
        self.coming: frozenset[str] = frozenset()
        self.requests: list[InferenceRequest] = []
        self.active = 0
        self.tokens_run = 0
        self.changed = trio.Event()

    def health(self) -> Health:
        return self.status

    def models(self) -> tuple[ServedModel, ...]:
        return self.served

    def is_coming(self, alias: str) -> bool:
        return alias in self.coming

    def slots(self) -> tuple[Slot, ...]:
        return self.lanes

    def device(self) -> DeviceReading | None:
        return self.reading

    @asynccontextmanager
    async def open(self, request: InferenceRequest) -> AsyncIterator[FakeHandle]:
        self.requests.append(request)
        self._count(+1)
        try:
            if self.admission is not None:
                await self.admission.wait()
            if self.refusal is not None:
                raise self.refusal
            handle = FakeHandle(self.script(request), self)
            try:
                yield handle
            finally:
                assert not handle.is_being_read, "an iterator was left to the garbage collector"
        finally:
            self._count(-1)

    def _count(self, step: int) -> None:
        self.active += step
        self.changed.set()
        self.changed = trio.Event()

    async def until_active(self, number: int) -> None:
        """Wait until so many requests are held; bounded, so that a leak fails."""
        with trio.fail_after(10):
            while self.active != number:
                await self.changed.wait()

    async def tokenize(self, alias: str, text: str, *, parse_special: bool) -> list[int]:
        await trio.lowlevel.checkpoint()
        return [ord(c) % 1000 for c in text]

    async def detokenize(self, alias: str, tokens: list[int]) -> str:
        await trio.lowlevel.checkpoint()
        return "".join(map(chr, tokens))

    async def apply_template(self, alias: str, prompt: Prompt) -> str:
        await trio.lowlevel.checkpoint()
        return "".join(f"<{m['role']}>{m['content']}" for m in prompt.messages)


def gated(*texts: str) -> tuple[Script, trio.MemorySendChannel[None]]:
    """A script of which each token waits for one ``send_nowait(None)``."""
    opener, gate = trio.open_memory_channel[None](math.inf)
    return Script([Output(text) for text in texts], gate=gate), opener


def endless(text: str = "x") -> Script:
    return Script(list(itertools.repeat(Output(text), 100_000)))
