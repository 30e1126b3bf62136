"""The daemon as a process of its own, over the scripted runtime, and its control socket."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

START_S = 60
STOP_S = 30

SCRIPT: dict[str, Any] = {
    "schema": "calculet-script/v1",
    "model": "m",
    "lanes": 4,
    "profiles": [1, 4],
    "context_tokens": 2048,
    "replies": [
        {"when": "emoji", "tokens": [{"bytes": "f09f"}, {"bytes": "98b8"}, {"bytes": "c3"}, {"bytes": "a9"}, " ok"]},
        {"when": "lines", "tokens": ["a\u2028b", "\u2029c\u0085", "d\r\ne"]},
        {"when": "stop me", "tokens": ["Hi", "\nUs", "er", ": x"]},
        {"when": "gated", "tokens": [{"text": "one", "gate": "g"}, {"text": " two", "gate": "g"}]},
        {"when": "endless", "tokens": ["x "], "afterwards": "repeat"},
        {"when": "slowly", "tokens": [{"text": "x ", "delay_s": 0.02}], "afterwards": "repeat"},
        {"when": "broken", "tokens": ["a", "b", {"text": "c", "fault": "output"}]},
        {"tokens": ["Hello", " world"]},
    ],
}


def free_port() -> int:
    """A port that nobody listens at now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Daemon:
    """One process; ``base_url`` answers once it is ready.

    Args:
        directory: for its files; a short path, since a Unix socket's is at most 107 bytes long.
        script: what the runtime says; see ``runtimes/SCRIPTS.md``.
        config: sections of ``calculet-service/v1``, for what no option sets.
        scheduler: keys of ``calculet-scheduler/v1`` that are to differ from their defaults.
        arguments: further options of ``serve``.
        port: 0 takes any free one.
        awaits_ready: whether to wait for the model; else ``port`` must be named.
    """

    def __init__(
        self,
        directory: Path,
        script: Mapping[str, Any] = SCRIPT,
        *,
        config: Mapping[str, Any] | None = None,
        scheduler: Mapping[str, Any] | None = None,
        arguments: Sequence[str] = ("--drain", "5"),
        port: int = 0,
        awaits_ready: bool = True,
    ) -> None:
        self._control = directory / "control.sock"
        files = ("script", "scheduler", "config")
        script_file, scheduler_file, config_file = (directory / f"{name}.yaml" for name in files)
        script_file.write_text(yaml.safe_dump({**script, "control": str(self._control)}))
        scheduler_file.write_text(yaml.safe_dump({"schema": "calculet-scheduler/v1", **(scheduler or {})}))
        own = {
            "schema": "calculet-service/v1",
            "state": str(directory / "state"),
            "models": [{"package": str(script_file), "scheduler": str(scheduler_file)}],
        }
        config_file.write_text(yaml.safe_dump({**own, **(config or {})}))
        command = [sys.executable, "-c", "from calculet_trio.cli.main import main; main()", "serve"]
        command += ["--config", str(config_file), "--runtime", "scripted", "--port", str(port), *arguments]
        self._log = (directory / "stderr.log").open("w+")
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        try:
            self.port = self.read_port() if awaits_ready else port
        except BaseException:
            self.kill()
            raise

    def read_port(self) -> int:
        """Wait until it is ready; where it listens."""
        assert self.process.stdout is not None
        slow = threading.Timer(START_S, self.process.kill)  # ends the reading below
        slow.start()
        try:
            for line in self.process.stdout:
                if found := re.search(r"is ready on http://127\.0\.0\.1:(\d+)", line):
                    return int(found[1])
        finally:
            slow.cancel()
        raise AssertionError(f"the daemon did not start: {self.stderr()}")

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stderr(self) -> str:
        return Path(self._log.name).read_text()

    def control(self, **command: Any) -> dict[str, int]:
        """One command to the script; see ``runtimes/SCRIPTS.md``."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(30)
            connection.connect(str(self._control))
            connection.sendall(json.dumps(command).encode() + b"\n")
            answer = json.loads(connection.makefile().readline())
        assert answer.pop("ok"), (command, answer)
        return answer

    def terminate(self) -> None:
        """SIGTERM."""
        self.process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """The exit code; the log stays readable."""
        code = self.process.wait(STOP_S)
        self._close()
        return code

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.terminate()
        return self.wait()

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(STOP_S)
        self._close()

    def _close(self) -> None:
        self._log.close()
        if self.process.stdout is not None:
            self.process.stdout.close()


@contextmanager
def running(script: Mapping[str, Any] = SCRIPT, **options: Any) -> Iterator[Daemon]:
    """A process of the test's own, see `Daemon`; nothing of it is left afterwards."""
    with tempfile.TemporaryDirectory(prefix="ct") as directory:
        daemon = Daemon(Path(directory), script, **options)
        try:
            yield daemon
        finally:
            daemon.kill()
