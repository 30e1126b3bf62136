"""A hub on the loopback interface: as much of it as a download sees, and it can break off."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "c" * 40


class FakeHub:
    """Serves files under ``/OWNER/REPO/resolve/main/PATH``.

    ``cut_after_bytes`` makes every transfer end after so many bytes of its body; ``ranges`` are the ``Range``
    headers of the transfers that were asked for, None where there was none.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.etags: dict[str, str] = {}
        self.refusals: dict[str, tuple[int, str]] = {}
        self.cut_after_bytes: int | None = None
        self.ranges: list[str | None] = []
        self.endpoint = ""

    def add(self, path: str, content: bytes, *, etag: str | None = None) -> str:
        self.files[path] = content
        self.etags[path] = etag or hashlib.sha256(content).hexdigest()
        return self.etags[path]


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_arguments: Any) -> None:
        """A test's output is the test's."""

    def _found(self) -> tuple[str, bytes] | None:
        path = self.path.replace("/resolve/main", "", 1).lstrip("/")
        refusal = self.hub.refusals.get(path)
        if refusal is None and path in self.hub.files:
            return path, self.hub.files[path]
        status, code = refusal or (404, "EntryNotFound")
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()
        return None

    def do_HEAD(self) -> None:
        if found := self._found():
            self._begin(200, found[0], len(found[1]))

    def do_GET(self) -> None:
        if not (found := self._found()):
            return
        path, content = found
        asked = self.headers.get("Range")
        self.hub.ranges.append(asked)
        first = int(asked.removeprefix("bytes=").split("-")[0]) if asked else 0
        body = content[first:]
        span = f"bytes {first}-{len(content) - 1}/{len(content)}" if asked else None
        self._begin(206 if asked else 200, path, len(body), span)
        if self.hub.cut_after_bytes is not None and self.hub.cut_after_bytes < len(body):
            self.wfile.write(body[: self.hub.cut_after_bytes])
            self.hub.refusals[path] = (500, "")  # and gone it is, until the test brings it back
            self.close_connection = True
            return
        self.wfile.write(body)

    def _begin(self, status: int, path: str, body_bytes: int, span: str | None = None) -> None:
        self.send_response(status)
        self.send_header("ETag", f'"{self.hub.etags[path]}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(body_bytes))
        if span:
            self.send_header("Content-Range", span)
        self.end_headers()


@contextmanager
def running_hub() -> Iterator[FakeHub]:
    """A hub that listens until the block is left."""
    hub = FakeHub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
