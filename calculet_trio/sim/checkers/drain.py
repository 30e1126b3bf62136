"""Once a drain has begun nobody comes in, and it ends in time.

Source: SPEC section 9 (S §14); ARCHITECTURE.md "Lifetimes: the nursery tree".
"""

from __future__ import annotations

from math import inf

from calculet_trio.core import effects as ef
from calculet_trio.core import events as ev
from calculet_trio.ids import RequestId
from calculet_trio.sim.checkers.violation import require
from calculet_trio.sim.checkers.watch import Routes


class DrainChecker:
    """One daemon's end.

    Args:
        farewell_s: how long after the drain's deadline a daemon may be there: its last job, and good-byes.
    """

    def __init__(self, *, farewell_s: float) -> None:
        self._farewell_s = farewell_s
        self._deadline_s = inf
        self._is_draining = False
        self._has_come: set[RequestId] = set()

    def routes(self) -> Routes:
        """See `calculet_trio.sim.checkers.watch.Checker`."""
        return {
            ev.DrainBegan: self._began,
            ef.Place: self._comes_in,
            ef.AllocateSequence: self._is_given_a_lane,
            ef.ContinueSequence: self._is_given_a_lane,
            ef.Admit: self._admitted,
            ef.SubmitJob: self._submitted,
        }

    def conclude(self, now: float, *, device_lost: bool) -> None:
        """It ended in time."""
        require(self._is_draining, "the daemon ended without a drain")
        late_s = now - self._deadline_s
        require(late_s <= self._farewell_s, f"the daemon ended {late_s:.1f} s after its drain was to be over")

    def _began(self, event: ev.DrainBegan, now: float) -> None:
        self._is_draining = True
        self._deadline_s = min(self._deadline_s, event.deadline_s)

    def _comes_in(self, effect: ef.Place | ef.AllocateSequence | ef.ContinueSequence | ef.Admit, now: float) -> None:
        require(not self._is_draining, "request {} comes in while the daemon drains", effect.request)

    def _admitted(self, effect: ef.Admit, now: float) -> None:
        self._comes_in(effect, now)
        self._has_come.add(effect.request)

    def _is_given_a_lane(self, effect: ef.AllocateSequence | ef.ContinueSequence, now: float) -> None:
        if effect.request not in self._has_come:  # else it is replayed after a reset: its stream is open
            self._comes_in(effect, now)

    def _submitted(self, effect: ef.SubmitJob, now: float) -> None:
        is_in_time = now < self._deadline_s
        require(is_in_time, "job {} is sent to the device after the drain was to be over", effect.job.job)
