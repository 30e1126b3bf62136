"""The one shield: a job is either not submitted, or drained; there is no third way.

Submission and wait stand together behind one shielded scope, after a last checkpoint at which cancellation
may still win. The bound on the wait is the port's timeout, and its expiry is the value
`calculet_trio.runtimes.port.Unknown`. A runtime that does not keep to it is not waited for either: past a bound
of the shell's own the outcome is the same `Unknown`, and the thread stays behind, with all that it holds, for
the rest of the process's life. Only `calculet_trio.shell.executor` imports this module.

Source: SPEC section 9 (S §14); ARCHITECTURE.md "The one shield".
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

import trio

from calculet_trio.core.events import FaultReason
from calculet_trio.core.jobs import EngineId, Job
from calculet_trio.runtimes.port import Finished, NotSubmitted, Runtime, Unknown
from calculet_trio.shell.blocking import BlockingRunner

T = TypeVar("T")


class Bound:
    """The moment at which a call is taken for stuck; it may be brought forward while the call runs.

    Args:
        bound_s: seconds from now.
    """

    def __init__(self, bound_s: float) -> None:
        self._scope = trio.CancelScope(shield=True, deadline=trio.current_time() + bound_s)

    def hurry(self, deadline_s: float) -> None:
        """Wait no longer than until ``deadline_s``, monotonic."""
        self._scope.deadline = min(self._scope.deadline, deadline_s)

    @property
    def scope(self) -> trio.CancelScope:
        """The one shield; for `see_through`."""
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
    return Unknown(FaultReason.TIMEOUT)


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
    is_over = threading.Event()
    outcome = await see_through(
        lambda: _submit_and_wait(runtime, engine, job, timeout_s, read_out, is_over),
        bound=Bound(timeout_s + overrun_s),
        runner=runner,
        limiter=limiter,
    )
    is_over.set()
    return outcome


def _submit_and_wait(
    runtime: Runtime,
    engine: EngineId,
    job: Job,
    timeout_s: float,
    read_out: Callable[[Finished, float], T],
    is_over: threading.Event,
) -> T | NotSubmitted | Unknown:
    submitted_s = time.perf_counter()
    try:
        taken = runtime.submit(engine, job)
        if isinstance(taken, NotSubmitted):
            return taken
        outcome = runtime.wait(engine, taken.ticket, timeout_s)
    except Exception:  # noqa: BLE001 - a runtime that raises has told us nothing about the device
        return Unknown(FaultReason.RUNTIME_ERROR)
    if isinstance(outcome, Unknown):
        return outcome
    if outcome.ticket not in (None, taken.ticket):  # another job's, or one's from before: ours is not accounted for
        return Unknown(FaultReason.WRONG_COMPLETION)
    if is_over.is_set():  # left behind, it woke too late: its requests have been told
        return Unknown(FaultReason.TIMEOUT)
    return read_out(outcome, time.perf_counter() - submitted_s)
