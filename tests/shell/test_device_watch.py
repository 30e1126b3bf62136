"""The device is asked now and then, beside its jobs; what cannot be asked any more is lost, what raises is not."""

from __future__ import annotations

import threading

import pytest

from calculet_trio.core.policy import AdmissionPolicy, ExecutorPolicy, Policy
from calculet_trio.errors import DeviceLost
from calculet_trio.runtimes.port import DeviceStatus
from calculet_trio.shell import device_watch, executor
from tests.shell.house import ask, living, until

SCRIPT = {"lanes": 2, "replies": [{"tokens": ["x"]}]}


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(device_watch, "LOOK_EVERY_S", 0.01)


def page(house):
    return house.metrics.expose("text/plain")[0].decode()


async def test_the_reading_is_in_the_metrics(monkeypatch):
    async with living(SCRIPT, watches_device=True) as house:
        status = DeviceStatus(True, "busy", jobs=1, counters={"ping": 41, "pong": 7})
        monkeypatch.setattr(house.runtime, "status", lambda: status)
        await until(lambda: 'calrt_queue_counter{queue="ping"} 41.0' in page(house))
        shown = page(house)
        assert "calrt_device_status 1.0" in shown
        assert "calrt_device_jobs 1.0" in shown
        assert "calrt_device_dram_used_bytes 0.0" in shown
        assert f"calrt_device_dram_total_bytes {2 * 2048 * 8}" in shown.replace(".0\n", "\n")
        monkeypatch.setattr(house.runtime, "status", lambda: DeviceStatus(False, "fault"))
        await until(lambda: "calrt_device_status 0.0" in page(house))
        assert (await ask(house.service, "hi"))[0] == "x", "a word is no reason to stop: what fails is"


async def test_a_device_that_is_not_well_is_doubted_until_it_is_well_and_told_of_once(monkeypatch):
    both = Policy(admission=AdmissionPolicy(max_inflight_jobs=2), executor=ExecutorPolicy(probation_jobs=1))
    async with living(SCRIPT, policy=both, watches_device=True) as house:
        assert house.service.health().engines == "ping_pong"
        monkeypatch.setattr(house.runtime, "status", lambda: DeviceStatus(False, "fault"))
        await until(lambda: house.service.health().doubt == "status_anomaly")
        for _ in range(3):
            await ask(house.service, "hi")
        await until(lambda: house.service.health().engines == "degraded")
        assert 'calrt_errors_total{code="status_anomaly"} 1.0' in page(house)
        monkeypatch.setattr(house.runtime, "status", lambda: DeviceStatus(True, "well"))
        await until(lambda: "calrt_device_status 1.0" in page(house))
        await ask(house.service, "hi")
        await until(lambda: house.service.health().engines == "ping_pong")


async def test_without_watching_nothing_of_the_device_is_claimed():
    async with living(SCRIPT) as house:
        await ask(house.service, "hi")
        assert "calrt_device_status" not in page(house)
        assert "calculet_fault_restarts_total 0.0" in page(house)


async def test_a_runtime_that_raises_is_asked_again(monkeypatch):
    asked = []

    def broken():
        asked.append(1)
        raise RuntimeError("register 7")

    async with living(SCRIPT, watches_device=True) as house:
        monkeypatch.setattr(house.runtime, "status", broken)
        await until(lambda: len(asked) > 2)
        assert (await ask(house.service, "hi"))[0] == "x"


async def test_a_status_that_never_returns_is_a_lost_device(monkeypatch):
    monkeypatch.setattr(device_watch, "CALL_S", 0.1)
    let_go = threading.Event()
    with pytest.RaisesGroup(DeviceLost, allow_unwrapped=True, flatten_subgroups=True):
        async with living(SCRIPT, watches_device=True) as house:
            monkeypatch.setattr(house.runtime, "status", lambda: let_go.wait(60))
            await until(lambda: house.alive.is_lost)
            let_go.set()


async def test_the_time_that_another_call_takes_is_not_counted(monkeypatch):
    """While a model loads, the device's other calls wait their turn, and are not stuck for that."""
    monkeypatch.setattr(device_watch, "CALL_S", 1.0)
    async with living({**SCRIPT, "load_s": 1.5}, watches_device=True) as house:
        assert not house.alive.is_lost
        assert executor.LOAD_CALL_S > 1.5
        assert (await ask(house.service, "hi"))[0] == "x"
