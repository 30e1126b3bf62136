"""Choices side by side, without a server before them; with one: ``test_chat.py``, ``test_disconnect.py``."""

from __future__ import annotations

import pytest
import structlog
import trio
import trio.testing

from calculet_trio.api.choices import UNREAD_OUTPUTS, Ended, Piece, Silence, running
from calculet_trio.errors import CapacityExceeded
from calculet_trio.shell.service import InferenceRequest
from calculet_trio.text.params import ReplyParams, TextPrompt
from tests.api.fake_service import FakeService, endless, gated, said

REQUEST = InferenceRequest(alias="m", tenant="t", prompt=TextPrompt("x"), reply=ReplyParams())


async def test_what_is_read_comes_in_order_and_then_nothing() -> None:
    service = FakeService()
    service.script = lambda request: said("a", "b")
    async with running(service, [REQUEST]) as choices:
        first, second, end = [await choices.next() for _ in range(3)]
        assert isinstance(first, Piece)
        assert isinstance(second, Piece)
        assert (first.output.text, second.output.text) == ("a", "b")
        assert isinstance(end, Ended)
        assert await choices.next() is None
        assert choices.next_nowait() is None


async def test_no_more_is_taken_than_is_bounded_and_leaving_closes_all() -> None:
    service = FakeService()
    service.script = lambda request: endless()
    with structlog.testing.capture_logs() as logs:
        async with running(service, [REQUEST] * 3) as choices:
            await choices.admitted()
            await trio.testing.wait_all_tasks_blocked()
            assert service.active == 3
            assert service.tokens_run <= UNREAD_OUTPUTS + 3 + 3  # in the channel, in hand, and read for admission
    assert service.active == 0
    assert logs == []


async def test_a_refusal_is_raised_to_whoever_waits_for_admission() -> None:
    service = FakeService()
    service.refusal = CapacityExceeded("full", code="queue_full")
    async with running(service, [REQUEST] * 2) as choices:
        with pytest.raises(CapacityExceeded):
            await choices.admitted()
    assert service.active == 0


async def test_silence_is_broken_again_and_again_but_not_before_admission_nor_while_something_is_unread(
    autojump_clock: trio.testing.MockClock,
) -> None:
    service = FakeService()
    service.admission = trio.Event()
    script, opener = gated("a", "b")
    service.script = lambda request: script
    async with running(service, [REQUEST], silence_s=10) as choices:
        await trio.sleep(95)
        service.admission.set()
        await choices.admitted()
        admitted_s = trio.current_time()
        for number in (1, 2):
            assert isinstance(await choices.next(), Silence)
            assert trio.current_time() == pytest.approx(admitted_s + 10 * number)
        opener.send_nowait(None)
        opener.send_nowait(None)
        await trio.sleep(95)
        assert [type(choices.next_nowait()) for _ in range(4)] == [Piece, Piece, Ended, type(None)]
