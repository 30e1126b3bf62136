"""A request's way through the shell, over the scripted runtime with real threads."""

from __future__ import annotations

import random
from functools import partial

import attrs
import pytest
import trio

from calculet_trio.core.effects import FinishReason
from calculet_trio.core.lanes import LaneState
from calculet_trio.core.policy import AdmissionPolicy, Policy
from calculet_trio.errors import (
    CapacityExceeded,
    ContextLengthExceeded,
    DeviceLost,
    GenerationFailed,
    InvalidRequest,
    ModelNotFound,
    ServiceUnavailable,
)
from calculet_trio.shell.service import Ending
from tests.shell.house import ask, asking, idle, living, now, read, until

HELLO = {"replies": [{"tokens": ["Hel", "lo", " world"]}]}
ENDLESS = {"replies": [{"tokens": ["x"], "afterwards": "repeat"}]}


async def test_a_reply_arrives_whole_and_ends_with_stop():
    async with living(HELLO) as house:
        assert await ask(house.service) == ("Hello world", Ending(FinishReason.STOP))


async def test_length_ends_a_reply_at_its_last_token():
    async with living(ENDLESS) as house, house.service.open(asking("12345", max_new_tokens=7)) as handle:
        assert await read(handle) == "x" * 7
        assert handle.ending.reason is FinishReason.LENGTH
        assert handle.prompt_tokens == 5
        assert handle.timings.predicted_tokens == 7


async def test_what_a_stop_held_back_is_shown_when_length_ends_the_reply():
    async with living({"replies": [{"tokens": ["ab", "<|"], "afterwards": "repeat"}]}) as house:
        text, end = await ask(house.service, max_new_tokens=2, stop=("<|end",))
        assert (text, end.reason) == ("ab<|", FinishReason.LENGTH)


async def test_eight_conversations_share_batches_and_stay_apart():
    replies = [{"when": f"<{n}>", "tokens": [f"{n}.{k} " for k in range(20)]} for n in range(8)]
    texts = {}

    async def one(house, n):
        texts[n] = (await ask(house.service, f"<{n}>"))[0]

    async with living({"lanes": 8, "profiles": [1, 4, 8], "step_s": 0.002, "replies": replies}) as house:
        async with trio.open_nursery() as nursery:
            for n in range(8):
                nursery.start_soon(one, house, n)
        jobs = house.runtime.gates.state()["submitted"]
    assert texts == {n: "".join(f"{n}.{k} " for k in range(20)) for n in range(8)}
    assert jobs < 8 * 21 / 2, "far fewer jobs than tokens: they were batched"


async def test_leaving_gives_the_request_up_and_frees_its_lane():
    async with living({**ENDLESS, "lanes": 1}) as house:
        async with house.service.open(asking()) as handle:
            async for _ in handle:
                break
        await idle(house)
        assert (await ask(house.service, max_new_tokens=3))[0] == "xxx"


async def test_leaving_while_the_job_is_gated_frees_the_lane_when_it_has_drained():
    script = {"lanes": 1, "replies": [{"tokens": [{"text": "a", "gate": "g"}]}]}
    async with living(script) as house:
        with trio.CancelScope() as patience:

            async def lose_it():
                await until(lambda: now(house).lanes_by_state[LaneState.UPDATING] == 1)
                patience.cancel()

            house.nursery.start_soon(lose_it)
            async with house.service.open(asking()) as handle:
                await read(handle)
        assert now(house).lanes_by_state[LaneState.UPDATING] == 1
        house.runtime.gates.release("g")
        await idle(house)


async def test_a_full_queue_refuses_with_capacity_and_a_time_to_return():
    policy = Policy(admission=AdmissionPolicy(max_waiting_requests=1))
    script = {"lanes": 1, "replies": [{"tokens": [{"text": "a", "gate": "g"}]}]}
    outcomes = []

    async def one(house):
        try:
            outcomes.append((await ask(house.service))[0])
        except CapacityExceeded as refused:
            outcomes.append((refused.code, refused.retry_after_s))

    async with living(script, policy=policy) as house:
        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(one, house)
            await until(lambda: len(outcomes) == 4)
            assert outcomes == [("queue_full", 1.0)] * 4
            house.runtime.gates.release("g", 2)
        assert outcomes[4:] == ["a", "a"]
        await idle(house)


async def test_a_deadline_in_the_queue_is_unavailable_and_after_the_first_token_truncates():
    script = {"lanes": 1, "step_s": 0.02, **ENDLESS}
    async with living(script) as house, house.service.open(asking(deadline_s=0.3)) as long:
        with pytest.raises(ServiceUnavailable) as waited:
            await ask(house.service, deadline_s=0.05)
        assert waited.value.code == "deadline_exceeded"
        assert set(await read(long)) == {"x"}
        assert (long.ending.reason, long.ending.truncated_by) == (FinishReason.LENGTH, "deadline")


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (asking("x" * 100), ContextLengthExceeded),
        (asking(""), InvalidRequest),
    ],
)
async def test_a_prompt_that_cannot_be_served_is_invalid_and_leaves_nothing(request_, error):
    async with living({**HELLO, "context_tokens": 100}) as house:
        with pytest.raises(error):
            async with house.service.open(request_):
                pytest.fail("admitted")
        await idle(house)
        assert (await ask(house.service, "x" * 99))[1].reason is FinishReason.LENGTH


