"""The job table: one ending each, ids never used twice, and Unknown jobs kept for good."""

from __future__ import annotations

import pytest

from calculet_trio.core.jobs import EngineId, JobEvent, JobRecord, JobState, JobTable, LaneWork, PrefillJob
from calculet_trio.core.profiles import PrefillProfile
from calculet_trio.core.transition import IllegalTransition
from calculet_trio.ids import JobId, LaneId, RequestId, SequenceId
from tests.core.shapes import GENERATION

BOTH = (EngineId.PING, EngineId.PONG)


def open_job(table: JobTable, engine: EngineId = EngineId.PING) -> JobRecord:
    work = LaneWork(RequestId(1), SequenceId(1), LaneId(0), 0, (1, 2), 0)
    return table.open(PrefillJob(table.new_id(), GENERATION, PrefillProfile("prefill", 8), work), (), engine, 5.0)


def test_ids_are_never_used_twice() -> None:
    table = JobTable()
    assert len({table.new_id() for _ in range(100)}) == 100


@pytest.mark.parametrize("event", JobEvent)
def test_a_job_ends_once(event: JobEvent) -> None:
    table = JobTable()
    record = open_job(table)
    assert (record.engine, record.submitted_s) == (EngineId.PING, 5.0)
    assert table.in_flight(record.job.job) is record
    assert table.in_flight_count == 1
    table.end(record, event)
    assert table.in_flight(record.job.job) is None, "a second end finds nothing"
    assert table.in_flight_count == 0
    for again in JobEvent:
        with pytest.raises(IllegalTransition):
            record.advance(again)


def test_an_unheard_of_job_is_not_in_flight() -> None:
    assert JobTable().in_flight(JobId(77)) is None


def test_an_engine_is_idle_until_it_has_a_job_and_again_when_that_has_ended() -> None:
    table = JobTable()
    assert table.idle_engine(BOTH) is EngineId.PING
    ping = open_job(table)
    assert table.idle_engine(BOTH) is EngineId.PONG
    open_job(table, EngineId.PONG)
    assert table.idle_engine(BOTH) is None
    table.end(ping, JobEvent.SETTLE)
    assert table.idle_engine(BOTH) is EngineId.PING
    assert table.idle_engine(()) is None


def test_an_unknown_job_holds_its_engine_for_good() -> None:
    table = JobTable()
    record = open_job(table)
    table.end(record, JobEvent.LOSE)
    assert record.state is JobState.UNKNOWN
    assert (table.in_flight_count, table.unknown_count) == (0, 1)
    assert table.idle_engine([EngineId.PING]) is None
