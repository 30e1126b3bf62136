"""Faults: each comes about as it says, and where nothing fails nothing changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from calculet_trio.core.events import FaultReason
from calculet_trio.core.fault_kinds import FaultKind
from calculet_trio.core.jobs import EngineId
from calculet_trio.ids import GenerationId
from calculet_trio.runtimes.device_model import PrefillCurve, StepCurve, load_device
from calculet_trio.runtimes.emulated import EmulatedRuntime
from calculet_trio.runtimes.faults import HARSH, MIXED, WAIT, FaultyRuntime, Plan, Planned, Rates
from calculet_trio.runtimes.pace import VirtualPace
from calculet_trio.runtimes.port import Finished, NotAllocated, NotSubmitted, Submitted, Unknown
from tests.runtimes.contract import Subject, work

GENERATION = GenerationId(1)
TIMEOUT_S = 60.0
DEVICE = load_device(
    lanes=4,
    context_tokens=64,
    vocab_size=259,
    jitter=0.0,
    decode={1: StepCurve(1.0), 4: StepCurve(1.0)},
    prefill=PrefillCurve(1.0, 0.0),
)


class Board:
    """A board on which the named fault comes at its ``nth`` chance, with one prefilled sequence in lane 0."""

    def __init__(self, *planned: Planned) -> None:
        self.pace = VirtualPace(lambda: 0.0)
        self.runtime = FaultyRuntime(EmulatedRuntime(DEVICE, self.pace), Plan(planned), self.pace)
        self.runtime.open()
        self.runtime.configure(GENERATION, Path("emulated"))
        self.subject = Subject(self.runtime, GENERATION)
        self.sequence = self.subject.allocate(0)

    def prefill(self, lane: int = 0) -> Finished | Unknown | NotSubmitted:
        sequence = self.sequence if lane == 0 else self.subject.allocate(lane)
        taken = self.subject.submit(self.subject.prefill_job(lane, sequence))
        if isinstance(taken, NotSubmitted):
            return taken
        return self.runtime.wait(EngineId.PING, taken.ticket, TIMEOUT_S)


def test_without_a_fault_all_is_as_it_was() -> None:
    board = Board()
    outcome = board.prefill()
    assert isinstance(outcome, Finished)
    assert outcome.failed is None
    assert not outcome.lost_lanes
    assert board.runtime.status().ok
    assert board.subject.release(0, board.sequence)
    assert not board.runtime.happened


def test_busy_is_not_taken_and_a_later_try_is() -> None:
    board = Board(Planned(FaultKind.DEVICE_BUSY, 1))
    assert board.prefill() == NotSubmitted(FaultReason.DEVICE_BUSY)
    assert isinstance(board.prefill(), Finished)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (FaultKind.TIMEOUT, FaultReason.TIMEOUT),
        (FaultKind.STUCK, FaultReason.TIMEOUT),
        (FaultKind.CCU_FAULT, FaultReason.CCU_FAULT),
        (FaultKind.PCIE_ERROR, FaultReason.PCIE_ERROR),
        (FaultKind.UNKNOWN_DMA, FaultReason.UNKNOWN_DMA),
        (FaultKind.DEVICE_LOST, FaultReason.DEVICE_LOST),
    ],
)
def test_a_wait_without_an_answer_is_unknown(fault: FaultKind, reason: FaultReason) -> None:
    board = Board(Planned(fault, 1))
    assert board.prefill() == Unknown(reason)
    assert board.runtime.happened == {fault: 1}


def test_a_timeout_lasts_as_long_as_the_wait_and_a_stuck_call_longer() -> None:
    timed_out, stuck = Board(Planned(FaultKind.TIMEOUT, 1)), Board(Planned(FaultKind.STUCK, 1))
    timed_out.prefill()
    stuck.prefill()
    assert timed_out.pace.now() == TIMEOUT_S
    assert stuck.pace.now() > 1000 * TIMEOUT_S


def test_a_lost_device_answers_nothing_any_more() -> None:
    board = Board(Planned(FaultKind.DEVICE_LOST, 1))
    board.prefill()
    assert board.runtime.allocate(GENERATION, board.subject.shape.lanes - 1, 8) == NotAllocated(FaultReason.DEVICE_LOST)
    job = board.subject.prefill_job(0, board.sequence)
    assert board.subject.submit(job) == NotSubmitted(FaultReason.DEVICE_LOST)
    assert not board.subject.release(0, board.sequence)
    assert not board.runtime.status().ok
    assert not board.runtime.reset_configuration()


def test_a_late_completion_is_right_and_beyond_its_timeout() -> None:
    late = Board(Planned(FaultKind.LATE_COMPLETION, 1))
    assert isinstance(late.prefill(), Finished)
    assert late.pace.now() > 2 * TIMEOUT_S


def test_a_slow_drain_lasts_as_long_as_it_may() -> None:
    slow = Board(Planned(FaultKind.SLOW_DRAIN, 1))
    assert isinstance(slow.prefill(), Finished)
    assert slow.pace.now() == TIMEOUT_S


def test_a_completion_says_whose_it_is_and_a_wrong_one_does_not() -> None:
    for planned, is_own in (((), True), ((Planned(FaultKind.WRONG_COMPLETION, 1),), False)):
        board = Board(*planned)
        taken = board.subject.submit(board.subject.prefill_job(0, board.sequence))
        assert isinstance(taken, Submitted)
        outcome = board.runtime.wait(EngineId.PING, taken.ticket, TIMEOUT_S)
        assert isinstance(outcome, Finished)
        assert (outcome.ticket == taken.ticket) is is_own


def test_a_duplicate_is_the_completion_before() -> None:
    board = Board(Planned(FaultKind.DUPLICATE_COMPLETION, 1), Planned(FaultKind.DUPLICATE_COMPLETION, 2))
    first, second = board.prefill(), board.prefill(1)
    assert first is second
    assert board.runtime.happened == {FaultKind.DUPLICATE_COMPLETION: 1}, "before the first there is none to repeat"


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (FaultKind.STATUS_ANOMALY, FaultReason.STATUS_ANOMALY),
        (FaultKind.COUNTER_ANOMALY, FaultReason.COUNTER_ANOMALY),
    ],
)
def test_an_anomaly_is_named_and_the_output_is_whole(fault: FaultKind, reason: FaultReason) -> None:
    outcome = Board(Planned(fault, 1)).prefill()
    assert isinstance(outcome, Finished)
    assert (outcome.anomaly, outcome.failed) == (reason, None)
    assert outcome.logits is not None


def test_golden_and_reset_fail_when_planned() -> None:
    board = Board(Planned(FaultKind.GOLDEN_MISMATCH, 1), Planned(FaultKind.RESET_FAILED, 1))
    assert not board.runtime.golden(GENERATION).passed
    assert board.runtime.golden(GENERATION).passed
    assert not board.runtime.reset_configuration()
    assert board.runtime.reset_configuration()


def test_slow_is_right_and_late() -> None:
    plain, slow = Board(), Board(Planned(FaultKind.SLOW, 1))
    expected, outcome = plain.prefill(), slow.prefill()
    assert isinstance(expected, Finished)
    assert isinstance(outcome, Finished)
    assert np.array_equal(outcome.logits, expected.logits)
    assert slow.pace.now() > plain.pace.now()


def test_an_output_error_has_no_logits() -> None:
    outcome = Board(Planned(FaultKind.OUTPUT_ERROR, 1)).prefill()
    assert outcome == Finished(None, failed=FaultReason.OUTPUT_ERROR)


def test_one_lane_is_lost_and_named() -> None:
    outcome = Board(Planned(FaultKind.LOSE_LANE, 1)).prefill()
    assert isinstance(outcome, Finished)
    assert outcome.lost_lanes == {0}


def test_crossed_lanes_get_each_others_logits() -> None:
    rows = []
    for planned in ((), (Planned(FaultKind.CROSS_TALK, 3),)):
        board = Board(*planned)
        board.prefill()
        other = board.subject.allocate(1)
        board.subject.run(board.subject.prefill_job(1, other, (9, 9, 9)))
        wide = board.subject.shape.decode[-1]
        works = [work(0, board.sequence, 0, 97, 5), work(1, other, 1, 98, 3)]
        rows.append(board.subject.run(board.subject.decode_job(wide, 0, works)))
    plain, crossed = rows
    assert not np.array_equal(plain[0], plain[1])
    assert np.array_equal(crossed[[1, 0]], plain[[0, 1]])


def test_allocation_release_and_status_fail_when_planned() -> None:
    board = Board(
        Planned(FaultKind.NO_CAPACITY, 2), Planned(FaultKind.UNCONFIRMED, 1), Planned(FaultKind.BAD_STATUS, 1)
    )
    assert board.runtime.allocate(GENERATION, 1, 8) == NotAllocated(FaultReason.NO_CAPACITY)
    board.subject.allocate(1)
    assert not board.subject.release(0, board.sequence)
    assert not board.runtime.status().ok
    assert board.runtime.status().ok
    assert isinstance(board.subject.submit(board.subject.prefill_job(0, board.sequence)), Submitted)


def test_rates_come_about_as_often_as_they_say_and_the_same_again() -> None:
    def drawn(seed: int) -> list[FaultKind | None]:
        rates = Rates({FaultKind.SLOW: 0.1, FaultKind.TIMEOUT: 0.02, FaultKind.DEVICE_BUSY: 0.9}, seed=seed)
        return [rates.draw(WAIT) for _ in range(5000)]

    faults = drawn(1)
    assert faults == drawn(1) != drawn(2)
    shares = [faults.count(fault) / len(faults) for fault in (FaultKind.SLOW, FaultKind.TIMEOUT, FaultKind.DEVICE_BUSY)]
    assert shares == pytest.approx([0.1, 0.02, 0.0], abs=0.015)


def test_harsh_is_at_least_as_bad_as_mixed() -> None:
    assert all(HARSH[fault] >= rate for fault, rate in MIXED.items())
    assert set(HARSH) > set(MIXED)
