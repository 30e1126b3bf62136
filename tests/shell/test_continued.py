"""A retained sequence is gone on with: its tail is dropped by the runtime, or it is not used."""

from __future__ import annotations

import pytest
import trio

from calculet_trio.core import events as ev
from calculet_trio.core.effects import ContinueSequence
from calculet_trio.core.jobs import EngineId
from calculet_trio.ids import GenerationId, LaneId, RequestId, ReservationId, SequenceId
from calculet_trio.shell.blocking import ThreadRunner
from calculet_trio.shell.executor import DeviceExecutor, JobTimeout

GENERATION, LANE, REQUEST, RESERVATION, SEQUENCE = (
    GenerationId(1),
    LaneId(2),
    RequestId(3),
    ReservationId(4),
    SequenceId(5),
)
TAKEN = ev.SequenceAllocated(GENERATION, LANE, REQUEST, RESERVATION, SEQUENCE)
REFUSED = ev.SequenceRefused(GENERATION, LANE, REQUEST, RESERVATION, ev.FaultReason.RUNTIME_ERROR)


class Shortening:
    """A runtime that drops tails, does not, or raises."""

    def __init__(self, answer):
        self.answer = answer
        self.asked = []

    def remove_tail(self, *asked):
        self.asked.append(asked)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


async def answered(runtime, drop_tokens):
    """What the core is told."""
    send, receive = trio.open_memory_channel(1)
    executor = DeviceExecutor(
        runtime,
        (EngineId.PING,),
        settle=lambda _job, _finished: (),
        post=send.send_nowait,
        decide=send.send_nowait,
        announce=lambda: None,
        runner=ThreadRunner(),
        timeout=JobTimeout(),
        on_stuck=lambda _reason: None,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(executor.run)
        executor.control(ContinueSequence(GENERATION, LANE, REQUEST, RESERVATION, SEQUENCE, drop_tokens))
        with trio.fail_after(60):
            event = await receive.receive()
        nursery.cancel_scope.cancel()
    return event


@pytest.mark.parametrize(
    ("answer", "told"), [(True, TAKEN), (False, REFUSED), (OSError("no"), REFUSED)], ids=["done", "not done", "raised"]
)
async def test_a_tail_is_dropped_or_the_sequence_is_not_used(answer, told):
    runtime = Shortening(answer)
    assert await answered(runtime, 7) == told
    assert runtime.asked == [(GENERATION, SEQUENCE, 7)]


async def test_where_nothing_is_to_be_dropped_nothing_is_asked():
    runtime = Shortening(False)
    assert await answered(runtime, 0) == TAKEN
    assert runtime.asked == []
