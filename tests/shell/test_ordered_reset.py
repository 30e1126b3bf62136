"""An operator's reset of a device that serves: who is told what, and how the operator hears of its end."""

from __future__ import annotations

import pytest
import trio

from calculet_trio.core.policy import Policy, RecoveryPolicy
from calculet_trio.errors import DeviceLost, GenerationFailed, OperationFailed, OperationRefused, ServiceUnavailable
from calculet_trio.shell.operations import Unheard
from tests.shell.house import ask, asking, living, now, until

GATED = {
    "lanes": 2,
    "replies": [
        {"when": "gated", "tokens": ["a", {"text": "b", "gate": "g"}], "afterwards": "repeat"},
        {"when": "stuck", "tokens": ["a", {"text": "b", "fault": "stuck"}]},
        {"tokens": ["x"]},
    ],
}


class Lines(Unheard):
    """What an operator reads."""

    def __init__(self):
        self.lines = []

    def __call__(self, line):
        self.lines.append(line)


def policy(most=2):
    return Policy(recovery=RecoveryPolicy(max_resets_per_10min=most))


async def first_token(house, prompt, told, started):
    """A stream that is read to its end; what it ended with."""
    try:
        async with house.service.open(asking(prompt)) as handle:
            async for _ in handle:
                started.set()
    except (GenerationFailed, ServiceUnavailable) as failed:
        told.append(failed)


async def test_what_is_out_ends_first_then_the_device_is_reset_and_serves(nursery):
    told, started, report = [], trio.Event(), Lines()
    async with living(GATED, policy=policy()) as house:
        nursery.start_soon(first_token, house, "gated", told, started)
        await started.wait()
        results = []

        async def order():
            results.append(await house.alive._control.reset_device(report))

        async with trio.open_nursery() as operator:
            operator.start_soon(order)
            await until(lambda: house.service.health().status == "recovering")
            assert len(report.lines) == 1, "a job is out: nothing is reset"
            with pytest.raises(OperationRefused, match="another operator"):
                await house.alive._control.reset_device(report)
            house.runtime.gates.open_all()
        [result] = results
        assert result["reset_s"] >= 0
        await until(lambda: told)
        assert (told[0].reason, told[0].retryable) == ("operator_reset", True)
        assert report.lines[1:] == [
            "nothing is out; resetting the device",
            "making sure that it is quiet",
            "putting its models back, each proven by its golden run",
        ]
        assert (await ask(house.service, "hello"))[0] == "x"


async def test_a_spent_budget_refuses_and_nothing_changes():
    async with living(GATED, policy=policy(1)) as house:
        await house.alive._control.reset_device(Unheard())
        with pytest.raises(OperationRefused, match=r"budget is spent \(recovery.max_resets_per_10min is 1\)"):
            await house.alive._control.reset_device(Unheard())
        assert (await ask(house.service, "hello"))[0] == "x"
        assert house.alive._loop.snapshot().resets == 1


async def test_an_operator_who_goes_does_not_stop_it_and_the_next_one_is_heard():
    async with living(GATED, policy=policy()) as house:
        with trio.CancelScope() as impatient:
            impatient.cancel()
            await house.alive._control.reset_device(Unheard())
        await until(lambda: house.alive._loop.snapshot().resets == 1)
        await until(lambda: house.service.health().status == "ok")
        await house.alive._control.reset_device(Unheard())
        assert house.alive._loop.snapshot().resets == 2


async def test_a_job_that_never_ends_meanwhile_is_the_end_and_the_operator_is_told():
    heard = []

    async def order(house):
        try:
            await house.alive._control.reset_device(Unheard())
        except OperationFailed as failed:
            heard.append(str(failed))

    with pytest.RaisesGroup(DeviceLost, allow_unwrapped=True, flatten_subgroups=True):
        async with living(GATED, policy=policy(), job_s=0.3, overrun_s=0.1) as house:
            house.nursery.start_soon(first_token, house, "stuck", [], trio.Event())
            await until(lambda: house.runtime.gates.state().get("submitted", 0) == 2)
            house.nursery.start_soon(order, house)
            await until(lambda: heard)
    assert heard == ["the device was given up: stuck_wait"]


async def test_a_reset_that_fails_is_told_and_the_daemon_leaves(monkeypatch):
    heard = []
    with pytest.RaisesGroup(DeviceLost, allow_unwrapped=True, flatten_subgroups=True):
        async with living(GATED, policy=policy()) as house:
            monkeypatch.setattr(house.runtime, "reset_configuration", lambda: False)
            try:
                await house.alive._control.reset_device(Unheard())
            except OperationFailed as failed:
                heard.append(str(failed))
            await until(lambda: house.alive.is_lost)
    assert heard == ["the device was given up: unknown_dma"]


async def test_a_scripted_reply_goes_on_after_a_reset_where_it_was():
    """Twice in one reply, beside another that is replayed with it, and with a prompt that only begins like theirs."""
    replies = [
        {"when": "bad", "tokens": ["a", {"text": "b", "fault": "raise", "fault_times": 2}, "c", "c", "d"]},
        {"tokens": [{"text": "x", "times": 9}, "y"]},
    ]
    policy = Policy(recovery=RecoveryPolicy(max_resets_per_10min=9, replay=True))
    told = {}

    async def one(house, prompt):
        told[prompt] = (await ask(house.service, prompt))[0]

    async with living({"lanes": 3, "replies": replies}, policy=policy) as house:
        async with trio.open_nursery() as crowd:
            for prompt in ("bad", "well", "welll"):
                crowd.start_soon(one, house, prompt)
        assert now(house).resets == 2
        assert (await ask(house.service, "well"))[0] == "xxxxxxxxxy"
    assert told == {"bad": "abccd", "well": "xxxxxxxxxy", "welll": "xxxxxxxxxy"}
