"""Alarm: something to be called at a moment that is put off again and again, and seldom comes.

Source: CONVENTIONS.md trap 14.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import trio


class Alarm:
    """Rings at a moment. Putting it off costs nothing, where a scope for each time would cost a tenth of a round.

    The deadline of trio's stays where it was and is looked at again when it comes; only an earlier one moves it.

    Args:
        ring: what to call, in the task of `run`.
    """

    def __init__(self, ring: Callable[[], object]) -> None:
        self._ring = ring
        self._moment_s = inf
        self._scope = trio.CancelScope()

    def set(self, moment_s: float) -> None:
        """Ring at ``moment_s``, monotonic, instead of when it was to; `math.inf`: not at all."""
        self._moment_s = moment_s
        if moment_s < self._scope.deadline:
            self._scope.deadline = moment_s

    async def run(self) -> None:
        """Ring whenever it is time, for ever.

        **Cancellation**: at once.
        """
        while True:
            with trio.CancelScope(deadline=self._moment_s) as self._scope:
                await trio.sleep_forever()
            if trio.current_time() >= self._moment_s:
                self._moment_s = inf
                self._ring()
