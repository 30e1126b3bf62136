"""Quiet is seen, not assumed: by two looks, within a bound, and by whoever takes the device."""

from __future__ import annotations

import pytest
import trio

from calculet_trio.core.events import FaultReason
from calculet_trio.core.fault_record import FaultRecord
from calculet_trio.core.policy import AdmissionPolicy, Policy
from calculet_trio.errors import DeviceLost, DeviceNotQuiet
from calculet_trio.runtimes.port import DeviceStatus
from calculet_trio.shell.fault_history import FaultHistory, read_memory
from calculet_trio.shell.quiet import see_quiet
from tests.shell.house import ask, living, until

WELL = DeviceStatus(True, "idle", jobs=0, counters={"ping": 7, "pong": 3})


def looks(*statuses):
    """A device that says these one after the other, and then the last for ever."""
    seen = []

    async def look():
        await trio.lowlevel.checkpoint()
        status = statuses[min(len(seen), len(statuses) - 1)]
        seen.append(status)
        if isinstance(status, Exception):
            raise status
        return status

    return look, seen


async def test_two_looks_alike_are_quiet(autojump_clock):
    look, seen = looks(WELL)
    await see_quiet(look, within_s=30)
    assert len(seen) == 2


async def test_a_device_that_comes_to_rest_is_waited_for(autojump_clock):
    busy = DeviceStatus(True, "busy", jobs=1)
    ill = DeviceStatus(False, "resetting", jobs=0)
    moved = DeviceStatus(True, "idle", jobs=0, counters={"ping": 8, "pong": 3})
    look, seen = looks(ill, busy, WELL, moved, moved)
    await see_quiet(look, within_s=30)
    assert seen == [ill, busy, WELL, moved, moved]


async def test_counters_seen_while_it_worked_prove_nothing(autojump_clock):
    working = DeviceStatus(True, "busy", jobs=1, counters=WELL.counters)
    look, seen = looks(working, WELL)
    await see_quiet(look, within_s=30)
    assert seen == [working, WELL, WELL]


@pytest.mark.parametrize(
    ("statuses", "said"),
    [
        ([DeviceStatus(True, "busy", jobs=2)], "after 30 s it still has 2 jobs"),
        ([DeviceStatus(False, "fault 7", jobs=0)], "after 30 s it says 'fault 7'"),
        (
            [DeviceStatus(True, "idle", jobs=0, counters={"ping": n, "pong": 3}) for n in range(1000)],
            "after 30 s its counters still move: ping",
        ),
        ([DeviceLost("stuck")], "it does not answer"),
    ],
)
async def test_what_does_not_come_to_rest_is_refused_in_time(statuses, said, autojump_clock):
    look, _ = looks(*statuses)
    began_s = trio.current_time()
    with pytest.raises(DeviceNotQuiet, match=said):
        await see_quiet(look, within_s=30)
    assert trio.current_time() - began_s <= 31


async def test_one_look_is_never_enough(autojump_clock):
    look, seen = looks(WELL)
    await see_quiet(look, within_s=0)
    assert len(seen) == 2


def left_behind(path):
    history = FaultHistory(path)
    history.begin()
    history.leave_behind(
        FaultRecord(happened_unix_s=history.now_unix_s(), reason=FaultReason.UNKNOWN_DMA, next_step="restart")
    )
    history.close()
    return FaultHistory(path)


def killed(path):
    history = FaultHistory(path)
    history.begin()
    history.close()
    return FaultHistory(path)


async def test_nothing_is_configured_before_the_device_is_quiet(tmp_path):
    path = tmp_path / "faults.json"
    async with living(
        {"left_over": 1, "replies": [{"tokens": ["x"]}]}, history=left_behind(path), ready=False
    ) as house:
        await until(lambda: house.alive.custody.waits_for is not None)
        assert house.alive.custody.waits_for.startswith("waiting for a quiet device")
        assert house.runtime.gates.state().get("configuring", 0) == 0
        assert house.service.health().status == "loading"
        house.runtime.gates.release("left_over")
        await until(lambda: house.service.health().status == "ok")
        assert (await ask(house.service, "hi"))[0] == "x"
        assert read_memory(path).holding is not None


@pytest.mark.parametrize(("left", "engines"), [(left_behind, "degraded"), (killed, "ping_pong")])
async def test_a_start_after_a_fault_begins_with_one_engine(tmp_path, left, engines):
    """A new process is no surer of the device than a reset is; one that was killed says nothing of its engines."""
    both = Policy(admission=AdmissionPolicy(max_inflight_jobs=2))
    script = {"replies": [{"tokens": ["x"]}]}
    async with living(script, history=left(tmp_path / "faults.json"), policy=both) as house:
        health = house.service.health()
        assert (health.engines, health.doubt) == (engines, "recovery" if engines == "degraded" else None)


async def test_a_device_that_is_never_quiet_is_not_configured(tmp_path):
    with pytest.RaisesGroup(DeviceNotQuiet, allow_unwrapped=True, flatten_subgroups=True):
        async with living(
            {"left_over": 2, "replies": []}, history=left_behind(tmp_path / "f.json"), ready=False, quiet_s=0.1
        ) as house:
            runtime = house.runtime
            await trio.sleep_forever()
    assert runtime.gates.state().get("configuring", 0) == 0
    assert read_memory(tmp_path / "f.json").holding.lost_to is FaultReason.UNKNOWN_DMA, "nobody took it over"
