"""The loop: before the core, one at a time; and the one task that performs what the core decided.

Everybody posts events; posting never waits and works from ``finally`` blocks under cancellation. Who may not wait for
the loop's turn takes its own: an engine's thread, whose device stands still until the next job is decided, lays its
event before the core itself (`CoreLoop.decide`), with all that was posted before it. Jobs are begun by whoever decides
them; everything else is performed here, in the order in which it was decided.

Source: ARCHITECTURE.md "Time", "How a step follows a step".
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Final

import trio

from calculet_trio.core.effects import Effect, SubmitJob
from calculet_trio.core.events import Event, TimePassed
from calculet_trio.core.serving import ServingCore
from calculet_trio.core.slots import Slot
from calculet_trio.core.snapshot import CoreSnapshot
from calculet_trio.ids import RequestId
from calculet_trio.shell.alarm import Alarm
from calculet_trio.shell.bell import Bell

_LAG_S: Final = 0.005
"""A trio thread that takes longer than this to hear of a decision has more streams to write than it can."""


class CoreLoop:
    """A mailbox before the core.

    The mailbox is bounded by its senders: a request has at most four events under way, a job one, a lane
    two, and requests, jobs and lanes have limits of their own. What is decided and not performed is what engines
    decide while the trio thread takes `_LAG_S` to hear of it.

    Args:
        core: the decisions.
        begin: puts a job before its engine, in the thread and at the moment in which it is decided.
        perform: carries out the rest of what the core made of an event that it heard of at a moment, without waiting;
            in the trio thread.
    """

    def __init__(
        self,
        core: ServingCore,
        *,
        begin: Callable[[SubmitJob, float], None],
        perform: Callable[[Event, Sequence[Effect], float], None],
    ) -> None:
        self._core = core
        self._begin = begin
        self._perform = perform
        self._turn = threading.Lock()  # the core is one's at a time, for as long as a decision takes
        self._inbox: deque[Event] = deque()
        self._decided: deque[tuple[Event, Sequence[Effect], float]] = deque()
        self._bell = Bell()
        self._alarm = Alarm(self.nudge)
        self._clock = trio.lowlevel.current_clock()
        self._token = trio.lowlevel.current_trio_token()
        self._home = threading.get_ident()
        self._announced_s: float | None = None
        self._lag_s = 0.0
        self.rounds = 0
        """How many rounds have been completed since the start: proof that what is decided is performed."""

    def post(self, event: Event) -> None:
        """Tell the core; it will hear of it in the loop's next round. From the trio thread only."""
        self._inbox.append(event)
        self._bell.ring()

    def nudge(self) -> None:
        """Ask for a round, even if nothing has happened."""
        self.post(TimePassed())

    def decide(self, event: Event) -> None:
        """Tell the core now, after what was posted before, and begin the jobs that it decides. From any thread.

        What else it decides waits for `announce`. A loop that comes late is not run away from: it decides this itself
        in its next round, so that a device is never faster than the streams that it fills.
        """
        self._inbox.append(event)
        announced_s = self._announced_s  # and not heard of yet
        lag_s = 0.0 if announced_s is None else self._clock.current_time() - announced_s
        if max(lag_s, self._lag_s) <= _LAG_S:
            self._decide()

    def announce(self) -> None:
        """Have the trio thread do what is left of it; nothing, where nothing is."""
        if threading.get_ident() == self._home:
            self._bell.ring()
        elif self._decided or self._inbox:
            if self._announced_s is None:
                self._announced_s = self._clock.current_time()
            self._token.run_sync_soon(self._heed, idempotent=True)

    def _heed(self) -> None:
        announced_s, self._announced_s = self._announced_s, None
        if announced_s is not None:
            self._lag_s = self._clock.current_time() - announced_s
        self._bell.ring()

    def snapshot(self) -> CoreSnapshot:
        """The core's counts as they are now."""
        with self._turn:
            return self._core.snapshot()

    def slots(self) -> tuple[Slot, ...]:
        """See `calculet_trio.core.serving.ServingCore.slots`."""
        with self._turn:
            return self._core.slots()

    def prompts(self) -> Mapping[RequestId, Sequence[int]]:
        """See `calculet_trio.core.serving.ServingCore.prompts`."""
        with self._turn:
            return self._core.prompts()

    async def run(self) -> None:
        """Take events in the order they were posted, for ever.

        **Cancellation**: atomic between two rounds; a round is never torn.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._alarm.run, name="alarm")
            while True:
                self._round()
                self.rounds += 1
                with self._turn:
                    wakeup_s = self._core.next_wakeup()
                self._alarm.set(inf if wakeup_s is None else wakeup_s)
                if self._inbox or self._decided:
                    await trio.lowlevel.checkpoint()
                else:
                    await self._bell.wait()

    def _round(self) -> None:
        """What is there; what comes meanwhile, from here or from an engine's thread, is the next round's."""
        self._decide()
        for _ in range(len(self._decided)):
            self._perform(*self._decided.popleft())

    def _decide(self) -> None:
        with self._turn:
            while self._inbox:
                event = self._inbox.popleft()
                now = self._clock.current_time()
                effects = self._core.handle(event, now)
                for effect in effects:
                    if isinstance(effect, SubmitJob):
                        self._begin(effect, now)
                self._decided.append((event, effects, now))
