"""What is remembered is bounded, and its times survive a clock that is set back."""

from __future__ import annotations

from calculet_trio.core.events import FaultReason
from calculet_trio.core.fault_record import (
    FAULTS_MAX,
    RESET_WINDOW_S,
    RESETS_MAX,
    FaultMemory,
    FaultRecord,
    Holding,
    Quarantine,
)
from calculet_trio.core.jobs import EngineId

NOW = 1_800_000_000.0


def fault(at_s=NOW, **changes):
    return FaultRecord(happened_unix_s=at_s, reason=FaultReason.TIMEOUT, **changes)


def test_faults_and_resets_are_bounded_and_the_latest_stay():
    memory = FaultMemory()
    for number in range(FAULTS_MAX + 3):
        memory = memory.with_fault(fault(NOW + number))
    for number in range(RESETS_MAX + 3):
        memory = memory.with_reset_begun(NOW + number)
    assert [len(memory.faults), len(memory.resets)] == [FAULTS_MAX, RESETS_MAX]
    assert memory.faults[-1].happened_unix_s == NOW + FAULTS_MAX + 2
    assert memory.resets[0].began_unix_s == NOW + 3


def test_a_reset_counts_for_ten_minutes_whether_it_ended_or_not():
    memory = FaultMemory().with_reset_begun(NOW).with_reset_begun(NOW + 100)
    memory = memory.with_reset_ended(succeeded=True, took_s=3.0)
    assert [reset.succeeded for reset in memory.resets] == [None, True]
    assert memory.resets[-1].took_s == 3.0
    assert memory.reset_ages_s(NOW + 200) == (200.0, 100.0)
    assert memory.reset_ages_s(NOW + RESET_WINDOW_S) == (500.0,)


def test_a_clock_that_was_set_back_forgets_no_reset_and_keeps_none_for_ever():
    written = FaultMemory().with_reset_begun(NOW)
    year_before = NOW - 365 * 86_400
    read = written.settled_at(year_before)
    assert read.reset_ages_s(year_before) == (0.0,)
    assert read.reset_ages_s(year_before + RESET_WINDOW_S) == ()
    assert written.reset_ages_s(year_before) == (0.0,), "set back while the process runs"


def test_the_device_is_held_and_given_back_or_left_behind():
    held = FaultMemory().held(NOW)
    assert held.holding == Holding(since_unix_s=NOW)
    assert held.given_back().holding is None
    quarantine = Quarantine(jobs=1, lanes=4)
    left = held.left_behind(fault(NOW + 5, engine=EngineId.PING, quarantine=quarantine))
    assert left.holding == Holding(since_unix_s=NOW, lost_to=FaultReason.TIMEOUT, quarantine=quarantine)
    assert [left.restarts, len(left.faults)] == [1, 1]
    assert FaultMemory().left_behind(fault()).holding.since_unix_s == NOW, "lost before it was ever held"


def test_an_empty_quarantine_says_so():
    assert Quarantine().is_empty
    assert not Quarantine(buffers=1).is_empty
