"""One life of a daemon in this process: the real wiring, surface and threads, over a runtime that may fail."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import attrs
import trio

from calculet_trio.cli.wiring import wire
from calculet_trio.core.fault_kinds import FaultKind
from calculet_trio.core.lanes import LaneState
from calculet_trio.errors import DeviceLost
from calculet_trio.runtimes.faults import FaultPlan, FaultyRuntime
from calculet_trio.runtimes.pace import RealPace
from calculet_trio.settings.configuration import load
from calculet_trio.shell import lifecycle

START_S: Final = 120.0
IDLE_S: Final = 60.0


class Calm:
    """Nothing goes wrong."""

    def draw(self, kinds: tuple[FaultKind, ...]) -> FaultKind | None:
        """See `calculet_trio.runtimes.faults.FaultPlan`."""


class Armed:
    """A plan that begins when it is told to: a load is not to fail here.

    Args:
        plan: what then goes wrong.
    """

    def __init__(self, plan: FaultPlan) -> None:
        self._plan = plan
        self._turn = threading.Lock()  # the engines' threads and those of KV calls draw from one plan
        self.is_armed = False

    def draw(self, kinds: tuple[FaultKind, ...]) -> FaultKind | None:
        """See `calculet_trio.runtimes.faults.FaultPlan`."""
        with self._turn:
            return self._plan.draw(kinds) if self.is_armed else None


@attrs.define(eq=False)
class Life:
    """A daemon that serves.

    Attributes:
        house: its inside, which is looked at when it should be empty.
        runtime: what fails.
    """

    house: lifecycle._House
    runtime: FaultyRuntime
    ended: trio.Event = attrs.field(factory=trio.Event)

    @property
    def is_leaving(self) -> bool:
        return self.house._begun_stopping.is_set()

    @property
    def is_lost(self) -> bool:
        return self.house.is_lost

    def leftovers(self) -> str:
        """What is still held, for people; empty if nothing is. A lost lane is the next reset's to give back."""
        now = self.house._loop.snapshot()
        held = {
            "requests waiting": now.waiting_requests,
            "requests running": now.running_requests,
            "jobs in flight": now.jobs_in_flight,
            "lanes in use": now.lanes_in_use - now.lanes_by_state[LaneState.UNKNOWN],
            "streams": len(self.house._dispatcher),
            "text sides": len(self.house._samplers),
        }
        return ", ".join(f"{count} {what}" for what, count in held.items() if count)

    async def becomes_idle(self) -> str:
        """Wait until nothing is held; what still is after `IDLE_S`, or once it leaves."""
        with trio.move_on_after(IDLE_S):
            while self.leftovers() and not self.is_leaving:  # noqa: ASYNC110 - nothing tells us when
                await trio.sleep(0.01)
        return "" if self.is_leaving else self.leftovers()


@asynccontextmanager
async def living(configuration: Path, plan: FaultPlan, *, proves: bool = True) -> AsyncIterator[Life]:
    """A daemon around the block, ready when it begins; it ends by its own signals, or with the block.

    Args:
        configuration: the service's.
        plan: what goes wrong.
        proves: whether missing evidence is made at the start.
    """
    ready = trio.Event()
    daemon = wire(load(configuration, ()), on_ready=lambda _port: ready.set())
    runtime = FaultyRuntime(daemon.runtime, plan, RealPace())
    source = daemon.source if proves else attrs.evolve(daemon.source, prove=None)
    daemon = attrs.evolve(daemon, runtime=runtime, source=source)
    house = lifecycle._House(daemon, await trio.to_thread.run_sync(runtime.open))
    life = Life(house, runtime)

    async def live() -> None:
        try:
            await house.live()
        except* DeviceLost:
            pass  # a process would leave with 75, and be started anew
        finally:
            runtime.close()
            if source.released is not None:
                source.released()  # in a daemon's own process its end does so, and lets the history go
            if house.is_lost:
                daemon.history.close()
            else:
                house.custody.give_back()
            life.ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(live)
        with trio.fail_after(START_S):
            await ready.wait()
        yield life
        if not life.is_leaving:
            house._begin_drain(0.0)
        await life.ended.wait()
