"""CompletionDispatcher: brings each of the core's words about a request to that request's stream.

Source: SPEC section 3 (S §3 ``CompletionDispatcher``).
"""

from __future__ import annotations

from collections.abc import Callable

from calculet_trio.core.effects import Admit, Deliver, Drop, Fail, Finish, Place, Refuse
from calculet_trio.core.events import Cancelled, CancelReason, Event
from calculet_trio.ids import RequestId
from calculet_trio.shell.sampler_pool import SamplerPool
from calculet_trio.shell.stream_writer import StreamWriter
from calculet_trio.text.params import Output

RequestEffect = Place | Refuse | Admit | Deliver | Finish | Fail | Drop


class CompletionDispatcher:
    """The streams of all live requests.

    Args:
        samplers: whose text sides end with their requests.
        post: tells the core.
        backlog_bytes_max: see `StreamWriter`.
    """

    def __init__(self, samplers: SamplerPool, *, post: Callable[[Event], None], backlog_bytes_max: int) -> None:
        self._samplers = samplers
        self._post = post
        self._backlog_bytes_max = backlog_bytes_max
        self._streams: dict[RequestId, StreamWriter] = {}
        self._next_id = 1

    def __len__(self) -> int:
        return len(self._streams)

    def open(self) -> StreamWriter:
        """A stream for a new request, under an id that was never used."""
        request = RequestId(self._next_id)
        self._next_id += 1
        stream = StreamWriter(request, backlog_bytes_max=self._backlog_bytes_max, overflow=self._give_up)
        self._streams[request] = stream
        return stream

    def leave(self, stream: StreamWriter) -> None:
        """The handler is done with the stream; a request that has not ended is given up.

        Its entry stays until the core has spoken its end, so that late words find it.
        """
        if stream.is_closed:
            self._samplers.leave(stream.request)  # it may have joined after its end: nobody else would let it go
        else:
            self._give_up(stream.request)

    def perform(self, effect: RequestEffect) -> None:
        """Write the core's word; endings also end the request's text side and its entry here."""
        stream = self._streams[effect.request]
        match effect:
            case Deliver(_, output):
                assert isinstance(output, Output)
                stream.count_token()
                stream.write(output)
                return
            case Place() | Admit():
                stream.write(effect)
                return
            case Finish():
                held_back = self._samplers.held_back(effect.request)
                if held_back is not None:
                    stream.write(held_back)
        stream.write(effect)
        del self._streams[effect.request]
        self._samplers.leave(effect.request)

    def _give_up(self, request: RequestId) -> None:
        self._post(Cancelled(request, CancelReason.CLIENT_GONE))
