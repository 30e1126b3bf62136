"""HTTP/1 for one connection: hypercorn's protocol without what lets one stranger hurt all others.

hypercorn 0.18 upgrades to HTTP/2 and to WebSocket when asked (and one byte too many after a WebSocket's request
ends the process), takes a request with two lengths, and answers its own errors with an empty body.

Source: RFC 9112 sections 3.2, 6.1, 6.3; RFC 9110 section 7.8; CONVENTIONS.md traps 3–5; report B64.
"""

from __future__ import annotations

import re
from typing import Final

import h11
from hypercorn.events import Closed
from hypercorn.protocol.h11 import H11Protocol

from calculet_trio.api import strict_json
from calculet_trio.api.errors import plain

ABSOLUTE_TARGET: Final = re.compile(rb"https?://[^/?#]*", re.IGNORECASE)


class Http1Protocol(H11Protocol):
    """The protocol of one connection; everything that arrives is parsed by one task."""

    @property
    def is_head_pending(self) -> bool:
        """Whether bytes that arrive belong to a request whose head is not whole yet."""
        return self.connection.their_state is h11.IDLE

    @property
    def is_request_whole(self) -> bool:
        """Whether the present request has arrived to its end, so that what arrives now has to wait."""
        return self.connection.their_state not in (h11.IDLE, h11.SEND_BODY, h11.ERROR)

    async def take(self, data: bytes) -> None:
        """Take what arrived; a request that is refused closes the connection.

        **Cancellation**: may lose what arrived; the connection is over then.
        """
        self.connection.receive_data(data)
        try:
            await self._handle_events()
        except h11.RemoteProtocolError as error:
            await self._refuse(error.error_status_hint)

    async def end(self) -> None:
        """The connection is over: tell the handler of the request that is being answered, if one is."""
        if self.stream is not None:
            await self._close_stream()

    async def _check_protocol(self, event: h11.Request) -> None:
        """Raises `h11.RemoteProtocolError` for a request that must not reach the application."""
        if event.http_version not in (b"1.0", b"1.1"):  # the preface of HTTP/2 among them
            raise h11.RemoteProtocolError("not HTTP/1", error_status_hint=505)
        names = [name for name, _ in event.headers]
        if b"content-length" in names and b"transfer-encoding" in names:
            # Two parties that believe one length each see different requests: smuggling.
            raise h11.RemoteProtocolError("two lengths", error_status_hint=400)
        upgrades = b",".join(value for name, value in event.headers if name == b"upgrade").lower()
        if b"websocket" in upgrades:
            raise h11.RemoteProtocolError("no WebSocket here", error_status_hint=400)
        if names.count(b"host") > 1 or not _path(event.target).startswith(b"/"):
            raise h11.RemoteProtocolError("no single target", error_status_hint=400)

    async def _create_stream(self, request: h11.Request) -> None:
        target = _path(request.target)
        if target != request.target:
            request = h11.Request(
                method=request.method, target=target, headers=list(request.headers), http_version=request.http_version
            )
        await super()._create_stream(request)

    async def _refuse(self, status: int) -> None:
        if self.connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            await self._send_error_response(status)
        await self.send(Closed())

    async def _send_error_response(self, status_code: int) -> None:
        """Hypercorn's hook for its own refusals, which are to have the shape of ours."""
        error = plain(status_code, limit=f"{self.config.h11_max_incomplete_size} bytes" if status_code == 431 else "")
        body = strict_json.encode(error.as_object()).encode()
        headers = [(name.encode(), value.encode()) for name, value in error.headers.items()]
        headers += [(b"content-type", b"application/json; charset=utf-8"), (b"connection", b"close")]
        headers += [(b"content-length", str(len(body)).encode()), *self.config.response_headers("h11")]
        await self._send_h11_event(h11.Response(status_code=status_code, headers=headers))
        await self._send_h11_event(h11.Data(data=body))
        await self._send_h11_event(h11.EndOfMessage())


def _path(target: bytes) -> bytes:
    """A request's target as a path; the absolute form, which servers must accept, without scheme and host."""
    absolute = ABSOLUTE_TARGET.match(target)
    if absolute is None:
        return target
    rest = target[absolute.end() :]
    return rest if rest.startswith(b"/") else b"/" + rest
