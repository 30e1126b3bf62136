"""The loop: the one task that calls the core, and performs what it decides.

Everybody else posts events; posting never waits and works from ``finally`` blocks under cancellation.

Source: ARCHITECTURE.md "Time", "Lifetimes".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from math import inf

import trio

from calculet_trio.core.effects import Effect
from calculet_trio.core.events import Event, TimePassed
from calculet_trio.core.serving import ServingCore
from calculet_trio.core.snapshot import CoreSnapshot
from calculet_trio.shell.alarm import Alarm
from calculet_trio.shell.bell import Bell


class CoreLoop:
    """A mailbox before the core.

    The mailbox is bounded by its senders: a request has at most four events under way, a job one, a lane
    two, and requests, jobs and lanes have limits of their own.

    Args:
        core: the decisions.
        perform: carries out what the core made of an event that it heard of at a moment, without waiting.
    """

    def __init__(
        self,
        core: ServingCore,
        perform: Callable[[Event, Sequence[Effect], float], None],
    ) -> None:
        self._core = core
        self._perform = perform
        self._inbox: deque[Event] = deque()
        self._bell = Bell()
        self._alarm = Alarm(self.nudge)
        self.rounds = 0
        """How many rounds have been completed since the start: proof that decisions are being made."""

    def post(self, event: Event) -> None:
        """Tell the core; it will hear of it in the loop's next round. From the trio thread only."""
        self._inbox.append(event)
        self._bell.ring()

    def nudge(self) -> None:
        """Ask for a round, even if nothing has happened."""
        self.post(TimePassed())

    def snapshot(self) -> CoreSnapshot:
        """The core's counts as they are now; never waits."""
        return self._core.snapshot()

    async def run(self) -> None:
        """Take events in the order they were posted, for ever.

        **Cancellation**: atomic between two rounds; a round is never torn.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._alarm.run, name="alarm")
            while True:
                self._round(trio.current_time())
                self.rounds += 1
                wakeup_s = self._core.next_wakeup()
                self._alarm.set(inf if wakeup_s is None else wakeup_s)
                await self._bell.wait()

    def _round(self, now: float) -> None:
        while self._inbox:
            event = self._inbox.popleft()
            self._perform(event, self._core.handle(event, now), now)
