"""Where blocking calls run: on threads of the real world, or (in a simulation) in virtual time.

Source: ARCHITECTURE.md "Time"; CONVENTIONS.md traps 7, 9, 10, 14.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, Protocol, TypeVar

import trio

T = TypeVar("T")

_HAND_OVER_S: Final = 0.0005
"""So long at most the trio thread stands still for a thread that it has woken, which takes a tenth of it."""


class Line(Protocol):
    """Calls one after another in a worker of their own, which stays and waits for the next.

    So a call begins when it is put here, and not when a task gets its turn: with many streams to be written, turns
    come late. At most one call is out at a time.
    """

    def put(self, call: Callable[[], Any]) -> None:
        """Begin the call. After `close` it is not begun at all.

        The trio thread waits for a moment for a worker that it wakes; nobody else waits for anything.
        """

    def close(self) -> None:
        """No further call is begun; `run` returns when the one that is out has ended."""

    async def run(self, deliver: Callable[[Any], None]) -> None:
        """Hand each call's answer to ``deliver``, until closed. What either raises, this raises.

        ``deliver`` is called in the worker, like the call, and may put the next one there: that begins without a hop.

        **Cancellation**: may lose the call that is out: its thread is left behind, and its outcome goes nowhere.
        """


class BlockingRunner(Protocol):
    """Runs one blocking call to its end."""

    async def run(self, call: Callable[[], T], limiter: trio.CapacityLimiter) -> T:
        """Run ``call`` while ``limiter`` has room.

        **Cancellation**: may lose the call: its thread is left behind, and its outcome goes nowhere. Hence for
        device calls `calculet_trio.shell.drain` alone calls this, where nothing cancels but the bound past which
        the outcome is Unknown anyway. ``limiter`` stays taken until the thread returns.
        """

    async def run_whole(self, call: Callable[[], T], limiter: trio.CapacityLimiter) -> T:
        """The same for a call whose outcome somebody must take care of: a process, an opened device.

        **Cancellation**: atomic. It wins before the call begins, or waits for its end.
        """

    def line(self) -> Line:
        """A worker for calls that follow one another closely."""


class ThreadRunner:
    """Worker threads; a round trip costs about 150 µs."""

    async def run(self, call: Callable[[], T], limiter: trio.CapacityLimiter) -> T:
        """See `BlockingRunner.run`."""
        return await trio.to_thread.run_sync(call, limiter=limiter, abandon_on_cancel=True)

    async def run_whole(self, call: Callable[[], T], limiter: trio.CapacityLimiter) -> T:
        """See `BlockingRunner.run_whole`."""
        return await trio.to_thread.run_sync(call, limiter=limiter)

    def line(self) -> Line:
        """See `BlockingRunner.line`."""
        return _ThreadLine()


class _ThreadLine:
    """A thread of trio's, under a limiter of one. There is no hop for a call: a queue's lock wakes the thread.

    Waking it is not enough: the trio thread would go on with the interpreter's lock, and when the other has got it
    somebody else has the processor. So it hands the lock over, and goes on when the call is begun. Another worker does
    not: it is about to wait for a device, without the lock.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], Any], threading.Lock] | None] = SimpleQueue()
        self._is_closed = False
        self._limiter = trio.CapacityLimiter(1)
        self._home = threading.get_ident()
        self._is_waiting = False

    def put(self, call: Callable[[], Any]) -> None:
        if not self._is_closed:
            taken = threading.Lock()
            taken.acquire()
            is_waiting = self._is_waiting  # else it comes to the call in its own time: before that there is no waiting
            self._calls.put((call, taken))
            if is_waiting and threading.get_ident() == self._home:
                taken.acquire(timeout=_HAND_OVER_S)

    def close(self) -> None:
        self._is_closed = True
        self._calls.put(None)

    async def run(self, deliver: Callable[[Any], None]) -> None:
        work = partial(self._work, deliver)
        await trio.to_thread.run_sync(work, limiter=self._limiter, abandon_on_cancel=True)

    def _work(self, deliver: Callable[[Any], None]) -> None:
        while True:
            self._is_waiting = True
            item = self._calls.get()
            self._is_waiting = False
            if item is None:
                return
            call, taken = item
            taken.release()
            deliver(call())
