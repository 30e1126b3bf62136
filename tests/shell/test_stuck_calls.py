"""A device call that never returns is left behind: clients are told, nothing of it is freed, and the daemon ends."""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import partial

import attrs
import pytest
import trio
import trio.testing

from calculet_trio.core.events import FaultReason
from calculet_trio.core.policy import ExecutorPolicy, Policy
from calculet_trio.errors import DeviceLost, GenerationFailed, ServiceUnavailable
from calculet_trio.runtimes.port import Finished, Submitted, Ticket, Unknown
from calculet_trio.runtimes.scripted import ScriptedRuntime
from calculet_trio.shell import drain, executor, lifecycle
from calculet_trio.shell.blocking import ThreadRunner
from tests.shell.house import ask, asking, living, silence, until

SOON = {"job_s": 0.05, "overrun_s": 0.05}


def script(fault):
    return {"lanes": 2, "replies": [{"when": "bad", "tokens": ["a", {"text": "b", "fault": fault}]}, {"tokens": ["x"]}]}


def device_lost():
    return pytest.RaisesGroup(DeviceLost, allow_unwrapped=True, flatten_subgroups=True)


async def outcome_of(house, prompt, told):
    try:
        told.append((await ask(house.service, prompt))[0])
    except (GenerationFailed, ServiceUnavailable) as error:
        told.append(type(error))


async def test_a_job_that_ignores_its_timeout():
    told = []
    with device_lost():
        async with living(script("stuck"), **SOON) as house:
            await outcome_of(house, "bad", told)
            assert told == [GenerationFailed]
            assert house.alive.is_lost
            assert house.service.health().status == "failed"


async def test_a_drain_waits_no_longer_than_the_jobs_bound():
    told = []
    with device_lost():
        async with living(script("stuck"), drain_s=0.0, **SOON) as house:
            house.nursery.start_soon(outcome_of, house, "bad", told)
            await until(lambda: house.runtime.gates.state().get("submitted", 0) == 2)
            house.alive._begin_drain(0.0)
    assert told == [GenerationFailed]


@pytest.mark.parametrize("call", ["allocate", "release"])
async def test_a_kv_call_that_never_returns(call, monkeypatch):
    monkeypatch.setattr(executor, "_KV_CALL_S", 0.1)
    let_go = threading.Event()
    told = []
    with device_lost():
        async with living(script("stuck")) as house:
            monkeypatch.setattr(house.runtime, call, lambda *_: let_go.wait(60))
            await outcome_of(house, "hello", told)
            await until(lambda: house.alive.is_lost)
            counted = 'calrt_errors_total{code="stuck_wait"} 1.0'
            await until(lambda: counted in house.metrics.expose("text/plain")[0].decode())
            let_go.set()
    assert told == [ServiceUnavailable if call == "allocate" else "x"]


async def test_who_streams_beside_a_call_that_never_returns_is_told_why(monkeypatch):
    monkeypatch.setattr(executor, "_KV_CALL_S", 0.1)
    let_go = threading.Event()
    replies = [{"when": "bad", "tokens": ["a", {"gate": "g", "text": "b"}]}]

    async def stream(house):
        async with house.service.open(asking("bad")) as handle:
            async for _ in handle:
                monkeypatch.setattr(house.runtime, "allocate", lambda *_: let_go.wait(60))
                house.nursery.start_soon(outcome_of, house, "other", [])

    with device_lost():
        async with living({"lanes": 2, "replies": replies}) as house:
            with pytest.raises(GenerationFailed) as told:
                await stream(house)
            let_go.set()
            house.runtime.gates.open_all()
    assert (told.value.reason, told.value.retryable) == ("stuck_wait", True)


@pytest.mark.parametrize("synchronous", [False, True])
async def test_nothing_waits_for_the_thread_that_was_left_behind(synchronous, monkeypatch):
    """A call that comes after it has no thread to run in: the process leaves without giving it its whole time."""
    monkeypatch.setattr(executor, "_KV_CALL_S", 0.5)
    policy = Policy(executor=ExecutorPolicy(synchronous=synchronous))
    let_go = threading.Event()
    calls, told = [], []

    def never(*_):
        calls.append("allocate")
        monkeypatch.setattr(executor, "_KV_CALL_S", 1e6)
        let_go.wait(60)

    with trio.fail_after(25), device_lost():
        async with living({"lanes": 3, **script("stuck")}, policy=policy) as house:
            monkeypatch.setattr(house.runtime, "allocate", never)
            async with trio.open_nursery() as crowd:
                for _ in range(3):
                    crowd.start_soon(outcome_of, house, "hello", told)
            assert house.alive.is_lost
    let_go.set()
    assert calls == ["allocate"]
    assert told == [ServiceUnavailable] * 3


