"""Faults that the emulator library brings about, and what becomes of job, lane and engine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from calculet_trio.core.events import FaultReason
from calculet_trio.ids import GenerationId, LaneId
from calculet_trio.packages.calbin_writer import EmulatedShape
from calculet_trio.runtimes.calrt import BoardOptions, CalrtRuntime
from calculet_trio.runtimes.calrt_emulator import CalrtEmulator
from calculet_trio.runtimes.calrt_library import CalrtLibrary
from calculet_trio.runtimes.port import Finished, NotAllocated, NotSubmitted, Submitted, Unknown
from tests.runtimes.contract import PROMPT, WAIT_S, Subject

GENERATION = GenerationId(1)
SMALL = EmulatedShape(batches=(1, 4), lanes=4, max_seq_len=64, vocab_size=300, kv_bytes_per_token=64)


@pytest.fixture
def emulator(calrt_library: CalrtLibrary) -> Iterator[CalrtEmulator]:
    controls = CalrtEmulator(calrt_library)
    yield controls
    controls.clear()


@pytest.fixture
def subject(
    calrt_library: CalrtLibrary,
    emulator: CalrtEmulator,
    emulated_package: Callable[[EmulatedShape], Path],
    tmp_path: Path,
) -> Iterator[Subject]:
    runtime = CalrtRuntime(calrt_library, BoardOptions(lock=tmp_path / "board.lock"))
    runtime.open()
    runtime.configure(GENERATION, emulated_package(SMALL))
    yield Subject(runtime, GENERATION)
    emulator.clear()
    runtime.close()


def outcome_of(subject: Subject, lane: int, timeout_s: float = WAIT_S) -> Finished | Unknown:
    submitted = subject.submit(subject.prefill_job(lane, subject.allocate(lane)))
    assert isinstance(submitted, Submitted), submitted
    return subject.runtime.wait(subject.engine, submitted.ticket, timeout_s)


def test_a_busy_device_takes_the_same_job_later(subject: Subject, emulator: CalrtEmulator) -> None:
    sequence = subject.allocate(0)
    emulator.plan("device_busy")
    assert subject.must_refuse(subject.prefill_job(0, sequence)) is FaultReason.DEVICE_BUSY
    subject.run(subject.prefill_job(0, sequence))


def test_an_unusable_output_commits_nothing_and_frees_the_lane(subject: Subject, emulator: CalrtEmulator) -> None:
    sequence = subject.allocate(0)
    emulator.plan("output_error")
    submitted = subject.submit(subject.prefill_job(0, sequence))
    assert isinstance(submitted, Submitted)
    outcome = subject.wait(submitted)
    assert isinstance(outcome, Finished)
    assert (outcome.failed, outcome.logits) == (FaultReason.OUTPUT_ERROR, None)
    subject.must_refuse(subject.one_token(0, sequence, 3, len(PROMPT)))
    assert subject.release(0, sequence)


@pytest.mark.parametrize("fault", ["ccu_fault", "pcie_error", "unknown_dma", "device_lost"])
def test_a_lost_job_keeps_its_lane_and_has_its_reason(subject: Subject, emulator: CalrtEmulator, fault: str) -> None:
    emulator.plan(fault)
    assert outcome_of(subject, 0) == Unknown(FaultReason(fault))
    assert isinstance(subject.runtime.allocate(GENERATION, LaneId(0), 8), NotAllocated)
    assert subject.runtime.can_allocate(GENERATION, 3)
    assert not subject.runtime.can_allocate(GENERATION, 4)


def test_a_counter_that_disagrees_is_an_anomaly_of_a_whole_answer(subject: Subject, emulator: CalrtEmulator) -> None:
    emulator.plan("counter_anomaly")
    outcome = outcome_of(subject, 0)
    assert isinstance(outcome, Finished)
    assert (outcome.failed, outcome.anomaly) == (None, FaultReason.COUNTER_ANOMALY)


def test_no_room_is_said_at_once_and_the_lane_stays_free(subject: Subject, emulator: CalrtEmulator) -> None:
    emulator.plan("no_capacity")
    assert subject.runtime.allocate(GENERATION, LaneId(0), 8) == NotAllocated(FaultReason.NO_CAPACITY)
    subject.allocate(0)


def test_a_release_that_is_not_confirmed_keeps_the_lane(subject: Subject, emulator: CalrtEmulator) -> None:
    sequence = subject.allocate(0)
    emulator.plan("unconfirmed")
    assert not subject.release(0, sequence)
    assert isinstance(subject.runtime.allocate(GENERATION, LaneId(0), 8), NotAllocated)


def test_a_bad_status_is_passed_on(subject: Subject, emulator: CalrtEmulator) -> None:
    emulator.plan("bad_status")
    assert not subject.runtime.status().ok
    assert subject.runtime.status().ok


# A process that has lost an engine opens no other board: these have one of their own.

STUCK = """
import sys
from pathlib import Path
from calculet_trio.core.jobs import EngineId
from calculet_trio.ids import GenerationId
from calculet_trio.runtimes.calrt import BoardOptions, CalrtRuntime
from calculet_trio.runtimes.calrt_emulator import CalrtEmulator
from calculet_trio.runtimes.calrt_library import load
from tests.runtimes.contract import Subject

library, package, lock = map(Path, sys.argv[1:])
runtime = CalrtRuntime(load(library, ()), BoardOptions(lock=lock))
runtime.open()
runtime.configure(GenerationId(1), package)
ping, pong = (Subject(runtime, GenerationId(1), engine) for engine in EngineId)
lost = ping.submit(ping.prefill_job(0, ping.allocate(0)))
print(runtime.wait(EngineId.PING, lost.ticket, 0.05))
print(ping.submit(ping.prefill_job(1, ping.allocate(1))))
print(runtime.allocate(GenerationId(1), 0, 8))
print(len(pong.run(pong.prefill_job(2, pong.allocate(2)))))
print(runtime.reset_configuration())
runtime.close()
print("closed", flush=True)
"""


def test_a_stuck_wait_loses_its_engine_for_good_spares_the_other_and_lets_the_process_end(
    calrt_library: CalrtLibrary, emulated_package: Callable[[EmulatedShape], Path], tmp_path: Path
) -> None:
    arguments = [calrt_library.path, emulated_package(SMALL), tmp_path / "lock"]
    answer = subprocess.run(
        [sys.executable, "-c", STUCK, *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "CALRT_EMULATOR_FAULTS": "stuck_wait"},
    )
    assert answer.stdout.splitlines() == [
        str(Unknown(FaultReason.TIMEOUT)),
        str(NotSubmitted(FaultReason.DEVICE_BUSY)),
        str(NotAllocated(FaultReason.NO_CAPACITY)),
        "1",
        "False",
        "closed",
    ], answer.stderr
    assert answer.returncode == 0
