"""Engine lines: a job begins when it is decided, and is drained; the synchronous baseline makes one call at a time."""

from __future__ import annotations

import math
import threading

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from calculet_trio.core.events import FaultReason
from calculet_trio.core.jobs import PrefillJob
from calculet_trio.core.policy import ExecutorPolicy, Policy
from calculet_trio.runtimes.port import Finished, Submitted, Ticket, Unknown
from calculet_trio.shell.blocking import ThreadRunner
from calculet_trio.shell.drain import EngineLine
from tests.shell.house import ask, living, until

FAR_S = 1e12


class Gated:
    """A runtime whose waits end when the test says so."""

    def __init__(self) -> None:
        self.submitted = []
        self.taken = threading.Semaphore(0)
        self.gate = threading.Semaphore(0)

    def submit(self, engine, job):
        self.submitted.append(job)
        self.taken.release()
        return Submitted(Ticket(len(self.submitted)))

    def wait(self, engine, ticket, timeout_s):
        assert self.gate.acquire(timeout=60)
        return Finished(None)


class Told:
    """A line over a gated runtime, and what it told."""

    def __init__(self) -> None:
        self.runtime = Gated()
        self.told = []
        self.announced = []
        self.read = []
        self.following = []
        self.held = None
        self.line = EngineLine(
            self.runtime,
            None,
            read_out=self._read_out,
            tell=self._hear,
            announce=lambda: self.announced.append((len(self.told), len(self.runtime.submitted))),
            runner=ThreadRunner(),
        )

    def _hear(self, job, outcome):
        self.told.append((job, outcome))
        if self.held is not None:
            assert self.held.wait(timeout=60)
        if self.following:
            self.line.begin(self.following.pop(0), timeout_s=60.0, bound_s=FAR_S)

    def _read_out(self, job, finished, taken_s):
        self.read.append(threading.current_thread())
        return f"{job} read"

    def begin(self, job, *, bound_s=60.0):
        self.line.begin(job, timeout_s=bound_s, bound_s=trio.current_time() + bound_s)
        self.line.watch()


async def test_jobs_follow_one_another_on_one_thread_without_a_turn_of_any_task():
    told = Told()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(told.line.run)
        await wait_all_tasks_blocked()
        for number in range(3):
            told.begin(number)
            # No checkpoint here: no task gets a turn before the job is submitted.
            assert told.runtime.taken.acquire(timeout=60)
            told.runtime.gate.release()
            await until(lambda number=number: len(told.told) == number + 1)
        nursery.cancel_scope.cancel()
    assert told.told == [(number, f"{number} read") for number in range(3)]
    assert len(set(told.read)) == 1
    assert told.read[0] is not threading.main_thread()


async def in_a_row(first, *, following):
    """What was told of jobs of which each is begun where the one before is told of, and nothing holds them up."""
    told = Told()
    told.following = list(following)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(told.line.run)
        told.begin(first)
        for _ in range(1 + len(following)):
            told.runtime.gate.release()
        await until(lambda: len(told.announced) == 4)
        nursery.cancel_scope.cancel()
    return told


async def test_a_job_that_follows_is_submitted_before_anybody_hears_of_the_one_before():
    told = await in_a_row("a", following=["b", "c"])
    assert told.runtime.submitted == ["a", "b", "c"]
    assert len(set(told.read)) == 1
    assert told.announced == [(0, 1), (1, 2), (2, 3), (3, 3), (3, 3)]  # each once it is out; nothing is; the end


async def test_a_bound_that_was_kept_for_a_job_before_is_moved_to_the_one_that_is_out():
    told = Told()
    told.following = ["second"]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(told.line.run)
        told.begin("first")
        told.runtime.gate.release()
        await until(lambda: "second" in told.runtime.submitted)
        assert told.line._alarm._moment_s < FAR_S
        told.line._alarm.set(0.0)  # the first one's bound comes, and finds another job, which has a later one
        await until(lambda: told.line._alarm._moment_s == told.line.bound_s == FAR_S)
        assert told.told == [("first", "first read")]
        told.runtime.gate.release()
        await until(lambda: len(told.told) == 2)
        assert told.line.bound_s is None
        nursery.cancel_scope.cancel()


async def test_a_bound_that_comes_between_two_jobs_is_looked_at_again():
    told = Told()
    told.held = threading.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(told.line.run)
        told.begin("first")
        told.runtime.gate.release()
        await until(lambda: told.told)
        told.line._alarm.set(0.0)
        await until(lambda: 0.0 < told.line._alarm._moment_s < math.inf)
        told.held.set()
        nursery.cancel_scope.cancel()


async def test_before_a_prefill_is_handed_over_what_was_before_is_announced():
    prefill = PrefillJob(None, None, None, None)
    told = await in_a_row("a", following=[prefill])
    assert told.announced == [(0, 1), (1, 1), (1, 2), (2, 2), (2, 2)]


async def test_cancelled_it_stays_with_the_job_that_is_out_and_begins_no_other():
    told = Told()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(told.line.run)
        told.begin("out")
        await until(lambda: told.runtime.submitted)
        nursery.cancel_scope.cancel()
        with trio.CancelScope() as after:
            after.shield = True
            await wait_all_tasks_blocked()
            assert told.told == []
            told.runtime.gate.release()
            await until(lambda: told.told)
            told.begin("late")
    assert told.told == [("out", "out read")]
    assert told.runtime.submitted == ["out"]


async def test_a_job_past_its_bound_is_unknown_and_its_thread_reads_nothing_when_it_wakes():
    told = Told()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(told.line.run)
        told.begin("stuck", bound_s=0.01)
        await until(lambda: told.told)
        nursery.cancel_scope.cancel()
    assert told.told == [("stuck", Unknown(FaultReason.STUCK_WAIT))]
    stuck = [thread for thread in threading.enumerate() if "run_sync" in thread.name]
    told.runtime.gate.release()
    await until(lambda: all("run_sync" not in thread.name for thread in stuck))
    assert told.read == []


async def test_a_bound_is_the_jobs_own_and_an_idle_engine_has_none():
    told = Told()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(told.line.run)
        told.begin("first", bound_s=30.0)
        assert told.line.bound_s == pytest.approx(trio.current_time() + 30.0, abs=10.0)
        told.runtime.gate.release()
        await until(lambda: told.told)
        assert told.line.bound_s is None
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("synchronous", [False, True])
async def test_the_baseline_says_the_same_and_makes_one_call_at_a_time(synchronous, monkeypatch):
    script = {
        "lanes": 2,
        "replies": [{"when": "a", "tokens": ["one ", {"text": "two", "delay_s": 0.2}]}, {"tokens": ["x"]}],
    }
    under_way = []
    beside = set()

    def noted(runtime, name):
        call = getattr(runtime, name)

        def noting(*args):
            beside.update((name, other) for other in under_way)
            under_way.append(name)
            try:
                return call(*args)
            finally:
                under_way.remove(name)

        monkeypatch.setattr(runtime, name, noting)

    texts = {}

    async def one(prompt):
        texts[prompt] = (await ask(house.service, prompt))[0]

    policy = Policy(executor=ExecutorPolicy(synchronous=synchronous))
    async with living(script, policy=policy) as house:
        for name in ("submit", "wait", "allocate", "release"):
            noted(house.runtime, name)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one, "a")
            await until(lambda: under_way == ["wait"] and house.runtime.gates.state()["submitted"] >= 2)
            nursery.start_soon(one, "b")
    assert texts == {"a": "one two", "b": "x"}
    assert (("allocate", "wait") in beside) is not synchronous
    assert not synchronous or beside == set()
