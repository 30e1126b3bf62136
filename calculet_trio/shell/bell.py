"""Bell: one task waits until somebody has something for it.

Source: CONVENTIONS.md trap 14.
"""

from __future__ import annotations

from typing import Any

import trio


class Bell:
    """Rings for the task that waits, and for nobody otherwise; whoever waits first looks whether there is anything.

    One is used again and again: a `trio.Event` for each time costs three times as much. From the trio thread only.
    """

    def __init__(self) -> None:
        self._waiting: trio.lowlevel.Task | None = None

    def ring(self) -> None:
        """Wake the task that waits; without one, nothing."""
        if self._waiting is not None:
            trio.lowlevel.reschedule(self._waiting)
            self._waiting = None

    async def wait(self) -> None:
        """Wait for the next ring; one task at a time.

        **Cancellation**: at once.
        """
        assert self._waiting is None, "one task waits"
        self._waiting = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._abort)

    def _abort(self, _raise_cancel: Any) -> trio.lowlevel.Abort:
        self._waiting = None
        return trio.lowlevel.Abort.SUCCEEDED