async def test_an_unknown_model_is_not_found():
    async with living(HELLO) as house:
        with pytest.raises(ModelNotFound):
            async with house.service.open(attrs.evolve(asking(), alias="nope")):
                pytest.fail("admitted")


async def test_while_loading_health_and_requests_say_so():
    async with living({**HELLO, "load_s": 0.3}, ready=False) as house:
        assert house.service.health().status == "loading"
        with pytest.raises(ServiceUnavailable) as refused:
            await ask(house.service)
        assert refused.value.code == "loading"
        await until(lambda: house.service.health().status == "ok")
        assert (await ask(house.service))[0] == "Hello world"


async def test_an_output_error_fails_its_requests_and_nobody_else():
    script = {"replies": [{"when": "bad", "tokens": ["a", {"text": "b", "fault": "output"}]}, *HELLO["replies"]]}
    async with living(script) as house:
        with pytest.raises(GenerationFailed) as failed:
            await ask(house.service, "bad")
        assert (failed.value.reason, failed.value.retryable) == ("output_error", True)
        assert (await ask(house.service, "good"))[0] == "Hello world"


async def test_a_busy_device_is_tried_again():
    script = {"replies": [{"tokens": ["a", {"text": "b", "fault": "busy", "fault_times": 3}, "c"]}]}
    async with living(script) as house:
        assert (await ask(house.service))[0] == "abc"


@pytest.mark.parametrize(("fault", "reason"), [("hang", "timeout"), ("lost", "device_lost")])
async def test_a_job_of_unknown_fate_tells_everybody_and_ends_the_process(fault, reason):
    script = {
        "lanes": 2,
        "profiles": [1],
        "replies": [
            {"when": "bad", "tokens": ["a", {"text": "b", "fault": fault}]},
            {"tokens": [{"text": "x", "delay_s": 0.01}], "afterwards": "repeat"},
        ],
    }
    reasons = []

    async def one(house, prompt):
        try:
            await ask(house.service, prompt)
        except GenerationFailed as failed:
            reasons.append(failed.reason)

    with pytest.RaisesGroup(DeviceLost, allow_unwrapped=True, flatten_subgroups=True):
        async with living(script, job_s=0.1) as house:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(one, house, "good")
                await until(lambda: now(house).running_requests == 1)
                nursery.start_soon(one, house, "bad")
            assert reasons == [reason, reason]
            assert house.service.health().status == "failed"
            with pytest.raises(ServiceUnavailable):
                await ask(house.service)


async def test_draining_refuses_what_waits_and_lets_streams_end():
    script = {"lanes": 1, "replies": [{"tokens": [{"text": "a", "gate": "g"}, "b", "c"]}]}
    seen = {}

    async def one(house, name):
        try:
            seen[name] = (await ask(house.service))[0]
        except ServiceUnavailable as refused:
            seen[name] = refused.code

    async with living(script) as house, trio.open_nursery() as nursery:
        nursery.start_soon(one, house, "runs")
        await until(lambda: now(house).running_requests == 1)
        nursery.start_soon(one, house, "waits")
        await until(lambda: now(house).waiting_requests == 1)
        house.alive._begin_drain(5.0)
        await until(lambda: seen)
        assert seen == {"waits": "draining"}
        assert house.service.health().status == "draining"
        house.runtime.gates.release("g")
    assert seen == {"waits": "draining", "runs": "abc"}


async def test_the_drain_time_ends_streams_with_an_error():
    failed = []

    async def one(house):
        try:
            await ask(house.service)
        except GenerationFailed as error:
            failed.append((error.reason, error.retryable))

    async with living({"lanes": 1, "step_s": 0.01, **ENDLESS}, drain_s=0.1) as house:
        house.nursery.start_soon(one, house)
        await until(lambda: now(house).running_requests == 1)
    assert failed == [("shutdown", True)]


async def test_an_unread_backlog_gives_the_request_up():
    async with living({"lanes": 1, **ENDLESS}, backlog_bytes_max=1000) as house:
        async with house.service.open(asking()):
            await idle(house)  # nobody reads, and the lane comes back all the same
        assert 'calculet_requests_total{outcome="cancelled"} 1.0' in house.metrics.expose("")[0].decode()


async def test_metrics_add_up():
    async with living(HELLO) as house:
        for _ in range(3):
            await ask(house.service)
        await ask(house.service, max_new_tokens=1)
        await idle(house)
        text = house.metrics.expose("text/plain")[0].decode()
        assert 'calculet_requests_total{outcome="stop"} 3.0' in text
        assert 'calculet_requests_total{outcome="length"} 1.0' in text
        assert "vllm:num_requests_running 0.0" in text
        assert "calculet_generated_tokens_total 13.0" in text


@pytest.mark.parametrize("seed", range(4))
async def test_random_departures_leave_nothing_behind(seed):
    rng = random.Random(seed)
    script = {"lanes": 4, "profiles": [1, 2, 4], "step_s": 0.001, **ENDLESS}

    async def one(house, patience_s, tokens):
        with trio.move_on_after(patience_s):
            text, _ = await ask(house.service, "p" * rng.randrange(1, 50), max_new_tokens=tokens)
            assert text == "x" * tokens

    async with living(script) as house:
        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(partial(one, house, rng.random() * 0.4, rng.randrange(1, 40)))
        await idle(house)
        counters = house.runtime.gates.state()
        assert counters.get("allocated") == counters.get("released"), "on a busy machine all may have left before"
