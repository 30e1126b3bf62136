"""DeviceExecutor: one per physical device, above all generations; it runs what the core submits.

Each engine has a thread and a limiter of its own, which begins a job in the moment in which the core decides it: a
step waits for no task's turn, and makes no hop. KV allocations and releases run beside the jobs, one at a time, and
beside both what puts another model on the device, which may take minutes.
Whatever an engine learns comes back to the core as one event, and the engine's thread waits for nobody to say what
follows: it lays the event before the core itself, and has the next job.

The synchronous baseline (``executor.mode: sync``) instead makes every call of the device, jobs and KV calls alike, in
one task and one thread, one after another: submit, wait, sample, and then whatever the core decided.

Source: SPEC section 9 (S §3, §14).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from math import inf
from typing import Final, TypeVar

import attrs
import trio

from calculet_trio.core import events as ev
from calculet_trio.core.effects import AllocateSequence, ContinueSequence, ReleaseSequence, SubmitJob
from calculet_trio.core.events import Event, FaultReason, LaneResult
from calculet_trio.core.jobs import EngineId, Job
from calculet_trio.core.profiles import ModelShape
from calculet_trio.errors import DeviceLost
from calculet_trio.runtimes.port import Allocated, Finished, NotAllocated, NotSubmitted, Runtime, Unknown
from calculet_trio.shell.blocking import BlockingRunner
from calculet_trio.shell.drain import Bound, EngineLine, see_through, submit_and_drain

T = TypeVar("T")

_LANES_AT_MOST = 1024
"""Bound of the control channel: a lane has at most one call about its KV under way."""
_KV_CALL_S = 60.0
"""An allocation or a release answers at once, by the port's contract; one that has not by then never will."""
LOAD_CALL_S = 900.0
"""Configuring 18 GB from a slow disk takes minutes; a call that takes longer than this is stuck."""

KvCall = AllocateSequence | ContinueSequence | ReleaseSequence

Settle = Callable[[Job, Finished], tuple[LaneResult, ...]]


@attrs.frozen(kw_only=True)
class JobTimeout:
    """How long a job may take before its fate is Unknown: longer prompts may take longer.

    Args:
        base_s: for the shortest job.
        per_token_s: added for each token that the job appends.
        overrun_s: on top of it, for a runtime to keep to its timeout and for sampling; a runtime that takes
            longer is stuck, and its thread is left behind.
    """

    base_s: float = 60.0
    per_token_s: float = 0.05
    overrun_s: float = 5.0

    def of(self, job: Job) -> float:
        return self.base_s + self.per_token_s * sum(len(work.tokens) for work in job.lanes)

    def longest_s(self, shape: ModelShape) -> float:
        """After which the longest job that could be admitted is given up: a prompt that fills the context."""
        tokens = max(min(shape.prefill.max_seq, shape.max_seq), *(profile.compiled_batch for profile in shape.decode))
        return self.base_s + self.per_token_s * tokens + self.overrun_s


@attrs.define(eq=False)
class _Turns:
    """Calls of which one is out at a time.

    Args:
        name: in `DeviceExecutor.bounds_s`.
        is_stuck: one did not return: its thread keeps the limiter, and no further call may wait for that.
    """

    name: str
    is_stuck: bool = False
    turn: trio.Lock = attrs.field(factory=trio.Lock)  # waited for outside the shield, so that the limiter is free in it
    limiter: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(1))


