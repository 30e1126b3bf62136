"""Health tells of a job that outlived its own bound, and of nothing else: not of slow, long or no work."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import trio

from calculet_trio.core.jobs import LaneWork, PrefillJob
from calculet_trio.core.profiles import PrefillProfile
from calculet_trio.shell import progress
from calculet_trio.shell.executor import JobTimeout
from calculet_trio.shell.loading import STEP_S, LoadStep
from calculet_trio.shell.progress import Progress
from tests.shell.house import ask, living, until


def looking(due_s=None, *, step=None):
    """Progress over an executor whose calls are due then, and a load in that step."""
    executor = SimpleNamespace(due_s=due_s or {}, bounds_s={})
    return Progress(None, executor, SimpleNamespace(step=step))


def prefill(tokens):
    return PrefillJob(1, 1, PrefillProfile("p", 4096), LaneWork(1, 1, 0, 0, range(tokens), 0))


async def test_a_bound_grows_with_the_prompt_so_that_a_long_prefill_is_not_late(autojump_clock):
    timeout = JobTimeout(base_s=60, per_token_s=0.05)
    begun_s = trio.current_time()
    late = {tokens: looking({"engine ping": begun_s + timeout.of(prefill(tokens))}) for tokens in (1, 4096)}
    await trio.sleep(100)
    assert late[1].overdue() == "past its bound: engine ping"
    assert late[4096].overdue() is None
    await trio.sleep(200)
    assert late[4096].overdue() == "past its bound: engine ping"


async def test_an_empty_queue_is_never_late(autojump_clock):
    idle = looking()
    await trio.sleep(80_000)
    assert idle.overdue() is None


async def test_a_load_is_late_once_its_step_is(autojump_clock):
    loading = looking(step=LoadStep("configuring m", trio.current_time()))
    await trio.sleep(STEP_S - 1)
    assert loading.overdue() is None
    await trio.sleep(3)
    assert loading.overdue() == "past its bound: configuring m"


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(progress, "_LATENESS_S", 0.0)


async def test_a_job_past_its_own_timeout_turns_health_before_it_is_given_up_and_back_if_it_ends_well(
    monkeypatch, at_once
):
    let_go = threading.Event()
    async with living({"replies": [{"tokens": ["x"]}]}, job_s=0.05, overrun_s=60) as house:
        wait = house.runtime.wait
        monkeypatch.setattr(house.runtime, "wait", lambda *job: (let_go.wait(60), wait(*job))[1])
        told = []

        async def client():
            told.append((await ask(house.service, "hi"))[0])

        house.nursery.start_soon(client)
        await until(lambda: house.service.health().status == "failed")
        assert house.service.health().reason == "past its bound: engine ping"
        assert house.alive._loop.snapshot().status.word == "ok", "the job has not been given up"
        let_go.set()
        await until(lambda: told)
        assert (told, house.service.health().status) == (["x"], "ok")


async def test_a_slow_step_within_its_bound_is_well(at_once):
    script = {"replies": [{"tokens": [{"text": "x", "gate": "g"}]}]}
    async with living(script, job_s=60) as house:
        house.nursery.start_soon(ask, house.service, "hi")
        await until(lambda: house.runtime.gates.state().get("waiting", 0) == 1)
        assert house.service.health().status == "ok"
        house.runtime.gates.release("g")
