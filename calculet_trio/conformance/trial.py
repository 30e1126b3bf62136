"""Trial: the production daemon on a device that stays configured, with clients inside the process.

Each life of the daemon is `calculet_trio.shell.lifecycle.run` as it is, with threads and in real time; only its
surface is ours: a function that is given the service. A gate compares lives of different policies without loading
the model for each.

Source: SPEC section 13; ARCHITECTURE.md "The nursery tree".
"""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar

import attrs
import trio

from calculet_trio.core.jobs import EngineId, Job
from calculet_trio.core.policy import Policy
from calculet_trio.errors import CalculetError, DeviceLost
from calculet_trio.ids import GenerationId
from calculet_trio.observe.metrics import ServiceMetrics
from calculet_trio.runtimes.port import (
    DeviceInfo,
    Finished,
    GoldenResult,
    ModelDescription,
    NotSubmitted,
    Runtime,
    Submitted,
    Ticket,
    Unknown,
)
from calculet_trio.shell.daemon import Daemon, Observer
from calculet_trio.shell.executor import JobTimeout
from calculet_trio.shell.lifecycle import run
from calculet_trio.shell.loading import ModelSource, ModelText
from calculet_trio.shell.service import Service

T = TypeVar("T")

_BOUND_S: Final = 900.0
"""Of a life that has nothing long to do."""
_DRAIN_S: Final = 5.0


class LifeFailed(Exception):
    """A daemon did not live to its end; the sentence says what it died of."""


class _Kept:
    """A runtime that is opened and configured once, for many daemons; whatever computes goes straight to it."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._device: DeviceInfo | None = None
        self._description: ModelDescription | None = None
        self._golden: GoldenResult | None = None
        self._unwaited: dict[EngineId, Ticket] = {}
        self.can_allocate = runtime.can_allocate
        self.allocate = runtime.allocate
        self.release = runtime.release
        self.remove_tail = runtime.remove_tail
        self.memory = runtime.memory
        self.status = runtime.status

    def open(self) -> DeviceInfo:
        if self._device is None:
            self._device = self._runtime.open()
        return self._device

    def configure(self, generation: GenerationId, package: Path) -> None:
        if self._description is None:
            self._runtime.configure(generation, package)
            self._runtime.warm_up(generation)
            self._golden = self._runtime.golden(generation)
            self._description = self._runtime.inspect(generation)

    def submit(self, engine: EngineId, job: Job) -> Submitted | NotSubmitted:
        taken = self._runtime.submit(engine, job)
        if isinstance(taken, Submitted):
            self._unwaited[engine] = taken.ticket
        return taken

    def wait(self, engine: EngineId, ticket: Ticket, timeout_s: float) -> Finished | Unknown:
        self._unwaited.pop(engine, None)
        return self._runtime.wait(engine, ticket, timeout_s)

    def inspect(self, generation: GenerationId) -> ModelDescription:
        assert self._description is not None, "configured before"
        return self._description

    def warm_up(self, generation: GenerationId) -> None:
        """Done when it was configured."""

    def golden(self, generation: GenerationId) -> GoldenResult:
        assert self._golden is not None, "configured before"
        return self._golden

    def unload(self, generation: GenerationId) -> bool:
        self._description = None
        return self._runtime.unload(generation)

    def reset_configuration(self) -> bool:
        self._come_to_rest()
        self._description = None
        return self._runtime.reset_configuration()

    def close(self) -> None:
        """It is kept."""

    def abandon(self) -> None:
        """Close it for real: the next life begins as a fresh process would."""
        self._come_to_rest()
        if self._device is not None:
            self._runtime.close()
        self._device = self._description = None

    def _come_to_rest(self) -> None:
        """A provoked fault keeps back a job's outcome: a board with one that nobody waits for is not given back."""
        while self._unwaited:
            engine, ticket = self._unwaited.popitem()
            self._runtime.wait(engine, ticket, _BOUND_S)


