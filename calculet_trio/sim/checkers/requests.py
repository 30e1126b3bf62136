"""Requests end once, are given each token once, and their deadlines are true.

Source: SPEC section 3, 4 (S §4, §5.4).
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import attrs

from calculet_trio.core import effects as ef
from calculet_trio.core import events as ev
from calculet_trio.core.jobs import Job
from calculet_trio.core.policy import Policy
from calculet_trio.ids import JobId, RequestId
from calculet_trio.sim.checkers.violation import Violated, require
from calculet_trio.sim.checkers.watch import Routes

_MOMENT_S: Final = 1e-6
"""Sums of floating seconds differ by less."""

Ending = ef.Refuse | ef.Finish | ef.Fail | ef.Drop


@attrs.define
class _Request:
    deadline_s: float
    granted: int | None = None
    tokens: int = 0
    last_job_end_s: float = 0.0
    is_over: bool = False


class RequestChecker:
    """One daemon's requests.

    Args:
        policy: for the deadlines of tenants.

    Attributes:
        endings: how many of each kind were said.
    """

    def __init__(self, policy: Policy) -> None:
        self.endings: Counter[str] = Counter()
        self._default_s = policy.admission.deadline_default_s
        self._tenants = policy.tenants
        self._requests: dict[RequestId, _Request] = {}
        self._open = 0
        self._jobs: dict[JobId, Job] = {}
        self._credits: dict[RequestId, int] = {}

    def routes(self) -> Routes:
        """See `calculet_trio.sim.checkers.watch.Checker`."""
        return {
            ev.Arrived: self._arrived,
            ev.TenantsChanged: self._tenants_changed,
            ev.JobFinished: self._job_finished,
            ev.JobFailed: self._job_ended,
            ev.JobNotSubmitted: self._job_ended,
            ev.JobUnknown: self._job_ended,
            ef.Admit: self._admitted,
            ef.SubmitJob: self._submitted,
            ef.Deliver: self._delivered,
            ef.Refuse: self._ended,
            ef.Finish: self._ended,
            ef.Fail: self._ended,
            ef.Drop: self._ended,
        }

    @property
    def arrived(self) -> int:
        """How many have come."""
        return len(self._requests)

    def conclude(self, now: float, *, device_lost: bool) -> None:
        """Everybody who came was told an end."""
        if self._open:
            left = [request for request, entry in self._requests.items() if not entry.is_over]
            raise Violated(f"{self._open} requests have no end, among them {left[:5]}")
        require(sum(self.endings.values()) == len(self._requests), "there are not as many ends as requests")

    def _arrived(self, event: ev.Arrived, now: float) -> None:
        require(event.request not in self._requests, f"request {event.request} came twice")
        own = self._tenants.get(event.tenant)
        latest_s = now + (self._default_s if own is None or own.deadline_s is None else own.deadline_s)
        self._requests[event.request] = _Request(
            latest_s if event.deadline_s is None else min(latest_s, event.deadline_s)
        )
        self._open += 1

    def _tenants_changed(self, event: ev.TenantsChanged, now: float) -> None:
        self._tenants = event.tenants

    def _admitted(self, effect: ef.Admit, now: float) -> None:
        entry = self._alive(effect.request)
        require(entry.granted is None, f"request {effect.request} was admitted twice")
        entry.granted = effect.max_new_tokens

    def _submitted(self, effect: ef.SubmitJob, now: float) -> None:
        self._jobs[effect.job.job] = effect.job
        for work in effect.job.lanes:
            deadline_s = self._alive(work.request).deadline_s
            require(
                now < deadline_s, "request {} expired at {:.3f} s and is sent to the device", work.request, deadline_s
            )

    def _job_finished(self, event: ev.JobFinished, now: float) -> None:
        is_known = event.job in self._jobs
        self._job_ended(event, now)
        if is_known:  # late or doubled: the core is to ignore it, and a token out of it has no credit here
            self._credits = {result.request: 1 for result in event.results if result.token is not None}

    def _job_ended(self, event: ev.JobFinished | ev.JobFailed | ev.JobNotSubmitted | ev.JobUnknown, now: float) -> None:
        self._credits = {}
        job = self._jobs.pop(event.job, None)
        for work in () if job is None else job.lanes:
            self._requests[work.request].last_job_end_s = now

    def _delivered(self, effect: ef.Deliver, now: float) -> None:
        entry = self._alive(effect.request)
        sampled = self._credits.pop(effect.request, 0)
        require(sampled == 1, "request {} is given a token that was not sampled for it, or twice", effect.request)
        entry.tokens += 1
        assert entry.granted is not None, "nothing is sampled for a request that was not admitted"
        is_granted = entry.tokens <= entry.granted
        require(is_granted, "request {} is given more than {} tokens", effect.request, entry.granted)

    def _ended(self, effect: Ending, now: float) -> None:
        entry = self._alive(effect.request)
        entry.is_over = True
        self._open -= 1
        self.endings[type(effect).__name__] += 1
        # Until its job has drained it has no end, but for the loss of the whole device.
        is_out = isinstance(effect, ef.Fail) and any(
            work.request == effect.request for job in self._jobs.values() for work in job.lanes
        )
        late_s = 0.0 if is_out else now - max(entry.deadline_s, entry.last_job_end_s)
        require(late_s <= _MOMENT_S, f"request {effect.request} is told of its end {late_s:.3f} s after its deadline")
        if _says_deadline(effect):
            early_s = entry.deadline_s - now
            require(early_s <= _MOMENT_S, f"request {effect.request} is told of a deadline {early_s:.3f} s before it")
        if isinstance(effect, ef.Finish) and effect.reason is ef.FinishReason.LENGTH and effect.truncated_by is None:
            require(entry.tokens == entry.granted, f"request {effect.request} ends by a length that it has not reached")

    def _alive(self, request: RequestId) -> _Request:
        entry = self._requests.get(request)
        if entry is None:
            raise Violated(f"request {request} was never here")
        require(not entry.is_over, "request {} has ended already", request)
        return entry


def _says_deadline(effect: Ending) -> bool:
    match effect:
        case ef.Refuse(_, refusal):
            return refusal.code == "deadline_exceeded"
        case ef.Finish(_, _, truncated_by):
            return truncated_by == "deadline"
        case ef.Fail(_, reason):
            return reason is ev.FaultReason.DEADLINE_EXCEEDED
        case _:
            return False
