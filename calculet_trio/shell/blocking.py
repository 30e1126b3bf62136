"""Where blocking calls run: on threads of the real world, or (in a simulation) in virtual time.

Source: ARCHITECTURE.md "Time"; CONVENTIONS.md traps 7, 9, 10, 14.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import trio

T = TypeVar("T")


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


class ThreadRunner:
    """Worker threads; a round trip costs about 150 µs."""

    async def run(self, call: Callable[[], T], limiter: trio.CapacityLimiter) -> T:
        """See `BlockingRunner.run`."""
        return await trio.to_thread.run_sync(call, limiter=limiter, abandon_on_cancel=True)

    async def run_whole(self, call: Callable[[], T], limiter: trio.CapacityLimiter) -> T:
        """See `BlockingRunner.run_whole`."""
        return await trio.to_thread.run_sync(call, limiter=limiter)