class Trial:
    """``with Trial(…) as trial``: a device and a model, for any number of lives.

    Args:
        runtime: not opened yet.
        source: its model; verified and opened once.
    """

    def __init__(self, runtime: Runtime, source: ModelSource) -> None:
        self._kept = _Kept(runtime)
        self._source = source
        self._text: ModelText | None = None

    def __enter__(self) -> Trial:
        self._source.verify()
        text = self._source.open_text()
        if text.template is not None:
            text.template.close()  # clients here send token ids
        self._text = ModelText(text.tokenizer, None)
        return self

    def __exit__(self, *_exception: object) -> None:
        self._kept.abandon()

    @property
    def alias(self) -> str:
        return self._source.alias

    def device(self) -> DeviceInfo:
        """What it runs on."""
        return self._kept.open()

    def description(self) -> ModelDescription:
        """The model, inspected."""
        self._kept.open()
        self._kept.configure(GenerationId(1), self._source.package)
        return self._kept.inspect(GenerationId(1))

    def memory_bytes(self) -> int:
        """Of the device, in use now."""
        return self._kept.memory().used_bytes

    def begin_anew(self) -> None:
        """Give the device back: the next life opens and configures it, and nothing of the last one is left."""
        self._kept.abandon()

    def live(
        self,
        policy: Policy,
        visit: Callable[[Service], Awaitable[T]],
        *,
        spoil: Callable[[Runtime], Runtime] = lambda runtime: runtime,
        metrics: Observer | None = None,
        job_timeout: JobTimeout | None = None,
        bound_s: float = _BOUND_S,
    ) -> T:
        """One daemon: loaded, visited, drained.

        Args:
            policy: its numbers.
            visit: called when chat works; when it returns, the daemon is told to end.
            spoil: puts something between the daemon and the device.
            metrics: told of everything; None for the production metrics.
            job_timeout: the bound of a job.
            bound_s: the life may take so long.

        Returns:
            What ``visit`` returned.

        Raises:
            LifeFailed: the daemon lost its device, ended by an error, or did not end.
        """
        daemon = Daemon(
            runtime=spoil(self._kept),
            source=ModelSource(
                alias=self._source.alias,
                package=self._source.package,
                verify=lambda: None,
                open_text=self._kept_text,
                meta=self._source.meta,
                shape=self._source.shape,
            ),
            policy=policy,
            metrics=ServiceMetrics() if metrics is None else metrics,
            serve_http=nowhere,
            drain_s=_DRAIN_S,
            job_timeout=JobTimeout() if job_timeout is None else job_timeout,
        )
        try:
            return trio.run(live_once, daemon, visit, bound_s)
        except (Exception, BaseExceptionGroup) as error:
            self._kept.abandon()
            raise LifeFailed(sentence_of(error)) from error

    def _kept_text(self) -> ModelText:
        assert self._text is not None, "inside the with block"
        return self._text


async def live_once(daemon: Daemon, visit: Callable[[Service], Awaitable[T]], bound_s: float) -> T:
    """One life of a daemon whose surface is ``visit``; it drains when that returns, which is answered.

    **Cancellation**: drains jobs that were submitted.
    """
    ready = trio.Event()
    send_signal, signals = trio.open_memory_channel[int](1)
    said: list[T] = []

    async def surface(service: Service, stop: trio.Event, *, task_status: trio.TaskStatus[int]) -> None:
        task_status.started(0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_visit_when_ready, service)
            await stop.wait()
            if not said:
                nursery.cancel_scope.cancel()

    async def _visit_when_ready(service: Service) -> None:
        await ready.wait()
        said.append(await visit(service))
        send_signal.send_nowait(signal.SIGTERM)

    with trio.fail_after(bound_s):
        await run(
            attrs.evolve(daemon, serve_http=surface, on_ready=lambda _port: ready.set()),
            signals=signals,
        )
    [answer] = said
    return answer


async def nowhere(service: Service, stop: trio.Event, *, task_status: trio.TaskStatus[int]) -> None:
    """Replaced, in `live_once`, by a surface that knows when the model is ready."""
    task_status.started(0)


def sentence_of(error: BaseException) -> str:
    """What a life died of; raises ``error`` where nothing in it is for people."""
    leaves = leaves_of(error)
    for kind in (DeviceLost, CalculetError, Exception):
        for leaf in leaves:
            if isinstance(leaf, kind):
                return f"{type(leaf).__name__}: {leaf}"
    raise error


def leaves_of(error: BaseException) -> list[BaseException]:
    """The errors that a group, or one of its groups, is made of."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in leaves_of(each)]
    return [error]
