"""What goes out in one write. The framing itself is tested where replies are: ``test_chat.py``."""

from __future__ import annotations

import trio

from calculet_trio.api import sse
from calculet_trio.api.choices import Admitted, Choices, Ended, Event, Piece
from calculet_trio.core.effects import FinishReason
from calculet_trio.shell.service import Ending, Timings
from calculet_trio.text.params import Output

ENDED = Ended(0, Ending(FinishReason.STOP), Timings(0.0, 0.0, 0.0, 3), prompt_tokens=1, cached_tokens=0)


def frames(said: Piece | Ended | None) -> bytes:
    match said:
        case Piece(_, output):
            return sse.event(output.text)
        case Ended():
            return b""
        case None:
            return sse.DONE


async def writes(*events: Event) -> list[bytes]:
    send, receive = trio.open_memory_channel[Event](100)
    for event in events:
        send.send_nowait(event)
    response = await sse.stream(Choices(receive, 1), frames)
    async with response.response as body:
        written = [bytes(part) async for part in body]
    send.close()
    receive.close()
    return written


async def test_what_has_been_said_already_goes_out_in_one_write() -> None:
    pieces = [Piece(0, Output(text)) for text in "abc"]
    assert await writes(Admitted(0), *pieces, ENDED) == [b'data: "a"\n\ndata: "b"\n\ndata: "c"\n\n', sse.DONE]


async def test_but_no_more_than_a_writes_worth() -> None:
    large = "x" * sse.WRITE_BYTES
    written = await writes(Admitted(0), Piece(0, Output(large)), Piece(0, Output("b")), ENDED)
    assert [len(part) > sse.WRITE_BYTES for part in written] == [True, False, False]
