"""The daemon as a process of its own, on the emulator of the board's runtime; clients who know what they must hear."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import attrs

from calculet_trio.runtimes.emulated import END_TOKEN, continuation

START_S = 60
STOP_S = 60
REPLY_S = 60


def evidence_in(directory: Path) -> Path:
    """Where a daemon of this directory keeps its records."""
    return directory / "state" / "calculet-trio" / "evidence"


@attrs.frozen
class Heard:
    """One reply: its text so far, and the error that ended it."""

    text: str
    error: str | None


def expected(prompt: str, tokens: int) -> str:
    """What the emulated board says after a prompt."""
    return bytes(token for token in continuation(prompt.encode(), tokens) if token != END_TOKEN).decode()


class BoardDaemon:
    """One process, ready.

    Args:
        directory: for its files.
        library: the binding, linked with the emulator.
        package: what it serves; or its alias, where the arguments name a configuration.
        faults: for ``CALRT_EMULATOR_FAULTS``.
        arguments: further options of ``serve``.
        evidence: records of an earlier start: nothing is then tried before it serves.
    """

    def __init__(
        self,
        directory: Path,
        library: Path,
        package: Path | str,
        *,
        faults: str = "",
        arguments: Sequence[str] = (),
        evidence: Path | None = None,
    ) -> None:
        if evidence is not None:
            shutil.copytree(evidence, evidence_in(directory))
        command = [sys.executable, "-c", "from calculet_trio.cli.main import main; main()", "serve"]
        command += ["--runtime", "calrt", "--library", str(library), "--model", str(package), "--port", "0"]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "CALRT_EMULATOR_FAULTS": faults}
        environment["XDG_STATE_HOME"] = str(directory / "state")
        self._log = (directory / "stderr.log").open("w+")
        self.process = subprocess.Popen(
            [*command, *arguments], stdout=subprocess.PIPE, stderr=self._log, text=True, env=environment
        )
        slow = threading.Timer(START_S, self.process.kill)  # ends the reading below
        slow.start()
        assert self.process.stdout is not None
        ports = (re.search(r"is ready on http://127\.0\.0\.1:(\d+)", line) for line in self.process.stdout)
        self.port = next((int(found[1]) for found in ports if found), 0)
        slow.cancel()
        if not self.port:
            said = self.stderr()
            self.kill()
            raise AssertionError(f"the daemon did not start: {said}")

    def stderr(self) -> str:
        return Path(self._log.name).read_text()

    def get(self, path: str) -> str:
        """The body at ``path``."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=REPLY_S)) as connection:
            connection.request("GET", path)
            return connection.getresponse().read().decode()

    def hear(self, prompt: str, tokens: int) -> Heard:
        """Stream a completion to its end, whatever it is."""
        body = {"model": "emulated", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True}
        text = ""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=REPLY_S)) as connection:
            try:
                connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
                for event in _events(connection.getresponse()):
                    if "error" in event:
                        return Heard(text, str(event["error"]["code"]))
                    text += event["choices"][0]["text"]
            except (OSError, http.client.HTTPException) as left:  # the process ended under the stream
                return Heard(text, type(left).__name__)
        return Heard(text, None)

    def hear_many(self, prompts: Sequence[str], tokens: int) -> list[Heard]:
        """All of them at the same time."""
        with ThreadPoolExecutor(len(prompts)) as clients:
            return list(clients.map(lambda prompt: self.hear(prompt, tokens), prompts))

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.terminate()
        return self.wait()

    def wait(self) -> int:
        """The exit code."""
        return self.process.wait(STOP_S)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(STOP_S)
        self._log.close()
        assert self.process.stdout is not None
        self.process.stdout.close()


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """A stream's events; a refusal is one."""
    with response:
        if response.status != 200:
            yield json.loads(response.read())
            return
        for line in response:
            if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                yield json.loads(line[6:])


@contextmanager
def serving(directory: Path, library: Path, package: Path | str, **options: object) -> Iterator[BoardDaemon]:
    """See `BoardDaemon`; nothing of it is left afterwards."""
    daemon = BoardDaemon(directory, library, package, **options)
    try:
        yield daemon
    finally:
        daemon.kill()
