"""TwoModels: a daemon with an operator and two models for one alias; in real time, or in a simulator's.

Each life is `calculet_trio.shell.lifecycle.run` as it is. Clients are inside of the process, and so is the operator:
he is given the `Operations` that the admin socket would have.

Source: SPEC section 8, 13 (M4); ARCHITECTURE.md "The nursery tree".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

import attrs
import trio

from calculet_trio.conformance.clients import Errand, Heard, ask
from calculet_trio.conformance.trial import LifeFailed, leaves_of, live_once, nowhere, sentence_of
from calculet_trio.core.policy import Policy
from calculet_trio.errors import ConfigurationRefused
from calculet_trio.observe.metrics import ServiceMetrics
from calculet_trio.runtimes.port import Runtime
from calculet_trio.shell.blocking import BlockingRunner, ThreadRunner
from calculet_trio.shell.daemon import Daemon
from calculet_trio.shell.loading import ModelSource
from calculet_trio.shell.operations import Operations, Unheard
from calculet_trio.shell.service import Service

T = TypeVar("T")

FIRST: Final = 0
SECOND: Final = 1
_DRAIN_S: Final = 60.0
"""Longer than any reply here: a reply that a swap cuts off is one that was lost."""
_UNHEARD: Final = Unheard()


@attrs.frozen(kw_only=True)
class Site:
    """What clients and operator hold of the living daemon; models are named by their places.

    Args:
        service: for clients.
        operations: for the operator.
        alias: of the two models.
        runtime: asked for its memory alone.
    """

    service: Service
    operations: Operations
    alias: str
    runtime: Runtime

    async def load(self, place: int) -> Mapping[str, Any]:
        """The operator replaces what the alias means; returns what `Operations.load` does."""
        return await self.operations.load(self.alias, str(place), _UNHEARD)

    async def unload(self) -> None:
        """The operator takes the model off the device."""
        await self.operations.unload(self.alias, _UNHEARD)

    async def roll_back(self) -> None:
        """The operator goes back."""
        await self.operations.rollback(self.alias, _UNHEARD)

    async def ask(self, errand: Errand) -> Heard:
        """A client's request."""
        return await ask(self.service, self.alias, errand)

    def device_bytes(self) -> int:
        """Of the device's memory, in use now."""
        return self.runtime.memory().used_bytes


@attrs.frozen(kw_only=True)
class TwoModels:
    """A device and two models that take turns on it.

    Args:
        runtime: makes the device, not opened yet.
        sources: the models; both have the same alias, and each comes to the device as often as it is loaded.
        policy: the daemon's numbers.
        runner: how blocking calls run.
        run: runs an async function to its end: `trio.run`, or a simulator's.
    """

    runtime: Callable[[], Runtime]
    sources: tuple[ModelSource, ModelSource]
    policy: Policy
    runner: BlockingRunner = attrs.field(factory=ThreadRunner)
    run: Callable[..., Any] = trio.run

    def live(self, visit: Callable[[Site], Awaitable[T]], *, bound_s: float) -> T:
        """One life: the first model is loaded, ``visit`` called, the daemon drained.

        Returns:
            What ``visit`` returned.

        Raises:
            calculet_trio.conformance.trial.LifeFailed: an operation failed, the device was lost, or it did not end.
            calculet_trio.errors.ConfigurationRefused: these two models cannot be tried.
        """
        runtime = self.runtime()
        given: list[Operations] = []
        shelf = _Shelf(self.sources)

        async def admin(operations: Operations, stop: trio.Event, *, task_status: trio.TaskStatus[None]) -> None:
            given.append(operations)
            task_status.started()
            await stop.wait()

        async def visited(service: Service) -> T:
            [operations] = given
            return await visit(
                Site(service=service, operations=operations, alias=self.sources[FIRST].alias, runtime=runtime)
            )

        daemon = Daemon(
            runtime=runtime,
            source=shelf.find(self.sources[FIRST].alias, str(FIRST)),
            find=shelf.find,
            policy=self.policy,
            metrics=ServiceMetrics(),
            serve_http=nowhere,
            serve_admin=admin,
            drain_s=_DRAIN_S,
            runner=self.runner,
        )
        try:
            answer: T = self.run(live_once, daemon, visited, bound_s)
        except (Exception, BaseExceptionGroup) as error:
            for leaf in leaves_of(error):
                if isinstance(leaf, ConfigurationRefused):
                    raise leaf from error
            raise LifeFailed(sentence_of(error)) from error
        return answer


class _Shelf:
    """What a store does: finds by name, and remembers which model served before the present one."""

    def __init__(self, sources: tuple[ModelSource, ModelSource]) -> None:
        self._sources = sources
        self._served: list[int] = []

    def find(self, _alias: str, name: str | None) -> ModelSource:
        """See `calculet_trio.shell.model_manager.FindModel`."""
        place = self._served[0] if name is None else int(name)
        return attrs.evolve(self._sources[place], served=partial(self._remember, place))

    def _remember(self, place: int) -> None:
        self._served = [*self._served[-1:], place]
