"""Quiet waiting: a daemon with nothing to do, or whose device is busy, does nothing.

Today's server waits for KV in an endless loop; that is what this looks for.

Source: S §19 ("no busy-wait"); SPEC section 4 (A §5, §6).
"""

from __future__ import annotations

import time
from functools import partial
from typing import Final

import attrs
import trio

from calculet_trio.conformance.clients import ask, errands
from calculet_trio.conformance.gate import Criterion, GateVerdict
from calculet_trio.conformance.trial import LifeFailed, Trial
from calculet_trio.core.effects import Effect, SubmitJob
from calculet_trio.core.events import Event, JobFinished
from calculet_trio.core.policy import Policy
from calculet_trio.observe.metrics import ServiceMetrics
from calculet_trio.shell.service import Service

CPU_SHARE_AT_MOST: Final = 0.05
BUSY_SHARE_AT_MOST: Final = 0.15
"""While a job runs: taking the requests in costs some; a loop that asks and asks uses a whole processor."""
EVENTS_AT_MOST: Final = 4
"""Of each request that waits, while the device is busy: it arrives, is offered, may be given a lane; one to spare."""
JOB_S_AT_LEAST: Final = 0.1
"""A shorter job is over before anybody has waited for it: what was used meanwhile says nothing."""
_IDLE_S: Final = 1.0
_LONG_TOKENS: Final = 300
"""Of the prompt that holds the device: 1.6 s on the reference board."""
_OWN_PROCESSOR: Final = "cpu"


@attrs.frozen
class _Moment:
    """What had been used by then."""

    wall_s: float
    cpu_s: float
    events: int


class _Watching(ServiceMetrics):
    """The production metrics, and the moments between which the first job ran."""

    def __init__(self) -> None:
        super().__init__()
        self.events = 0
        self.submitted: _Moment | None = None
        self.finished: _Moment | None = None

    def now(self) -> _Moment:
        return _Moment(time.monotonic(), time.process_time(), self.events)

    def heard(self, event: Event, now: float) -> None:
        self.events += 1
        if isinstance(event, JobFinished) and self.finished is None:
            self.finished = self.now()
        super().heard(event, now)

    def saw(self, effect: Effect, now: float) -> None:
        if isinstance(effect, SubmitJob) and self.submitted is None:
            self.submitted = self.now()
        super().saw(effect, now)


def quiet_criterion(trial: Trial, policy: Policy) -> Criterion:
    """Idle, and with a full house behind one long prompt, the process uses no processor and the core is not asked.

    Where the device is this machine's own processor, its time while a job runs is the job's; there the core's events
    alone are counted.
    """
    shape = trial.description().shape
    metrics = _Watching()
    [long] = errands(1, prompt_tokens=min(_LONG_TOKENS, shape.max_seq // 2), tokens=2, vocabulary=shape.vocab_size)
    others = errands(2 * shape.lanes, prompt_tokens=4, tokens=2, vocabulary=shape.vocab_size, seed=2)

    async def visit(service: Service) -> tuple[_Moment, _Moment]:
        began = metrics.now()
        await trio.sleep(_IDLE_S)
        ended = metrics.now()
        async with trio.open_nursery() as nursery:
            admitted = trio.Event()
            nursery.start_soon(partial(ask, service, trial.alias, long, begun=admitted))
            await admitted.wait()
            for errand in others:
                nursery.start_soon(ask, service, trial.alias, errand)
        return began, ended

    try:
        idle_from, idle_to = trial.live(policy, visit, metrics=metrics)
    except LifeFailed as failed:
        return Criterion.of("no busy-wait", holds=False, seen=str(failed))
    assert metrics.submitted is not None
    assert metrics.finished is not None
    idle_share = _share(idle_from, idle_to)
    busy_s = metrics.finished.wall_s - metrics.submitted.wall_s
    events = metrics.finished.events - metrics.submitted.events
    allowed = EVENTS_AT_MOST * len(others) + 1
    seen = (
        f"idle: {idle_share:.1%} of a processor, allowed {CPU_SHARE_AT_MOST:.0%}; {len(others)} requests behind a job "
        f"of {busy_s:.2g} s: {events} events, allowed {allowed}"
    )
    holds = idle_share <= CPU_SHARE_AT_MOST and events <= allowed
    if holds and busy_s < JOB_S_AT_LEAST:
        seen += f"; a job must take {JOB_S_AT_LEAST:g} s to be waited for"
        return Criterion("no busy-wait", GateVerdict.INCONCLUSIVE, seen)
    if trial.device().kind != _OWN_PROCESSOR:
        busy_share = _share(metrics.submitted, metrics.finished)
        seen += f", {busy_share:.1%} of a processor, allowed {BUSY_SHARE_AT_MOST:.0%}"
        holds = holds and busy_share <= BUSY_SHARE_AT_MOST
    return Criterion.of("no busy-wait", holds=holds, seen=seen)


def _share(began: _Moment, ended: _Moment) -> float:
    return (ended.cpu_s - began.cpu_s) / max(ended.wall_s - began.wall_s, 1e-9)
