"""Watch: the observer of one daemon; it tells every checker what that one wants to know.

Source: SPEC section 11; `calculet_trio.shell.daemon.Observer`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from calculet_trio.core import effects as ef
from calculet_trio.core import events as ev
from calculet_trio.core.snapshot import CoreSnapshot
from calculet_trio.sim.checkers.violation import require
from calculet_trio.sim.determinism import Trace

Routes = Mapping[type, Callable[[Any, float], None]]

_AT_ONE_MOMENT_MAX: Final = 100_000
"""Events at one instant: a world in which more happen has stopped, for ever busy."""


class Checker(Protocol):
    """One set of books."""

    def routes(self) -> Routes:
        """The events and effects that it wants to hear of, each with the moment; it raises if it objects."""

    def conclude(self, now: float, *, device_lost: bool) -> None:
        """The daemon has ended."""


class Watch:
    """An observer that notes everything in a trace and tells the checkers.

    Args:
        checkers: told in this order.
        trace: of the world; None where nobody compares runs.
    """

    def __init__(self, checkers: Sequence[Checker], trace: Trace | None) -> None:
        self._checkers = checkers
        self._trace = trace
        self._snapshot: Callable[[], CoreSnapshot] | None = None
        self._handlers: dict[type, list[Callable[[Any, float], None]]] = {}
        for checker in checkers:
            for kind, handler in checker.routes().items():
                self._handlers.setdefault(kind, []).append(handler)
        self.steps = 0
        self._moment_s = -1.0
        self._at_this_moment = 0

    def watch(self, snapshot: Callable[[], CoreSnapshot], clock: Callable[[], float]) -> None:
        """See `calculet_trio.shell.daemon.Observer`."""
        self._snapshot = snapshot

    def watch_device(self, reading: object, memory: object) -> None:
        """No checker looks at these."""

    def snapshot(self) -> CoreSnapshot:
        """The core's own counts."""
        assert self._snapshot is not None, "a daemon shows its counts before it begins"
        return self._snapshot()

    def load_step(self, step: str, taken_s: float) -> None:
        """See `calculet_trio.shell.lifecycle.Observer`."""

    def heard(self, event: ev.Event, now: float) -> None:
        """See `calculet_trio.shell.daemon.Observer`."""
        if now > self._moment_s:
            self._moment_s, self._at_this_moment = now, 0
        self._at_this_moment += 1
        require(self._at_this_moment <= _AT_ONE_MOMENT_MAX, "the daemon is for ever busy, and time does not pass")
        self._tell(event, now)

    def saw(self, effect: ef.Effect, now: float) -> None:
        """See `calculet_trio.shell.daemon.Observer`."""
        self._tell(effect, now)

    def conclude(self, now: float, *, device_lost: bool) -> None:
        """The daemon has ended."""
        for checker in self._checkers:
            checker.conclude(now, device_lost=device_lost)

    def _tell(self, item: ev.Event | ef.Effect, now: float) -> None:
        self.steps += 1
        for handler in self._handlers.get(type(item), ()):
            handler(item, now)
        if self._trace is not None and not isinstance(item, ev.TimePassed):
            self._trace.note(now, type(item).__name__ + _ids_of(item))


def _ids_of(item: object) -> str:
    """What tells one event or effect from another of its kind."""
    match item:
        case ef.SubmitJob(engine, job):
            lanes = ",".join(f"{work.request}@{work.lane}" for work in job.lanes)
            return f" {engine.value} {job.job} {job.phase} {lanes}"
        case ev.JobFinished(job_id, _, results):
            return f" {job_id} {[result.token for result in results]}"
    names = ("request", "job", "lane")
    return "".join(f" {name}={getattr(item, name)}" for name in names if hasattr(item, name))
