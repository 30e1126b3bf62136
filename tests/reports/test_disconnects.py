"""Clients that leave, come again, stop reading: B44–B50."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.api.wire import Answer, Wire, post
from tests.reports.served import CHAT, Served, ask, reset_when_closed

WAITING, RUNNING = "vllm:num_requests_waiting", "vllm:num_requests_running"
ADMITTED = "vllm:request_queue_time_seconds_count"
CANCELLED = 'calculet_requests_total{outcome="cancelled"}'


async def fin(wire: Wire) -> None:
    await wire.aclose()


async def rst(wire: Wire) -> None:
    reset_when_closed(wire)
    await wire.aclose()


async def half_close(wire: Wire) -> None:
    """Taken for gone: ``api/CHOICES.md``."""
    await wire.stream.send_eof()


LEAVING = pytest.mark.parametrize("leave", [fin, rst, half_close])
STREAMING = pytest.mark.parametrize("stream", [False, True])


def told(answer: Answer) -> list[Any]:
    """A stream without what differs between two runs of the same."""
    events = answer.events()
    for event in events[:-1]:
        for name in ("id", "created", "timings"):
            event.pop(name, None)
    return events


async def left_in_prefill(served: Served, sent: bytes, leave: Any) -> None:
    """Send, leave while the first prefill is with the device, and see that nothing is made after it."""
    cancelled, finished = (await served.metrics())[CANCELLED], served.counter("finished")
    wire = await served.connect()
    await wire.stream.send_all(sent)
    await served.wait_for(waiting=1)
    await leave(wire)
    await served.noticed()
    async with served.freeing():
        await served.release("held")
    await served.until_metrics(**{CANCELLED: cancelled + 1})
    assert served.counter("finished") == finished + 1


@LEAVING
@STREAMING
async def test_b44_leaving_in_prefill_is_noticed(served: Served, leave: Any, stream: bool) -> None:
    await left_in_prefill(served, post(CHAT, ask("held", stream=stream)), leave)


@LEAVING
@STREAMING
async def test_b44_a_pipelined_request_does_not_hide_it(served: Served, leave: Any, stream: bool) -> None:
    await left_in_prefill(served, post(CHAT, ask("held", stream=stream)) * 2, leave)


@LEAVING
async def test_b45_leaving_after_two_tokens_ends_it_within_the_next(served: Served, leave: Any) -> None:
    finished = served.counter("finished")
    generated = (await served.metrics())["calculet_generated_tokens_total"]
    wire = await served.begin("held", stream=True)
    await served.release("held", 2)
    await served.wait_for(finished=finished + 2)
    await wire.read_until(b'"content":"x "')
    await served.wait_for(waiting=1)
    await leave(wire)
    await served.noticed()
    async with served.freeing():
        await served.release("held")
    assert served.counter("finished") == finished + 3
    assert (await served.metrics())["calculet_generated_tokens_total"] == generated + 2  # the last was for nobody


async def test_b45_retries_of_one_body_do_not_pile_up(served: Served) -> None:
    cancelled, submitted = (await served.metrics())[CANCELLED], served.counter("submitted")
    for attempt in range(3):
        wire = await served.begin("held")
        await served.until_metrics(**{RUNNING: 1.0 if attempt == 0 else 2.0})
        if attempt == 0:
            await served.wait_for(waiting=1)
        await wire.aclose()
        await served.noticed()
        await served.until_metrics(**{RUNNING: 1.0})
    # The first one's job is with the device still; the copies have come and gone.
    await served.until_metrics(**{CANCELLED: cancelled + 2, RUNNING: 1.0})
    await served.release("held")
    await served.until_metrics(**{CANCELLED: cancelled + 3})
    assert served.counter("submitted") == submitted + 1


async def test_b45_whoever_comes_right_after_a_close_is_served(served: Served) -> None:
    for _ in range(20):
        wire = await served.begin("endless", stream=True)
        await wire.read_until(b'"content":"x "')
        await wire.aclose()
        assert (await served.chat()).status == 200


async def test_b46_a_queued_client_that_leaves_disturbs_nobody(one_lane: Served) -> None:
    undisturbed = await one_lane.begin("other", stream=True)
    await one_lane.release("other", 50)
    expected = told(await undisturbed.read_answer())
    allocated, finished = one_lane.counter("allocated"), one_lane.counter("finished")
    stays = await one_lane.begin("other", stream=True)
    await one_lane.release("other", 10)
    await one_lane.wait_for(finished=finished + 10)
    leaves = await one_lane.begin("held", stream=True)
    await one_lane.until_metrics(**{WAITING: 1.0})
    await leaves.aclose()
    await one_lane.until_metrics(**{WAITING: 0.0})
    follows = await one_lane.begin("hi", stream=True)
    await one_lane.until_metrics(**{WAITING: 1.0})
    assert one_lane.counter("allocated") == allocated + 1
    await one_lane.release("other", 40)
    assert told(await stays.read_answer()) == expected
    assert (await follows.read_answer()).text() == "Hello world"
    assert one_lane.counter("allocated") == allocated + 2  # who left never reached the runtime


async def test_b46_a_stream_is_what_it_would_have_been_without_those_who_left_its_batch(served: Served) -> None:
    undisturbed = await served.begin("other", stream=True)
    await served.release("other", 50)
    expected = told(await undisturbed.read_answer())
    finished = served.counter("finished")
    stays = await served.begin("other", stream=True)
    await served.release("other", 10)
    await served.wait_for(finished=finished + 10)
    for _ in range(8):
        admitted = (await served.metrics())[ADMITTED]
        leaves = await served.begin("endless", stream=True)
        await served.until_metrics(**{ADMITTED: admitted + 1})
        await served.release("other", 4)  # so that its prefill, and steps of both together, get their turns
        await leaves.read_until(b'"content":"x "')
        await leaves.aclose()
        await served.noticed()
    await served.release("other", 8)
    assert told(await stays.read_answer()) == expected


async def test_b46_leaving_in_the_moment_another_ends_hurts_nobody(one_lane: Served) -> None:
    for _ in range(10):
        ends = await one_lane.begin("brief", stream=True)
        await one_lane.release("brief")
        await ends.read_until(b'"one"')
        leaves = await one_lane.begin("hi", stream=True)
        await one_lane.until_metrics(**{WAITING: 1.0})
        one_lane.daemon.control(release="brief")  # and at once, before anybody else runs here
        await leaves.aclose()
        await ends.read_until(b"data: [DONE]")
        assert (await one_lane.chat()).status == 200


async def test_b47_closing_one_stream_while_another_is_in_prefill_wedges_nothing(served: Served) -> None:
    rng = random.Random(47)

    async def meanwhile() -> None:
        for _ in range(rng.randrange(4)):
            assert (await served.get("/health")).json() == {"status": "ok"}

    for _ in range(50):
        closes = await served.begin("endless", stream=True)
        await closes.read_until(b'"content":"x "')
        prefills = await served.begin("b47 long", stream=rng.random() < 0.5)
        await meanwhile()
        await closes.aclose()
        await meanwhile()
        short = await served.begin("hi")
        await meanwhile()
        await served.release("b47")
        assert (await prefills.read_answer()).status == 200
        assert (await short.read_answer()).json()["choices"][0]["message"]["content"] == "Hello world"


@STREAMING
async def test_b49_who_half_closes_gets_no_answer_and_costs_no_token(served: Served, stream: bool) -> None:
    """The choice in ``api/CHOICES.md``: a closed connection looks the same."""
    wire = await served.connect()
    finished = served.counter("finished")
    await wire.stream.send_all(post(CHAT, ask("held", stream=stream)))
    await served.wait_for(waiting=1)
    await wire.stream.send_eof()
    assert await wire.read_to_end() == b""
    async with served.freeing():
        await served.release("held")
    assert served.counter("finished") == finished + 1


async def stalled(served: Served) -> Wire:
    """A reader that has read one token of a large stream and reads no more."""
    wire = await served.connect(receive_bytes=4096)
    await wire.stream.send_all(post(CHAT, ask("large", stream=True)))
    await wire.read_until(b"lll")
    return wire


async def test_b50_a_reader_that_stops_loses_its_lane_although_its_connection_stands(served: Served) -> None:
    resident, cancelled = served.resident_bytes(), (await served.metrics())[CANCELLED]
    wire = await stalled(served)
    await served.until_metrics(**{CANCELLED: cancelled + 1, "calrt_kv_used_batches": 0.0})
    assert (await served.chat()).status == 200
    assert served.resident_bytes() < resident + 32 * 2**20
    await wire.read_until(b'"code":"cancelled"')  # for its connection stands, and it may read on
    await wire.read_until(b"\r\n0\r\n\r\n")
    assert b"[DONE]" not in wire.raw


async def test_b50_its_connection_is_cut_after_the_write_stall_limit(one_lane: Served) -> None:
    cancelled = (await one_lane.metrics())[CANCELLED]
    await stalled(one_lane)
    one_lane.may_log("client_stalled")  # unless the kernel, whose limit is the same, has been faster
    await one_lane.let_go_of(sockets=0)
    await one_lane.until_metrics(**{CANCELLED: cancelled + 1})
