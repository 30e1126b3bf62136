"""Sightings: each fault shows once among events and effects, with its place, and what is no fault shows nowhere."""

from __future__ import annotations

import pytest

from calculet_trio.core import effects as ef
from calculet_trio.core import events as ev
from calculet_trio.core.events import Doubt, FaultReason
from calculet_trio.core.fault_sightings import OF_REQUESTS, seen_in_effect, seen_in_event
from calculet_trio.core.faults import FAULTS
from calculet_trio.ids import GenerationId, JobId, LaneId, RequestId, SequenceId

JOB, GENERATION, LANE, SEQUENCE = JobId(7), GenerationId(1), LaneId(3), SequenceId(5)
_NO_NUMBER = ev.LaneResult(LANE, RequestId(9), None, failed=FaultReason.BAD_LOGITS)

SHOWN: list[tuple[ev.Event | ef.Effect, list[tuple[FaultReason, dict[str, object]]]]] = [
    (ev.JobFinished(JOB, GENERATION, (ev.LaneResult(LANE, RequestId(9), 65),)), []),
    (
        ev.JobFinished(JOB, GENERATION, (), frozenset({LaneId(3), LaneId(1)})),
        [(FaultReason.LANE_LOST, {"job": 7, "lanes": [1, 3]})],
    ),
    (
        ev.JobFinished(JOB, GENERATION, (), anomaly=FaultReason.STATUS_ANOMALY),
        [(FaultReason.STATUS_ANOMALY, {"job": 7})],
    ),
    (ev.JobFinished(JOB, GENERATION, (_NO_NUMBER,)), [(FaultReason.BAD_LOGITS, {"job": 7, "lane": 3})]),
    (
        ev.JobFinished(JOB, GENERATION, (_NO_NUMBER,), frozenset({LaneId(1)}), FaultReason.COUNTER_ANOMALY),
        [
            (FaultReason.COUNTER_ANOMALY, {"job": 7}),
            (FaultReason.LANE_LOST, {"job": 7, "lanes": [1]}),
            (FaultReason.BAD_LOGITS, {"job": 7, "lane": 3}),
        ],
    ),
    (ev.JobFailed(JOB, GENERATION, FaultReason.OUTPUT_ERROR), [(FaultReason.OUTPUT_ERROR, {"job": 7})]),
    (ev.JobNotSubmitted(JOB, GENERATION, FaultReason.DEVICE_BUSY), [(FaultReason.DEVICE_BUSY, {"job": 7})]),
    (ev.JobUnknown(JOB, GENERATION, FaultReason.TIMEOUT), [(FaultReason.TIMEOUT, {"job": 7})]),
    (
        ev.SequenceRefused(GENERATION, LANE, RequestId(9), 1, FaultReason.NO_CAPACITY),
        [(FaultReason.NO_CAPACITY, {"lane": 3})],
    ),
    (
        ev.SequenceReleased(GENERATION, LANE, SEQUENCE, confirmed=False),
        [(FaultReason.UNCONFIRMED_RELEASE, {"lane": 3})],
    ),
    (ev.SequenceReleased(GENERATION, LANE, SEQUENCE, confirmed=True), []),
    (ev.DeviceReset(FaultReason.GOLDEN_MISMATCH), [(FaultReason.GOLDEN_MISMATCH, {})]),
    (ev.DeviceReset(None), []),
    (ev.CallStuck(FaultReason.STUCK_WAIT), [(FaultReason.STUCK_WAIT, {})]),
    (ev.PairDoubted(Doubt.STATUS_ANOMALY, FaultReason.STATUS_ANOMALY), [(FaultReason.STATUS_ANOMALY, {})]),
    (ev.PairDoubted(Doubt.RECOVERY), []),
    (ev.TimePassed(), []),
    (ef.Vacated(GENERATION, overdue=True), [(FaultReason.SLOW_DRAIN, {"generation": 1})]),
    (ef.Vacated(GENERATION, overdue=False), []),
    *[
        (ef.Fail(RequestId(9), reason, retryable=True), [(reason, {"request": 9})])
        for reason in FaultReason
        if reason in OF_REQUESTS
    ],
    (ef.Fail(RequestId(9), FaultReason.TIMEOUT, retryable=True), []),
    (ef.Drained(), []),
]


@pytest.mark.parametrize(("told", "seen"), SHOWN)
def test_a_fault_shows_once_and_where_it_was(
    told: ev.Event | ef.Effect, seen: list[tuple[FaultReason, dict[str, object]]]
) -> None:
    assert list(seen_in_effect(told) if isinstance(told, ef.Effect) else seen_in_event(told)) == seen


def test_a_reason_of_requests_says_nothing_of_the_device() -> None:
    assert not any(FAULTS[reason].doubt for reason in OF_REQUESTS)
