"""Progress: whether the daemon is alive in truth, and not only its process.

It makes progress while its loop decides and everything that was begun is within its own bound. A slow step, a
long prefill and an empty queue are progress; a loop that takes no round and a call past its bound are not.

Source: SPEC section 9 ("Progress means ...").
"""

from __future__ import annotations

from collections.abc import Mapping

import trio

from calculet_trio.shell.executor import DeviceExecutor
from calculet_trio.shell.loop import CoreLoop
from calculet_trio.shell.model_manager import ModelManager

_LATENESS_S = 1.0
"""How long a bound may be past before the one who keeps it has had its turn: the loop may have just been busy."""


class Progress:
    """Looks at the rooms where the daemon could stand still.

    Args:
        loop: must have completed a round between two looks.
        executor: whose calls have bounds.
        models: whose load steps have bounds.
    """

    def __init__(self, loop: CoreLoop, executor: DeviceExecutor, models: ModelManager) -> None:
        self._loop = loop
        self._executor = executor
        self._models = models
        self._rounds_seen = -1

    def hindrance(self) -> str | None:
        """What stands still, or None. The loop is nudged, so that an idle one has something to show next time."""
        if self._loop.rounds == self._rounds_seen:
            return "the loop has not completed a round"  # its nudge is still in the mailbox: one is enough
        self._rounds_seen = self._loop.rounds
        self._loop.nudge()
        return self._past(self._executor.bounds_s)

    def overdue(self) -> str | None:
        """What should have ended of itself by now, or None; for health, which looks without touching anything.

        A job is late once it has outlived its own timeout, which grows with its length. It is given up only
        `calculet_trio.shell.executor.JobTimeout.overrun_s` later, and may still end well until then.
        """
        return self._past(self._executor.due_s)

    def _past(self, moments_s: Mapping[str, float]) -> str | None:
        moments_s = dict(moments_s)
        if self._models.step is not None:
            moments_s[self._models.step.doing] = self._models.step.bound_s
        past_s = trio.current_time() - _LATENESS_S
        late = [name for name, moment_s in moments_s.items() if moment_s < past_s]
        return f"past its bound: {', '.join(late)}" if late else None

    def outstanding_s(self) -> float:
        """How long at most until every device call under way has ended or is given up."""
        now = trio.current_time()
        return max((bound_s - now for bound_s in self._executor.bounds_s.values()), default=0.0)
