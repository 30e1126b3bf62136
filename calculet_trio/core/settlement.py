"""Settlement: what the end of a device job means for its lanes, its requests and its engine.

Source: SPEC section 3, 6, 7, 9 (S §4, §7.4, §9.2, §14).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

import attrs

from calculet_trio.core.backoff import Backoff
from calculet_trio.core.degradation import EnginePair
from calculet_trio.core.effects import Deliver, Effect, FinishReason, Quarantined
from calculet_trio.core.endings import Endings, device_failed
from calculet_trio.core.events import (
    CancelReason,
    Doubt,
    FaultReason,
    JobFailed,
    JobFinished,
    JobNotSubmitted,
    JobUnknown,
    LaneResult,
)
from calculet_trio.core.health import EngineHealth
from calculet_trio.core.jobs import EngineId, Job, JobEvent, JobRecord, JobTable, LaneWork, PrefillJob
from calculet_trio.core.registry import RequestRegistry
from calculet_trio.core.request import Request, RequestEvent, RequestState
from calculet_trio.core.served import Served
from calculet_trio.ids import GenerationId

BUSY_TRIES = 8
"""Submissions in a row that the device may refuse as busy before their requests fail (about 0.6 s)."""

JobEnd = JobFinished | JobFailed | JobNotSubmitted | JobUnknown


@attrs.define
class Settlement:
    """Ends jobs. Stale and repeated ends are ignored: their job has left the table, or is Unknown.

    Attributes:
        fault: why no engine or no lane is left; None while somebody can be served.
    """

    registry: RequestRegistry
    jobs: JobTable
    engines: Mapping[EngineId, EngineHealth]
    served: Mapping[GenerationId, Served]
    submission: Backoff
    pair: EnginePair
    endings: Endings
    effects: list[Effect]
    fault: FaultReason | None = None

    def job_ended(self, event: JobEnd, now: float) -> None:
        record = self.jobs.in_flight(event.job)
        if record is None or record.job.generation != event.generation:
            return
        match event:
            case JobFinished(lost=lost) if lost and not self.served[event.generation].shape.lane_fault_isolation:
                self.jobs.end(record, JobEvent.LOSE)
                self._lose(record, FaultReason.CCU_FAULT)
            case JobFinished():
                self.jobs.end(record, JobEvent.SETTLE)
                self.submission.accepted()
                served = self.served[event.generation]
                served.charge(record.job, now - record.submitted_s, now)
                if event.anomaly is None:
                    self.pair.finished(record, now - record.submitted_s)
                else:
                    self.pair.faulted(event.anomaly)
                results = {result.lane: result for result in event.results}
                for work, request in zip(record.job.lanes, record.requests, strict=True):
                    if work.lane in event.lost:
                        self._lose_lane(request, FaultReason.CCU_FAULT)
                    else:
                        self._settle(record.job, work, request, results.get(work.lane), served, now)
                if event.lost:
                    self.conclude_loss(FaultReason.CCU_FAULT)
            case JobFailed():
                self.jobs.end(record, JobEvent.SETTLE)
                self.submission.accepted()
                self.pair.faulted(event.reason)
                self._withdraw(record, event.reason, now)
            case JobNotSubmitted():
                self.jobs.end(record, JobEvent.WITHDRAW)
                self.submission.refused(now)
                self.pair.faulted(event.reason)
                may_retry = event.reason is FaultReason.DEVICE_BUSY and self.submission.failures < BUSY_TRIES
                self._withdraw(record, None if may_retry else event.reason, now)
            case JobUnknown():
                self.jobs.end(record, JobEvent.LOSE)
                self.pair.faulted(event.reason)
                self._lose(record, event.reason)
            case _:
                assert_never(event)

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
        elif not job.samples:
            self._next_chunk(request, served, now)
        elif result is None or result.request != work.request:
            self.pair.doubted(Doubt.CROSS_TALK)
            self.endings.fail(request, FaultReason.RUNTIME_ERROR)
        elif result.failed is not None or result.token is None:
            self.endings.fail(request, result.failed or FaultReason.RUNTIME_ERROR)
        else:
            request.generated.append(result.token)
            self.effects.append(Deliver(request.id, result.output))
            if result.stopped:
                self.endings.finish(request, FinishReason.STOP)
            elif len(request.generated) >= request.max_new_tokens:
                self.endings.finish(request, FinishReason.LENGTH)
            elif now >= request.deadline_s:
                self.endings.finish(request, FinishReason.LENGTH, truncated_by="deadline")
            else:
                request.advance(RequestEvent.COMMIT)
                served.enqueue_token(request, now)

    def _next_chunk(self, request: Request, served: Served, now: float) -> None:
        """A part of the prompt is in KV; nothing was sampled."""
        request.advance(RequestEvent.CHUNK)
        if now >= request.deadline_s:
            self.endings.expire(request)
        else:
            served.enqueue_prompt(request, now)

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

    def _lose(self, record: JobRecord, reason: FaultReason) -> None:
        """Nobody knows what the job did: its lanes and its engine serve nobody until the device was reset."""
        for request in record.requests:
            self._lose_lane(request, reason)
        self.engines[record.engine].quarantine(reason)
        self.effects.append(Quarantined(record.engine, reason))
        self.conclude_loss(reason)

    def _lose_lane(self, request: Request, reason: FaultReason) -> None:
        """The lane's content is unknown; its request ends."""
        assert request.lane is not None
        request.lane.lose()
        if isinstance(request.give_up, CancelReason):
            self.endings.drop(request)
        else:
            self.endings.fail(request, reason)

    def conclude_loss(self, reason: FaultReason) -> None:
        """Where no engine or no lane is left, nobody can be served any more: the device is lost."""
        has_engine = any(engine.usable for engine in self.engines.values())
        has_lane = any(served.lanes.usable for served in self.served.values())
        if self.fault is None and not (has_engine and has_lane):
            self._lose_device(reason)

    def _lose_device(self, reason: FaultReason) -> None:
        """Everybody is told, every lane that held something is Unknown, no engine gets work again."""
        self.fault = reason
        for engine in self.engines.values():
            if engine.usable:
                engine.quarantine(reason)
                self.effects.append(Quarantined(engine.engine, reason))
        for served in self.served.values():
            served.lanes.lose_all()
            served.generation.fault()
        for request in self.registry:
            if request.is_waiting:
                self.endings.refuse(request, device_failed(reason))
            elif request.state is RequestState.FINISHING:
                self.registry.move(request, RequestEvent.RELEASED)
            else:
                self.endings.fail(request, reason)
