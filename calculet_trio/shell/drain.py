"""The one shield: a job is either not submitted, or drained; there is no third way.

Submission and wait stand together behind one shielded scope; cancellation wins before them, or not until they have
ended. `EngineLine` is the way of every job, `submit_and_drain` the synchronous baseline's. The bound on the wait is
the port's timeout, and its expiry is the value `calculet_trio.runtimes.port.Unknown`. A runtime that does not keep to
it is not waited for either: past a bound of the shell's own the outcome is the same `Unknown`, and the thread stays
behind, with all that it holds, for the rest of the process's life. Only `calculet_trio.shell.executor` imports this
module.

Source: SPEC section 9 (S §14); ARCHITECTURE.md "The one shield".
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any, Final, TypeVar

import attrs
import trio

from calculet_trio.core.events import FaultReason
from calculet_trio.core.jobs import EngineId, Job, PrefillJob
from calculet_trio.runtimes.port import Finished, NotSubmitted, Runtime, Unknown
from calculet_trio.shell.alarm import Alarm
from calculet_trio.shell.blocking import BlockingRunner

T = TypeVar("T")

_AGAIN_S: Final = 1.0
"""A bound that comes between two jobs, of which the next is not begun yet, is looked at again after so long."""
HURRIED_S: Final = 2.0
"""However much hurry there is, a call is given so long: one that the end of a drain meets is not stuck for that."""


class Bound:
    """The moment at which a call is taken for stuck; it may be brought forward while the call runs.

    Args:
        bound_s: seconds from now.
    """

    def __init__(self, bound_s: float) -> None:
        self._began_s = trio.current_time()
        self._scope = trio.CancelScope(shield=True, deadline=self._began_s + bound_s)

    def hurry(self, deadline_s: float) -> None:
        """Wait no longer than until ``deadline_s``, monotonic, or `HURRIED_S` from the beginning."""
        self._scope.deadline = min(self._scope.deadline, max(deadline_s, self._began_s + HURRIED_S))

    @property
    def scope(self) -> trio.CancelScope:
        """The one shield."""
        return self._scope


async def see_through(
    call: Callable[[], T], *, bound: Bound, runner: BlockingRunner, limiter: trio.CapacityLimiter
) -> T | Unknown:
    """Stay with one device call until it has ended, whatever is cancelled meanwhile.

    Args:
        call: blocks.
        bound: after which the call is taken for stuck and left behind. What its thread may still do is part
            of what nobody knows.
        runner: how blocking calls run.
        limiter: of one, and free: nobody may have to wait for it inside the shield.

    Returns:
        What ``call`` returned; `Unknown` if it did not in time.

    **Cancellation**: drains. It wins at the first checkpoint, or not until the call has ended.
    """
    await trio.lowlevel.checkpoint()
    with bound.scope:
        return await runner.run(call, limiter)
    return Unknown(FaultReason.STUCK_WAIT)


@attrs.define(eq=False)
class _Out:
    """The job that is out, and its bound; ``is_over`` is said once and never taken back, by its end or by its bound."""

    job: Job
    bound_s: float = inf
    is_over: bool = False


class EngineLine:
    """One engine's jobs, each begun in the moment it is decided, and drained.

    Args:
        runtime: the device.
        engine: which of its engines.
        read_out: called with a finished job, its outcome and the seconds it took, in the engine's thread, before the
            engine's buffers are reused.
        tell: called with each job and what ``read_out`` made of it, or the outcome that there was none; in the engine's
            thread, which it may give its next job, or, of a job that got stuck, in the trio thread.
        announce: called when a decode step is out, a prefill is about to be, or nothing is: what was told has
            consequences, and no device waits for them. In the engine's thread, and in the end in the trio thread.
        runner: how blocking calls run.
    """

    def __init__(
        self,
        runtime: Runtime,
        engine: EngineId,
        *,
        read_out: Callable[[Job, Finished, float], Any],
        tell: Callable[[Job, Any], None],
        announce: Callable[[], None],
        runner: BlockingRunner,
    ) -> None:
        self._runtime = runtime
        self._engine = engine
        self._read_out = read_out
        self._tell = tell
        self._announce = announce
        self._line = runner.line()
        self._bound = Bound(inf)
        self._alarm = Alarm(self._look)
        self._over = threading.Lock()
        self._out: _Out | None = None
        self._is_telling = False
        self._stuck: _Out | None = None

    @property
    def bound_s(self) -> float | None:
        """The moment, monotonic, at which the job that is out is taken for stuck; None while none is."""
        out = self._out
        return None if out is None else out.bound_s

    def begin(self, job: Job, *, timeout_s: float, bound_s: float) -> None:
        """Submit the job, at once; nothing else of this engine is out. From any thread.

        Args:
            job: what to run.
            timeout_s: after which the job's fate is `Unknown`.
            bound_s: the moment, monotonic, at which it is taken for stuck: the runtime has had its time to keep to
                ``timeout_s``, and ``read_out`` its own.
        """
        assert self._out is None, "an engine has one job"
        out = self._out = _Out(job, bound_s)
        self._line.put(partial(self._run_job, out, timeout_s))

    def watch(self) -> None:
        """Keep the bound of the job that is out. From the trio thread; a bound that is kept is not put aside again."""
        bound_s = self.bound_s
        if bound_s is not None:
            self._alarm.set(bound_s)

    async def run(self) -> None:
        """Be the engine's thread, until cancelled.

        **Cancellation**: drains: no further job is begun, and the one that is out is stayed with until it has ended or
        its bound is past.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._close_when_cancelled)
            with self._bound.scope:
                async with trio.open_nursery() as watched:
                    watched.start_soon(self._alarm.run)
                    await self._line.run(self._ended)
                    watched.cancel_scope.cancel()
            if self._stuck is not None:
                self._tell(self._stuck.job, Unknown(FaultReason.STUCK_WAIT))
            self._announce()

    @property
    def _job(self) -> Job | None:
        out = self._out
        return None if out is None else out.job

    def _run_job(self, out: _Out, timeout_s: float) -> tuple[_Out, Any]:
        read_out = partial(self._read_out, out.job)
        outcome = _submit_and_wait(self._runtime, self._engine, timeout_s, read_out, out, submitted=self._announce)
        return out, outcome

    def _ended(self, ended: tuple[_Out, Any]) -> None:
        out, outcome = ended
        with self._over:
            if out.is_over:  # it was given up in the moment in which it ended
                return
            out.is_over = True
            self._out, self._is_telling = None, True
        self._tell(out.job, outcome)
        self._is_telling = False
        following = self._job
        if following is None or isinstance(following, PrefillJob):  # which takes longer to hand over
            self._announce()

    def _look(self) -> None:
        """The bound of the job that is out, or of one before it, is past."""
        with self._over:
            out = self._out
            if out is None:
                if self._is_telling:  # the next one may be begun just now
                    self._alarm.set(trio.current_time() + _AGAIN_S)
                return
            if trio.current_time() < out.bound_s:
                self._alarm.set(out.bound_s)
                return
            out.is_over = True
            self._out, self._stuck = None, out
        self._bound.scope.cancel()

    async def _close_when_cancelled(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            self._line.close()


async def submit_and_drain(
    runtime: Runtime,
    engine: EngineId,
    job: Job,
    *,
    timeout_s: float,
    overrun_s: float,
    read_out: Callable[[Finished, float], T],
    runner: BlockingRunner,
    limiter: trio.CapacityLimiter,
) -> T | NotSubmitted | Unknown:
    """Submit one job and stay with it until its outcome is known.

    Args:
        runtime: the device.
        engine: where to run.
        job: what to run.
        timeout_s: after which the job's fate is `Unknown`.
        overrun_s: for the runtime to keep to ``timeout_s``, and for ``read_out``; then it is taken for stuck.
        read_out: called with the outcome and the seconds it took, in the same thread hop, before the engine's
            buffers are reused.
        runner: how blocking calls run.
        limiter: the engine's own, of one; its task alone uses it, and no job follows one that got stuck.

    Returns:
        What ``read_out`` made of a finished job, or the outcome that there was none.

    **Cancellation**: drains. It wins at the first checkpoint or not until the job has ended.
    """
    out = _Out(job)
    outcome = await see_through(
        lambda: _submit_and_wait(runtime, engine, timeout_s, read_out, out),
        bound=Bound(timeout_s + overrun_s),
        runner=runner,
        limiter=limiter,
    )
    out.is_over = True
    return outcome


def _submit_and_wait(
    runtime: Runtime,
    engine: EngineId,
    timeout_s: float,
    read_out: Callable[[Finished, float], T],
    out: _Out,
    submitted: Callable[[], None] = lambda: None,
) -> T | NotSubmitted | Unknown:
    submitted_s = time.perf_counter()
    try:
        taken = runtime.submit(engine, out.job)
    except Exception:  # noqa: BLE001 - a runtime that raises has told us nothing about the device
        return Unknown(FaultReason.RUNTIME_ERROR)
    if isinstance(taken, NotSubmitted):
        return taken
    submitted()
    try:
        outcome = runtime.wait(engine, taken.ticket, timeout_s)
    except Exception:  # noqa: BLE001 - see above
        return Unknown(FaultReason.RUNTIME_ERROR)
    if isinstance(outcome, Unknown):
        return outcome
    if outcome.ticket not in (None, taken.ticket):  # another job's, or one's from before: ours is not accounted for
        return Unknown(FaultReason.WRONG_COMPLETION)
    if out.is_over:  # left behind, it woke too late: its requests have been told
        return Unknown(FaultReason.STUCK_WAIT)
    return read_out(outcome, time.perf_counter() - submitted_s)
