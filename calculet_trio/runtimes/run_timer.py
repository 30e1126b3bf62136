"""A bound on a running graph: one thread that asks onnxruntime to stop a run which is over its time.

onnxruntime looks at the request between two operators, so a run ends soon after it; a timer thread per
run would cost more than a whole small step.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Final

LOOK_S: Final = 0.05
"""How often the clock is looked at while something runs; a run is stopped at most so much too late."""


class RunTimer:
    """Stops one run at a time. Its thread sleeps while nothing runs."""

    def __init__(self) -> None:
        self._running = threading.Event()
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._options: Any = None
        self._deadline_s = 0.0
        self._thread = threading.Thread(target=self._look, name="host-run-timer", daemon=True)
        self._thread.start()

    def start(self, options: Any, timeout_s: float) -> None:
        """From now on, ``options.terminate`` becomes true when ``timeout_s`` have passed."""
        options.terminate = False
        with self._lock:
            self._options = options
            self._deadline_s = time.monotonic() + timeout_s
        self._running.set()

    def finish(self) -> bool:
        """The run has returned; whether it was asked to stop."""
        with self._lock:
            stopped: bool = self._options.terminate
            self._options = None
        return stopped

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        self._running.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._closed.is_set():
            self._running.wait()
            with self._lock:
                if self._options is None:
                    self._running.clear()  # under the lock: a start that comes now sets it again
                elif time.monotonic() >= self._deadline_s:
                    self._options.terminate = True
            self._closed.wait(LOOK_S)
