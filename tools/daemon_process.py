"""A daemon as a process of its own, over a script or a package, and what the system and the daemon say of it."""

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
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

import yaml

ROOT = Path(__file__).resolve().parent.parent
START_S = 120
STOP_S = 60
ANSWER_S = 60
HOUR_MS = 3_600_000
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
SERVE = [sys.executable, "-c", "from calculet_trio.cli.main import main; main()", "serve", "--config"]


class DaemonProcess:
    """Started when the block is entered, ready when it begins, stopped when it is left.

    Args:
        script: what the scripted runtime says; None for a package.
        board: an emulated board's numbers, ``calculet-device/v1``.
        package: the name or path of a package, for the CPU runtime unless ``device`` names another.
        device: keys of the section ``device`` that are to differ from their defaults.
        scheduler: keys of ``calculet-scheduler/v1`` that are to differ from their defaults.
        command: what is started, before the configuration's path.
        environment: what differs in it from this process's.
    """

    def __init__(
        self,
        script: dict[str, Any] | None = None,
        *,
        board: dict[str, Any] | None = None,
        package: str | None = None,
        device: dict[str, Any] | None = None,
        scheduler: dict[str, Any] | None = None,
        command: list[str] = SERVE,
        environment: dict[str, str] | None = None,
    ) -> None:
        self._script = script
        self._board = board
        self._package = package
        self._device = device or {}
        self._scheduler = {"schema": "calculet-scheduler/v1", **(scheduler or {})}
        self._command = command
        self._environment = environment or {}
        self.port = 0

    def __enter__(self) -> DaemonProcess:
        self._scratch = tempfile.TemporaryDirectory(prefix="ct")
        self._directory = Path(self._scratch.name)
        self._log = (self._directory / "log").open("w+")
        self._process = subprocess.Popen(
            [*self._command, str(self._configuration())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **self._environment},
        )
        try:
            self.port = self._read_port()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(STOP_S)

    @property
    def output(self) -> TextIO:
        """What it prints after it is ready."""
        assert self._process.stdout is not None
        return self._process.stdout

    @property
    def log(self) -> str:
        return Path(self._log.name).read_text()

    def _configuration(self) -> Path:
        model: dict[str, Any] = {"scheduler": str(self._write("scheduler.yaml", self._scheduler))}
        device: dict[str, Any] = {"runtime": "host"}
        if self._script is not None:
            script = {"control": str(self._control), "schema": "calculet-script/v1", "model": "m", **self._script}
            model["package"] = str(self._write("script.yaml", script))
            device = {"runtime": "scripted"}
        elif self._board is not None:
            device = {"runtime": "emulated", "emulated_board": str(self._write("board.yaml", self._board))}
            model["alias"] = "m"
        elif self._package is not None:
            model |= {"package": self._package, "alias": "m"}
        service = {
            "schema": "calculet-service/v1",
            "listen": {"port": 0},
            "device": {**device, **self._device},
            "admin_socket": str(self.admin_socket),
            "models": [model],
        }
        return self._write("service.yaml", service)

    def _write(self, name: str, document: dict[str, Any]) -> Path:
        path = self._directory / name
        path.write_text(yaml.safe_dump(document))
        return path

    @property
    def admin_socket(self) -> Path:
        return self._directory / "admin.sock"

    @property
    def _control(self) -> Path:
        return self._directory / "control.sock"

    def _read_port(self) -> int:
        slow = threading.Timer(START_S, self._process.kill)  # ends the reading below
        slow.start()
        try:
            for line in self.output:
                if found := re.search(r"is ready on http://127\.0\.0\.1:(\d+)", line):
                    return int(found[1])
        finally:
            slow.cancel()
        raise RuntimeError(f"the daemon did not start:\n{self.log}")

    def _end(self) -> None:
        self._process.kill()
        self._process.wait(STOP_S)
        self.output.close()
        self._log.close()
        self._scratch.cleanup()

    # ---- what the system says of it -----------------------------------------------------------------

    @property
    def cpu_s(self) -> float:
        """Processor time of all its threads so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * TICK_S

    @property
    def rss_bytes(self) -> int:
        found = re.search(r"^VmRSS:\s+(\d+) kB", Path(f"/proc/{self._process.pid}/status").read_text(), re.MULTILINE)
        assert found is not None, "the process is alive"
        return int(found[1]) * 1024

    @property
    def threads(self) -> list[str]:
        """The names of its threads; trio calls those that it keeps for later ``Trio thread N``."""
        tasks = Path(f"/proc/{self._process.pid}/task").iterdir()
        names = []
        for task in tasks:
            with suppress(FileNotFoundError, ProcessLookupError):  # it has ended since it was listed
                names.append((task / "comm").read_text().strip())
        return sorted(names)

    # ---- what it says of itself ---------------------------------------------------------------------

    def metrics(self) -> dict[str, float]:
        """Every series of ``/metrics``, by its name with its labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=ANSWER_S) as answer:
            lines = answer.read().decode().splitlines()
        pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}

    def script_counters(self) -> dict[str, int]:
        """The scripted runtime's: allocated, released, submitted, finished, resident."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(ANSWER_S)
            connection.connect(str(self._control))
            connection.sendall(b'{"state": true}\n')
            answer: dict[str, int] = json.loads(connection.makefile().readline())
        return answer


def waited_for(condition: Callable[[], bool], *, within_s: float) -> bool:
    """Whether ``condition`` came to hold in time."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.05)
    return True