class DeviceExecutor:
    """Runs jobs and KV calls of one device.

    Args:
        runtime: the device.
        engines: those that the core may use.
        settle: samples the lanes of a finished job; called in the engine's thread.
        post: tells the core, in its next round.
        decide: tells it now; called in the engine's thread, which goes on with what follows.
        announce: has performed what else was decided there.
        runner: how blocking calls run.
        timeout: the bound of a job.
        synchronous: the baseline of milestone M1; with one engine.
        on_stuck: told when a call beside the jobs did not return: the device is lost.
    """

    def __init__(
        self,
        runtime: Runtime,
        engines: tuple[EngineId, ...],
        *,
        settle: Settle,
        post: Callable[[Event], None],
        decide: Callable[[Event], None],
        announce: Callable[[], None],
        runner: BlockingRunner,
        timeout: JobTimeout,
        synchronous: bool = False,
        on_stuck: Callable[[FaultReason], None],
    ) -> None:
        self._runtime = runtime
        self._settle = settle
        self._post = post
        self._decide = decide
        self._runner = runner
        self._timeout = timeout
        self._on_stuck = on_stuck
        self._synchronous = synchronous
        self._lines = {
            engine: EngineLine(
                runtime, engine, read_out=self._read_out, tell=self._ended, announce=announce, runner=runner
            )
            for engine in engines
        }
        self._control = trio.open_memory_channel[KvCall | SubmitJob](_LANES_AT_MOST)
        self._beside_jobs, self._loads = _Turns("device call"), _Turns("load call")
        self._may_hurry: dict[str, Bound] = {}
        self._hurried_s = inf
        self._bounds_s: dict[str, float] = {}

    # ---- effects --------------------------------------------------------------------------------

    def submit(self, effect: SubmitJob, now: float) -> None:
        """Begin the job on its engine; never waits. From any thread; `watch` follows in the trio thread."""
        if self._synchronous:
            self._control[0].send_nowait(effect)
            return
        timeout_s = self._timeout.of(effect.job)
        bound_s = now + timeout_s + self._timeout.overrun_s
        self._lines[effect.engine].begin(effect.job, timeout_s=timeout_s, bound_s=bound_s)

    def watch(self, effect: SubmitJob) -> None:
        """Keep the bound of a job that was begun."""
        self._lines[effect.engine].watch()

    def control(self, effect: KvCall) -> None:
        """Queue a KV call; never waits."""
        self._control[0].send_nowait(effect)

    @property
    def bounds_s(self) -> Mapping[str, float]:
        """For each call that is under way: the moment, monotonic, at which it will have ended or is stuck."""
        jobs = {_name(engine): bound_s for engine, line in self._lines.items() if (bound_s := line.bound_s) is not None}
        return jobs | self._bounds_s

    @property
    def due_s(self) -> Mapping[str, float]:
        """The same calls: the moment by which each should have ended of itself; then it is late, and soon stuck."""
        jobs = {_name(engine) for engine in self._lines}
        overrun_s = self._timeout.overrun_s
        return {name: bound_s - overrun_s * (name in jobs) for name, bound_s in self.bounds_s.items()}

    # ---- tasks ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve engines and KV calls until cancelled.

        **Cancellation**: drains: each engine first ends the job it is running.
        """
        async with trio.open_nursery() as nursery:
            if not self._synchronous:
                for engine, line in self._lines.items():
                    nursery.start_soon(line.run, name=_name(engine))
            nursery.start_soon(self._run_control, name="kv calls")

    async def call(self, call: Callable[[], T], *, bound_s: float | None = None) -> T:
        """One blocking call to the device beside its jobs, in turns with KV calls (unload, reset, memory, status).

        Args:
            call: blocks.
            bound_s: after which it is stuck; None for `LOAD_CALL_S`.

        Raises:
            calculet_trio.errors.DeviceLost: it did not return in time, or not in time for the process to end.

        **Cancellation**: drains.
        """
        return await self._to_its_end(call, self._beside_jobs, LOAD_CALL_S if bound_s is None else bound_s)

    async def call_for_load(self, call: Callable[[], T]) -> T:
        """The same for a model that is being put on the device: KV calls of the others do not wait for it.

        **Cancellation**: drains.
        """
        return await self._to_its_end(call, self._beside_jobs if self._synchronous else self._loads, LOAD_CALL_S)

    async def _to_its_end(self, call: Callable[[], T], turns: _Turns, bound_s: float) -> T:
        answer = await self._in_turn(call, turns, bound_s=bound_s, may_hurry=True)
        if isinstance(answer, Unknown):
            raise DeviceLost("a call to the device did not return in time")
        return answer

    def _ended(self, job: Job, outcome: Event | NotSubmitted | Unknown) -> None:
        self._decide(_as_event(job, outcome))

    def _read_out(self, job: Job, finished: Finished, taken_s: float) -> Event:
        """In the engine's thread, while its buffers hold this job's logits."""
        if finished.failed is not None:
            return ev.JobFailed(job.job, job.generation, finished.failed)
        results = self._settle(job, finished)
        times = ev.JobTimes(taken_s, finished.device_s, finished.h2d_s, finished.d2h_s)
        return ev.JobFinished(job.job, job.generation, results, finished.lost_lanes, finished.anomaly, times)

    async def _run_control(self) -> None:
        async for effect in self._control[1]:
            if isinstance(effect, SubmitJob):
                await self._run_job(effect.engine, effect.job)
                continue
            answer = await self._in_turn(partial(self._kv_call, effect), self._beside_jobs, bound_s=_KV_CALL_S)
            if not isinstance(answer, Unknown):  # else its lane stays as it is: nobody knows what it holds
                self._post(answer)

    async def _run_job(self, engine: EngineId, job: Job) -> None:
        """The synchronous baseline's way."""
        timeout_s, overrun_s = self._timeout.of(job), self._timeout.overrun_s
        turns = self._beside_jobs
        outcome: Event | NotSubmitted | Unknown = Unknown(FaultReason.STUCK_WAIT)
        async with turns.turn:
            if not turns.is_stuck:
                with self._bounded(_name(engine), timeout_s + overrun_s):
                    outcome = await submit_and_drain(
                        self._runtime,
                        engine,
                        job,
                        timeout_s=timeout_s,
                        overrun_s=overrun_s,
                        read_out=partial(self._read_out, job),
                        runner=self._runner,
                        limiter=turns.limiter,
                    )
                turns.is_stuck = outcome == Unknown(FaultReason.STUCK_WAIT)
        self._post(_as_event(job, outcome))

    def hurry(self, deadline_s: float) -> None:
        """The process is to end: a call beside the jobs is waited for until then, and hardly longer (`Bound.hurry`)."""
        self._hurried_s = min(self._hurried_s, deadline_s)
        for bound in self._may_hurry.values():
            bound.hurry(deadline_s)

    async def _in_turn(
        self, call: Callable[[], T], turns: _Turns, *, bound_s: float, may_hurry: bool = False
    ) -> T | Unknown:
        async with turns.turn:  # the bound is the call's own: another's time does not count
            if turns.is_stuck:
                return Unknown(FaultReason.STUCK_WAIT)
            bound = Bound(bound_s)
            if may_hurry:
                self._may_hurry[turns.name] = bound
                bound.hurry(self._hurried_s)
            with self._bounded(turns.name, bound_s):
                answer = await see_through(call, bound=bound, runner=self._runner, limiter=turns.limiter)
            turns.is_stuck = isinstance(answer, Unknown)
        if isinstance(answer, Unknown):
            self._on_stuck(answer.reason)
        return answer

    @contextmanager
    def _bounded(self, name: str, bound_s: float) -> Iterator[None]:
        """Show in `bounds_s` that a call is under way."""
        self._bounds_s[name] = trio.current_time() + bound_s
        try:
            yield
        finally:
            del self._bounds_s[name]

    def _kv_call(self, effect: KvCall) -> Event:
        match effect:
            case AllocateSequence():
                return self._allocate(effect)
            case ContinueSequence():
                return self._continue(effect)
            case ReleaseSequence():
                return self._release(effect)

    def _allocate(self, effect: AllocateSequence) -> Event:
        try:
            answer = self._runtime.allocate(effect.generation, effect.lane, effect.tokens)
        except Exception:  # noqa: BLE001 - a runtime that raises has not allocated anything we may use
            answer = NotAllocated(FaultReason.RUNTIME_ERROR)
        if isinstance(answer, Allocated):
            return ev.SequenceAllocated(
                effect.generation, effect.lane, effect.request, effect.reservation, answer.sequence
            )
        return ev.SequenceRefused(effect.generation, effect.lane, effect.request, effect.reservation, answer.reason)

    def _continue(self, effect: ContinueSequence) -> Event:
        generation, sequence, tokens = effect.generation, effect.sequence, effect.drop_tokens
        try:
            done = tokens == 0 or self._runtime.remove_tail(generation, sequence, tokens)
        except Exception:  # noqa: BLE001 - what it holds now is released, and never read
            done = False
        if done:
            return ev.SequenceAllocated(generation, effect.lane, effect.request, effect.reservation, sequence)
        return ev.SequenceRefused(
            generation, effect.lane, effect.request, effect.reservation, FaultReason.RUNTIME_ERROR
        )

    def _release(self, effect: ReleaseSequence) -> Event:
        try:
            confirmed = self._runtime.release(effect.generation, effect.lane, effect.sequence)
        except Exception:  # noqa: BLE001 - an unconfirmed release keeps the lane out of use
            confirmed = False
        return ev.SequenceReleased(effect.generation, effect.lane, effect.sequence, confirmed)


def _name(engine: EngineId) -> str:
    return _NAMES[engine]


_NAMES: Final = {engine: f"engine {engine.value}" for engine in EngineId}


def _as_event(job: Job, outcome: Event | NotSubmitted | Unknown) -> Event:
    match outcome:
        case NotSubmitted(reason):
            return ev.JobNotSubmitted(job.job, job.generation, reason)
        case Unknown(reason):
            return ev.JobUnknown(job.job, job.generation, reason)
        case _:
            return outcome
