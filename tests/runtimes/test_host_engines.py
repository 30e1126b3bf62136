"""The CPU runtime's two engines: buffers of their own, one run at a time, and equal tokens whoever runs what."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from calculet_trio.core.events import FaultReason
from calculet_trio.core.jobs import EngineId, Job
from calculet_trio.ids import GenerationId
from calculet_trio.packages.manifest_parts import WeightForm
from calculet_trio.runtimes import host
from calculet_trio.runtimes.host import HostRuntime
from calculet_trio.runtimes.host_model import HostModel
from calculet_trio.runtimes.port import Finished, NotSubmitted, Submitted, Unknown
from tests.models import TinyModel
from tests.runtimes.conftest import MakePackage
from tests.runtimes.contract import PROMPT, WAIT_S, RuntimeContract, Subject

GENERATION = GenerationId(1)
PING, PONG = EngineId


@pytest.fixture
def subject(make_package: MakePackage) -> Iterator[Subject]:
    runtime = HostRuntime()
    runtime.open()
    runtime.configure(GENERATION, make_package(TinyModel(), WeightForm.FP32))
    yield Subject(runtime, GENERATION, PONG)
    runtime.close()


class TestContractOnPong(RuntimeContract):
    @pytest.fixture
    def subject(self, subject: Subject) -> Subject:
        return subject


def greedy(subject: Subject, engines: tuple[EngineId, ...], lane: int, tokens: int) -> list[int]:
    """A reply whose jobs go to the engines in turn."""
    sequence = subject.allocate(lane)
    job: Job = subject.prefill_job(lane, sequence, (*PROMPT, lane))
    said: list[int] = []
    for place in range(tokens):
        engine = engines[place % len(engines)]
        submitted = subject.runtime.submit(engine, job)
        assert isinstance(submitted, Submitted)
        outcome = subject.runtime.wait(engine, submitted.ticket, WAIT_S)
        assert isinstance(outcome, Finished)
        assert outcome.logits is not None
        said.append(int(outcome.logits[0].argmax()))
        job = subject.one_token(lane, sequence, said[-1], len(PROMPT) + 1 + place)
    assert subject.release(lane, sequence)
    return said


def test_whichever_engine_runs_a_sequence_its_tokens_are_the_same(subject: Subject) -> None:
    alone = greedy(subject, (PING,), 0, 12)
    assert greedy(subject, (PONG,), 0, 12) == alone
    assert greedy(subject, (PING, PONG), 0, 12) == alone


def test_two_threads_on_two_engines_say_what_one_says(subject: Subject) -> None:
    expected = [greedy(subject, (PING,), lane, 30) for lane in (0, 1)]
    with ThreadPoolExecutor(2) as threads:
        for _ in range(5):
            both = [threads.submit(greedy, subject, (engine,), lane, 30) for lane, engine in enumerate(EngineId)]
            assert [said.result() for said in both] == expected


def test_what_one_said_stays_while_the_other_computes_and_lies_on_a_page(subject: Subject) -> None:
    sequences = [subject.allocate(lane) for lane in (0, 1)]
    outcomes = []
    for lane, engine in enumerate(EngineId):
        submitted = subject.runtime.submit(engine, subject.prefill_job(lane, sequences[lane], (7, 9 + lane)))
        assert isinstance(submitted, Submitted)
        outcomes.append(subject.runtime.wait(engine, submitted.ticket, WAIT_S))
        if lane == 0:
            assert isinstance(outcomes[0], Finished)
            assert outcomes[0].logits is not None
            first = outcomes[0].logits.copy()
    ping, pong = (outcome.logits for outcome in outcomes if isinstance(outcome, Finished))
    assert ping is not None
    assert pong is not None
    assert np.array_equal(ping, first)
    assert not np.shares_memory(ping, pong)
    assert all(logits.ctypes.data % mmap.PAGESIZE == 0 for logits in (ping, pong))


def test_an_engine_takes_one_job_and_a_sequence_is_never_in_both(subject: Subject) -> None:
    sequence, other = subject.allocate(0), subject.allocate(1)
    job = subject.prefill_job(0, sequence)
    assert isinstance(subject.runtime.submit(PING, job), Submitted)
    assert subject.runtime.submit(PONG, job) == NotSubmitted(FaultReason.RUNTIME_ERROR)
    assert subject.runtime.submit(PING, subject.prefill_job(1, other)) == NotSubmitted(FaultReason.DEVICE_BUSY)


def test_whose_turn_does_not_come_in_time_has_written_nothing(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = threading.Event()
    let_go = threading.Event()
    run = host._run

    def slow_on_ping(model: HostModel, engine: EngineId, job: Job, options: object) -> object:
        if engine is PING:
            runs.set()
            assert let_go.wait(WAIT_S)
        return run(model, engine, job, options)

    monkeypatch.setattr(host, "_run", slow_on_ping)
    sequences = [subject.allocate(lane) for lane in (0, 1)]
    tickets = {}
    for lane, engine in enumerate(EngineId):
        submitted = subject.runtime.submit(engine, subject.prefill_job(lane, sequences[lane]))
        assert isinstance(submitted, Submitted)
        tickets[engine] = submitted.ticket
    with ThreadPoolExecutor(1) as thread:
        ping = thread.submit(subject.runtime.wait, PING, tickets[PING], WAIT_S)
        assert runs.wait(WAIT_S)
        assert subject.runtime.wait(PONG, tickets[PONG], 0.01) == Unknown(FaultReason.TIMEOUT)
        assert not subject.runtime.reset_configuration(), "a run is under way"
        let_go.set()
        assert isinstance(ping.result(), Finished)
    assert isinstance(subject.submit(subject.prefill_job(1, sequences[1])), Submitted), "it is as long as it was"