async def test_a_synchronous_job_that_never_returns_is_not_waited_for_by_those_who_want_a_lane(monkeypatch):
    monkeypatch.setattr(executor, "_KV_CALL_S", 1e6)
    policy = Policy(executor=ExecutorPolicy(synchronous=True))
    told = []
    with trio.fail_after(25), device_lost():
        async with living(script("stuck"), policy=policy, **SOON) as house, trio.open_nursery() as crowd:
            crowd.start_soon(outcome_of, house, "bad", told)
            await until(lambda: house.runtime.gates.state().get("submitted", 0) == 2)
            crowd.start_soon(outcome_of, house, "hello", told)
    assert sorted(told, key=str) == [GenerationFailed, ServiceUnavailable]


async def test_a_synchronous_job_waits_for_a_call_beside_it_without_its_own_time_running(monkeypatch):
    policy = Policy(executor=ExecutorPolicy(synchronous=True))
    let_go = threading.Event()
    told = []
    async with living({"lanes": 2, "replies": [{"tokens": ["x"]}]}, policy=policy, **SOON) as house:
        house.nursery.start_soon(house.alive._executor.call_for_load, lambda: let_go.wait(60))
        async with trio.open_nursery() as crowd:
            crowd.start_soon(outcome_of, house, "hello", told)
            await trio.sleep(0.5)
            assert told == []
            let_go.set()
    assert told == ["x"]


async def test_a_load_call_that_never_returns(monkeypatch):
    monkeypatch.setattr(executor, "LOAD_CALL_S", 0.1)
    lost = []
    with device_lost():
        async with living({"load_s": 60, "replies": []}, ready=False) as house:
            lost.append(house.alive)
            await trio.sleep_forever()
    assert lost[0].is_lost


async def test_a_look_that_is_under_way_when_the_drain_ends_is_not_stuck():
    """At an end of a drain that comes while the device is asked how it is, nobody knows less of it than before."""
    asked, let_go = threading.Event(), threading.Event()
    async with living(script("stuck"), drain_s=0.0) as house:

        def slowly():
            asked.set()
            let_go.wait(60)
            return house.runtime.status()

        house.nursery.start_soon(partial(house.alive._executor.call, slowly, bound_s=60.0))
        await until(asked.is_set)
        house.alive._begin_drain(0.0)
        await trio.testing.wait_all_tasks_blocked()
        assert not house.alive.is_lost
        let_go.set()


class Sleeper:
    """A runtime whose wait returns when it is told to, whatever its timeout."""

    def __init__(self):
        self.let_go = threading.Event()
        self.returned = threading.Event()

    def submit(self, engine, job):
        return Submitted(Ticket(1))

    def wait(self, engine, ticket, timeout_s):
        assert self.let_go.wait(60)
        return Finished(None)


async def test_who_wakes_after_the_end_samples_nothing():
    runtime = Sleeper()
    ended = threading.Event()
    read = []

    class Runner(ThreadRunner):
        async def run(self, call, limiter):
            def call_and_tell():
                try:
                    return call()
                finally:
                    ended.set()

            return await super().run(call_and_tell, limiter)

    outcome = await drain.submit_and_drain(
        runtime,
        None,
        None,
        timeout_s=0.01,
        overrun_s=0.01,
        read_out=lambda finished, taken_s: read.append(finished),
        runner=Runner(),
        limiter=trio.CapacityLimiter(1),
    )
    assert outcome == Unknown(FaultReason.STUCK_WAIT)
    runtime.let_go.set()
    assert await trio.to_thread.run_sync(ended.wait, 60)
    assert read == []


async def test_cancellation_does_not_make_it_leave_earlier():
    runtime = Sleeper()
    outcomes = []

    async def drained():
        outcomes.append(
            await drain.submit_and_drain(
                runtime,
                None,
                None,
                timeout_s=30.0,
                overrun_s=30.0,
                read_out=lambda finished, taken_s: "read",
                runner=ThreadRunner(),
                limiter=limiter,
            )
        )

    limiter = trio.CapacityLimiter(1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(drained)
        await until(lambda: limiter.borrowed_tokens == 1)
        nursery.cancel_scope.cancel()
        runtime.let_go.set()
    assert outcomes == ["read"]


@pytest.mark.parametrize(("prompt", "closes"), [("bad", 0), ("good", 1)])
async def test_the_device_is_closed_only_if_nothing_may_still_use_it(prompt, closes, monkeypatch):
    async with living(script("stuck"), **SOON) as house:
        spent = house.alive._daemon
    runtime = ScriptedRuntime(spent.runtime.script)
    close = runtime.close
    calls = []
    monkeypatch.setattr(runtime, "close", lambda: calls.append("close"))

    async def one_request(service, stop, *, task_status):
        task_status.started(0)
        await until(lambda: service.health().status == "ok")
        with suppress(GenerationFailed):
            await ask(service, prompt)
        scope.cancel()

    with trio.CancelScope() as scope, suppress(DeviceLost):
        await lifecycle.run(attrs.evolve(spent, runtime=runtime, serve_http=one_request), signals=silence())
    assert calls == ["close"] * closes
    close()
