"""Gates and counters of a scripted runtime, and the Unix socket through which a test works them.

One JSON object a line in, one a line out:

    {"release": "gate", "count": 3}                   let three jobs through the gate
    {"state": true}                                   all counters
    {"wait_for": {"released": 2}, "timeout_s": 5}     until a counter has reached a value, then as above

Counters: ``allocated, released, submitted, finished`` (sequences and jobs since the start), ``resident``
(sequences now), ``waiting`` (jobs before a gate now).
"""

from __future__ import annotations

import json
import socketserver
import threading
from collections import Counter
from pathlib import Path
from typing import Any

_LINE_BYTES_MAX = 65_536


class Gates:
    """Permits by gate name, and counters, behind one condition."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._permits: Counter[str] = Counter()
        self._counters: Counter[str] = Counter()
        self._open = False

    def count(self, **deltas: int) -> None:
        """Add to counters and wake who waits for them."""
        with self._changed:
            self._counters.update(deltas)
            self._changed.notify_all()

    def release(self, gate: str, count: int = 1) -> None:
        """Let ``count`` more jobs through."""
        with self._changed:
            self._permits[gate] += count
            self._changed.notify_all()

    def permits(self, gate: str) -> int:
        """How many may still pass the gate."""
        with self._changed:
            return self._permits[gate]

    def open_all(self) -> None:
        """Nothing waits at any gate any more."""
        with self._changed:
            self._open = True
            self._changed.notify_all()

    def pass_through(self, gate: str, timeout_s: float) -> bool:
        """Wait for a permit and use it up; False if none came in time."""
        with self._changed:
            self._counters["waiting"] += 1
            self._changed.notify_all()
            passed = self._changed.wait_for(lambda: self._open or self._permits[gate] > 0, timeout_s)
            self._counters["waiting"] -= 1
            if passed and not self._open:
                self._permits[gate] -= 1
            return passed

    def sleep(self, seconds: float, timeout_s: float) -> bool:
        """Let time pass, unless all is opened; False if ``timeout_s`` is shorter."""
        with self._changed:
            self._changed.wait_for(lambda: self._open, min(seconds, timeout_s))
        return seconds <= timeout_s

    def wait_for_opening(self) -> None:
        """Block until all is opened: for ever, in a process that does not close its runtime."""
        with self._changed:
            self._changed.wait_for(lambda: self._open)

    def state(self) -> dict[str, int]:
        with self._changed:
            return dict(self._counters)

    def wait_for(self, wanted: dict[str, int], timeout_s: float) -> bool:
        """Until every named counter has reached its value; False if it has not in time."""
        with self._changed:
            return self._changed.wait_for(
                lambda: all(self._counters[name] >= value for name, value in wanted.items()), timeout_s
            )


class ControlServer:
    """Serves `Gates` on a Unix socket, a thread a connection."""

    def __init__(self, gates: Gates, path: Path) -> None:
        path.unlink(missing_ok=True)

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                while line := self.rfile.readline(_LINE_BYTES_MAX):
                    self.wfile.write(json.dumps(_answer(gates, line)).encode() + b"\n")

        self._server = socketserver.ThreadingUnixStreamServer(str(path), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _answer(gates: Gates, line: bytes) -> dict[str, Any]:
    try:
        command = json.loads(line)
        if not isinstance(command, dict) or not command.keys() & {"release", "state", "wait_for"}:
            raise ValueError("say release, state or wait_for")
        if "release" in command:
            gates.release(str(command["release"]), int(command.get("count", 1)))
        elif "wait_for" in command:
            wanted = {str(name): int(value) for name, value in command["wait_for"].items()}
            reached = gates.wait_for(wanted, float(command.get("timeout_s", 10.0)))
            return {"ok": reached, **gates.state()}
    except (ValueError, TypeError, AttributeError) as error:
        return {"ok": False, "error": str(error)}
    return {"ok": True, **gates.state()}
