"""Quiet: what a device must be shown to be before it is configured, where the process before left jobs on it.

Quiet means: it is well, has no job by its own count, and none of its counters moved between two looks. A device that
cannot count (``jobs`` of None, no counters) can only be asked whether it is well.

Source: SPEC section 9 ("after that restart the device must be shown quiet before it is configured").
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from calculet_trio.errors import DeviceLost, DeviceNotQuiet
from calculet_trio.runtimes.port import DeviceStatus

QUIET_S: Final = 30.0
"""How long a device may take to become quiet: several times a driver's usual DMA timeout."""
LOOK_EVERY_S: Final = 0.2
"""Between two looks: a device that works moves a counter in less (a decode step takes some 20 ms)."""


async def see_quiet(look: Callable[[], Awaitable[DeviceStatus]], *, within_s: float) -> None:
    """Return once the device is quiet.

    Args:
        look: asks the device; bounded, and raises `calculet_trio.errors.DeviceLost` where it does not answer.
        within_s: how long to wait for it.

    Raises:
        calculet_trio.errors.DeviceNotQuiet: it is not quiet by then; the message says what was seen last.

    **Cancellation**: between two looks.
    """
    deadline_s = trio.current_time() + within_s
    before: DeviceStatus | None = None
    looked = 0
    while True:
        try:
            now = await look()
        except DeviceLost as lost:
            raise DeviceNotQuiet("it does not answer") from lost
        looked += 1
        unrest = _at_work(now) or _moved(before, now)
        if unrest is None and before is not None:
            return
        if trio.current_time() >= deadline_s and looked > 1:
            raise DeviceNotQuiet(f"after {within_s:g} s {unrest or 'it was seen at rest only once'}")
        before = None if _at_work(now) else now
        await trio.sleep(LOOK_EVERY_S)


def _at_work(now: DeviceStatus) -> str | None:
    """What this look alone says against its being quiet; None if nothing does."""
    if not now.ok:
        return f"it says {now.word!r}"
    return f"it still has {now.jobs} {'job' if now.jobs == 1 else 'jobs'}" if now.jobs else None


def _moved(before: DeviceStatus | None, now: DeviceStatus) -> str | None:
    if before is None:
        return None
    moved = sorted(name for name, value in now.counters.items() if before.counters.get(name) != value)
    return f"its counters still move: {', '.join(moved)}" if moved else None
