"""Long operations as jobs: one at a time, followed line by line, cancelled by name, remembered for a while.

Source: API.md "Admin endpoints"; SPEC section 15 (a mutex for device operations).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from enum import Enum
from typing import Any, Final

import attrs
import structlog
import trio

from calculet_trio.errors import CalculetError, InvalidRequest, OperationRefused
from calculet_trio.shell.operations import Report

JOBS_KEPT: Final = 64
LINES_KEPT: Final = 500
"""Of each job: a load reports some twenty lines."""

Work = Callable[[Report], Awaitable[Mapping[str, Any]]]

_log = structlog.get_logger("admin")


class JobState(Enum):
    """How far a job is."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


@attrs.frozen
class Line:
    """One line of progress.

    Args:
        number: from 0 on, in the job.
        after_s: seconds since the job began.
    """

    number: int
    after_s: float
    text: str


@attrs.define(eq=False)
class AdminJob:
    """One long operation.

    Args:
        id: its name, in this process.
        what: the operation.
        subject: the alias it is about, or None.
    """

    id: str
    what: str
    subject: str | None
    began_unix_s: float = attrs.field(factory=time.time)
    state: JobState = JobState.RUNNING
    result: Mapping[str, Any] | None = None
    error: str | None = None
    hint: str | None = None
    lines: deque[Line] = attrs.field(factory=lambda: deque(maxlen=LINES_KEPT))
    _began_s: float = attrs.field(factory=trio.current_time)
    _ended_s: float | None = None
    _said: int = 0
    _is_past_return: bool = False
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    _news: trio.Event = attrs.field(factory=trio.Event)

    def past_return(self) -> None:
        """It cannot be cancelled any more."""
        self._is_past_return = True

    def __call__(self, line: str) -> None:
        """Add a line of progress; never waits."""
        self.lines.append(Line(self._said, round(trio.current_time() - self._began_s, 3), line))
        self._said += 1
        self._tell()

    def cancel(self) -> None:
        """Ask it to end; it does so between two steps.

        Raises:
            calculet_trio.errors.OperationRefused: it is past the point from which there is a way back.
        """
        if self.state is not JobState.RUNNING:
            return
        if self._is_past_return:
            raise OperationRefused(f"{self.id} is past its point of no return", hint="wait for its end")
        self("cancelled; ending what was begun")
        self._scope.cancel()

    async def run(self, work: Work) -> None:
        """Do the work and remember what became of it. Raises nothing but cancellation and defects.

        **Cancellation**: that of `work`.
        """
        try:
            with self._scope:
                self.result = await work(self)
                self.state = JobState.DONE
        except* CalculetError as group:
            error = _first(group)
            self.state, self.error, self.hint = JobState.FAILED, str(error), getattr(error, "hint", None)
        finally:
            if self.state is JobState.RUNNING:
                self.state = JobState.CANCELLED
            self._ended_s = trio.current_time()
            _log.info("operation_ended", job=self.id, what=self.what, state=self.state.value, error=self.error)
            self._tell()

    async def follow(self) -> AsyncIterator[Line]:
        """Its lines from the first that is kept to its last, as they come.

        **Cancellation**: safe at any point.
        """
        shown = -1
        while True:
            for line in [line for line in self.lines if line.number > shown]:
                shown = line.number
                yield line
            if self.state is not JobState.RUNNING:
                return
            if shown == self._said - 1:
                await self._news.wait()

    def as_object(self) -> dict[str, Any]:
        """What the endpoints say of it."""
        ended_s = trio.current_time() if self._ended_s is None else self._ended_s
        return {
            "job": self.id,
            "what": self.what,
            "alias": self.subject,
            "state": self.state.value,
            "began_unix_s": round(self.began_unix_s, 3),
            "took_s": round(ended_s - self._began_s, 3),
            "progress": [attrs.asdict(line) for line in self.lines],
            "result": self.result,
            "error": self.error,
            "hint": self.hint,
        }

    def _tell(self) -> None:
        self._news.set()
        self._news = trio.Event()


class JobDesk:
    """Begins long operations, one at a time.

    Args:
        nursery: where they run.
    """

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self.on_end: Callable[[AdminJob], Awaitable[None]] = _nobody
        self._jobs: dict[str, AdminJob] = {}
        self._begun = 0

    def begin(self, what: str, subject: str | None, work: Work) -> AdminJob:
        """Start it.

        Raises:
            calculet_trio.errors.OperationRefused: another one is under way; it is named.
        """
        running = next((job for job in self._jobs.values() if job.state is JobState.RUNNING), None)
        if running is not None:
            raise OperationRefused(
                f"{running.id} ({running.what} {running.subject or 'the device'}) is under way, "
                "and operations on the device take turns",
                hint=f"wait for it, or cancel it: calculet-trio jobs cancel {running.id}",
            )
        self._begun += 1
        job = AdminJob(f"op-{self._begun}", what, subject)
        self._jobs[job.id] = job
        while len(self._jobs) > JOBS_KEPT:
            del self._jobs[next(iter(self._jobs))]
        self._nursery.start_soon(self._see_through, job, work)
        return job

    def job(self, name: str) -> AdminJob:
        """The job of that name.

        Raises:
            calculet_trio.errors.InvalidRequest: there is none, or it was so long ago that it is forgotten.
        """
        found = self._jobs.get(name)
        if found is None:
            raise InvalidRequest(
                f"there is no job {name[:64]!r}; the last {JOBS_KEPT} are remembered", code="no_such_job"
            )
        return found

    async def _see_through(self, job: AdminJob, work: Work) -> None:
        await job.run(work)
        await self.on_end(job)

    def jobs(self) -> tuple[AdminJob, ...]:
        """Those that are remembered, the oldest first."""
        return tuple(self._jobs.values())


async def _nobody(_: AdminJob) -> None:
    """Nobody wants to know."""


def _first(group: BaseExceptionGroup[CalculetError]) -> CalculetError:
    inner = group.exceptions[0]
    return _first(inner) if isinstance(inner, BaseExceptionGroup) else inner
