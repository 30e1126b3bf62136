"""Settlement: what the end of a device job means for its lanes, its requests and its engine.

Source: SPEC section 3, 6, 7, 9 (S §4, §7.4, §9.2, §14).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

import attrs

from calculet_trio.core.admission import DrainRate
from calculet_trio.core.backoff import Backoff
from calculet_trio.core.degradation import EnginePair
from calculet_trio.core.effects import Deliver, Effect, FinishReason, Quarantined
from calculet_trio.core.endings import Endings
from calculet_trio.core.events import (
    Doubt,
    FaultReason,
    JobFailed,
    JobFinished,
    JobNotSubmitted,
    JobUnknown,
    LaneResult,
)
from calculet_trio.core.faults import FAULTS, Next, next_step
from calculet_trio.core.health import DeviceState, EngineHealth
from calculet_trio.core.jobs import EngineId, Job, JobEvent, JobRecord, JobTable, LaneWork, PrefillJob
from calculet_trio.core.recovery import Recovery
from calculet_trio.core.registry import RequestRegistry
from calculet_trio.core.replay import Replays
from calculet_trio.core.request import Request, RequestEvent, RequestState
from calculet_trio.core.served import Served
from calculet_trio.ids import GenerationId, RequestId

BUSY_TRIES = 8
"""Submissions in a row that the device may refuse as busy before their requests fail (about 0.6 s)."""

JobEnd = JobFinished | JobFailed | JobNotSubmitted | JobUnknown


@attrs.define
class Settlement:
    """Ends jobs. Stale and repeated ends are ignored: their job has left the table, or is Unknown."""

    registry: RequestRegistry
    jobs: JobTable
    engines: Mapping[EngineId, EngineHealth]
    served: Mapping[GenerationId, Served]
    submission: Backoff
    pair: EnginePair
    endings: Endings
    replays: Replays
    recovery: Recovery
    drain_rate: DrainRate
    effects: list[Effect]

    def job_ended(self, event: JobEnd, now: float) -> None:
        record = self.jobs.in_flight(event.job)
        if record is None or record.job.generation != event.generation:
            return
        if self.recovery.device.state is DeviceState.LOST:  # its requests have been told, its lanes are Unknown
            self.jobs.end(record, JobEvent.LOSE if isinstance(event, JobUnknown) else JobEvent.SETTLE)
            return
        match event:
            case JobFinished(lost=lost) if lost and not self.served[event.generation].shape.lane_fault_isolation:
                self.jobs.end(record, JobEvent.LOSE)
                sampled = frozenset(result.request for result in event.results)
                self._lose(record, FaultReason.CCU_FAULT, now, sampled=sampled)
            case JobFinished():
                self.jobs.end(record, JobEvent.SETTLE)
                self._finished(record, event, now)
            case JobFailed() if next_step(event.reason, restart_on_unknown_dma=True) is not Next.GO_ON:
                self.jobs.end(record, JobEvent.LOSE)
                self._lose(record, event.reason, now)
            case JobFailed():
                self.jobs.end(record, JobEvent.SETTLE)
                self.submission.accepted()
                self.pair.faulted(event.reason)
                self._withdraw(record, event.reason, now)
            case JobNotSubmitted():
                self.jobs.end(record, JobEvent.WITHDRAW)
                self.submission.refused(now)
                self._not_submitted(record, event.reason, now)
            case JobUnknown():
                self.jobs.end(record, JobEvent.LOSE)
                self._lose(record, event.reason, now)
            case _:
                assert_never(event)

    def _finished(self, record: JobRecord, event: JobFinished, now: float) -> None:
        """The device answered; where lanes may fail by themselves, some may have."""
        self.submission.accepted()
        served = self.served[event.generation]
        served.charge(record.job, now - record.submitted_s, now, beside=record.beside)
        if event.anomaly is None:
            self.pair.finished(record, now - record.submitted_s)
        else:
            self.pair.faulted(event.anomaly)
        results = {result.lane: result for result in event.results}
        for work, request in zip(record.job.lanes, record.requests, strict=True):
            if work.lane in event.lost:
                self._lose_lane(request, FaultReason.LANE_LOST, now)
            else:
                self._settle(record.job, work, request, results.get(work.lane), served, now)
        if event.lost:
            self.conclude_loss(FaultReason.LANE_LOST, now)

    def _not_submitted(self, record: JobRecord, reason: FaultReason, now: float) -> None:
        """Nothing happened on the device: it is asked again, or the job's requests fail."""
        self.pair.faulted(reason)
        is_transient = FAULTS[reason].next is Next.TRY_AGAIN
        may_retry = is_transient and self.submission.failures < BUSY_TRIES
        self._withdraw(record, None if may_retry else reason, now)
        self.heard_of(reason, now)

    def heard_of(self, reason: FaultReason, now: float) -> None:
        """A call to the device was refused for ``reason``; where that means that the device is gone, so be it."""
        if FAULTS[reason].next is Next.RESTART:
            self.recovery.fault(reason, now)

    def _settle(
        self, job: Job, work: LaneWork, request: Request, result: LaneResult | None, served: Served, now: float
    ) -> None:
        """One lane of a finished job: its KV is committed, then its request goes on, ends or is given up."""
        assert request.lane is not None
        request.lane.commit()
        if isinstance(job, PrefillJob):
            request.prefilled_tokens += len(work.tokens)
        if request.give_up is not None:
            self.endings.give_up(request)
        elif not work.samples:
            served.enqueue_known(request, now)
            if now >= request.deadline_s:
                self.endings.expire(request)
        elif result is None or result.request != work.request:
            self.pair.doubted(Doubt.CROSS_TALK)
            self.endings.fail(request, FaultReason.RUNTIME_ERROR)
        elif result.failed is not None or result.token is None:
            self.endings.fail(request, result.failed or FaultReason.RUNTIME_ERROR)
        else:
            request.generated.append(result.token)
            self.effects.append(Deliver(request.id, result.output))
            if result.stopped:
                self._finish(request, served, now, FinishReason.STOP)
            elif len(request.generated) >= request.max_new_tokens:
                self._finish(request, served, now, FinishReason.LENGTH)
            elif now >= request.deadline_s:
                self._finish(request, served, now, FinishReason.LENGTH, truncated_by="deadline")
            else:
                request.advance(RequestEvent.COMMIT)
                served.enqueue_token(request, now)

    def _finish(
        self, request: Request, served: Served, now: float, reason: FinishReason, truncated_by: str | None = None
    ) -> None:
        """The reply is whole; its lane is retained, or goes back to the runtime."""
        if served.retain(request, now):
            self.drain_rate.ended(now, others_waiting=self.registry.waiting > 0)
        self.endings.finish(request, reason, truncated_by)

    def _withdraw(self, record: JobRecord, reason: FaultReason | None, now: float) -> None:
        """Nothing of the job may be committed; its requests wait again, or fail for ``reason``."""
        served = self.served[record.job.generation]
        for request in reversed(record.requests):  # so that whoever is put back in front of others keeps the order
            assert request.lane is not None
            request.lane.withdraw()
            if request.give_up is not None:
                self.endings.give_up(request)
            elif reason is not None:
                self.endings.fail(request, reason)
            else:
                request.advance(RequestEvent.WITHDRAW)
                if now >= request.deadline_s:
                    self.endings.expire(request)
                else:
                    served.put_back(request)

    def _lose(
        self, record: JobRecord, reason: FaultReason, now: float, *, sampled: frozenset[RequestId] = frozenset()
    ) -> None:
        """Nobody knows what the job did: its lanes and its engine serve nobody until the device was reset."""
        for request in record.requests:
            self._lose_lane(request, reason, now, sampled=request.id in sampled)
        self.pair.faulted(reason)
        self.engines[record.engine].quarantine(reason)
        self.effects.append(Quarantined(record.engine, reason))
        self.recovery.fault(reason, now, record.engine)

    def _lose_lane(self, request: Request, reason: FaultReason, now: float, *, sampled: bool = False) -> None:
        """The lane's content is unknown; its request is replayed, or ends."""
        assert request.lane is not None
        request.lane.lose()
        self.replays.lose_kv(request, self.served[request.generation], reason, sampled=sampled)
        if request.state is RequestState.PREFILL_READY and now >= request.deadline_s:
            self.endings.expire(request)  # its deadline passed while the job was out

    def conclude_loss(self, reason: FaultReason, now: float) -> None:
        """A lane was lost; where none is left, nobody can be served before the device was reset."""
        if not any(served.lanes.usable for served in self.served.values()):
            self.recovery.fault(reason, now)
