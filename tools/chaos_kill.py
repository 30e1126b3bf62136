"""kill -9 of the real daemon process under load, and what its next start finds: again and again."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Final

import attrs
import trio
from chaos_client import Answer, Errand, ask, drawn_errand, ending, objection
from chaos_place import CALCULET, ROOT, Place

from calculet_trio.admin.audit import segments, verify
from calculet_trio.cli.admin_client import AdminClient
from calculet_trio.errors import OperationFailed, Unavailable
from calculet_trio.shell.fault_history import UnreadableHistory, read_memory

START_S: Final = 120.0
STOP_S: Final = 60.0
CLIENTS: Final = 12
IN_THE_START_EVERY: Final = 4
"""So often the process is killed before it is ready."""
TORN_EVERY: Final = 5
"""So often a power failure is played: half a line at the end of the audit log."""
OBJECTIONS_MAX: Final = 20


@attrs.define
class Kills:
    """So many times.

    Attributes:
        starts_s: from the start of a process until it served, in order.
        answers: how clients' requests ended, in a word.
        objections: what did not hold.
    """

    place: Place
    texts: dict[int, str]
    times: int
    seed: int = 0
    answers: Counter[str] = attrs.field(factory=Counter)
    starts_s: list[float] = attrs.field(factory=list)
    killed_early: int = 0
    torn: int = 0
    objections: list[str] = attrs.field(factory=list)
    _draw: random.Random = attrs.field(init=False)
    _began_s: float = 0.0

    def __attrs_post_init__(self) -> None:
        self._draw = random.Random(self.seed)

    async def run(self) -> Kills:
        """Kill, look, start; at the end stop it in order."""
        async with trio.open_nursery() as nursery:
            for number in range(CLIENTS):
                nursery.start_soon(self._client, number)
            for kill in range(1, self.times + 1):
                process = self._start()
                is_early = kill % IN_THE_START_EVERY == 0
                if is_early:
                    await trio.sleep(self._draw.uniform(0.0, self.starts_s[0]))
                    self.killed_early += 1
                elif await self._becomes_ready(process):
                    await self._work()
                process.kill()
                await self._ends(process, -signal.SIGKILL, early=is_early)
                self._look_at_disk(kill)
            process = self._start()
            if await self._becomes_ready(process):
                await self._work()
                process.terminate()
                await self._ends(process, 0)
            nursery.cancel_scope.cancel()
        self._look_at_end()
        return self

    def object(self, what: str) -> None:
        if len(self.objections) < OBJECTIONS_MAX:
            self.objections.append(f"after {len(self.starts_s)} starts: {what}")

    # ---- the process --------------------------------------------------------------------------------

    def _start(self) -> subprocess.Popen[str]:
        self._began_s = time.monotonic()
        log = (self.place.directory / "log").open("a")
        with log:
            return subprocess.Popen(
                [*CALCULET, "serve", "--config", str(self.place.configuration)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
            )

    async def _becomes_ready(self, process: subprocess.Popen[str]) -> bool:
        with trio.move_on_after(START_S) as patience:
            while not await trio.to_thread.run_sync(self._serves, abandon_on_cancel=True):
                if process.poll() is not None:
                    break
                await trio.sleep(0.05)
        if patience.cancelled_caught or process.poll() is not None:
            self.object(f"it did not start: exit code {process.poll()}\n{self._log_end()}")
            return False
        self.starts_s.append(time.monotonic() - self._began_s)
        await trio.to_thread.run_sync(self._look_at_running)
        return True

    def _serves(self) -> bool:
        try:
            models = AdminClient(self.place.admin_socket).call("GET", "/admin/models")["models"]
        except (Unavailable, OperationFailed):
            return False
        return bool(models) and models[0]["state"] == "ready"

    async def _work(self) -> None:
        """Let clients be served and an operator be at work for a random while."""
        before = self.answers.total()
        with trio.move_on_after(STOP_S):
            while self.answers.total() < before + 3:  # noqa: ASYNC110 - nothing tells us when
                await trio.sleep(0.01)
        with trio.move_on_after(self._draw.uniform(0.0, 0.6)):
            while True:
                await trio.to_thread.run_sync(self._operate, abandon_on_cancel=True)

    def _operate(self) -> None:
        with suppress(Unavailable, OperationFailed):
            AdminClient(self.place.admin_socket).call("POST", "/admin/reload")

    async def _ends(self, process: subprocess.Popen[str], code: int, *, early: bool = False) -> None:
        assert process.stdout is not None
        with trio.move_on_after(STOP_S):
            await trio.to_thread.run_sync(process.wait, abandon_on_cancel=True)
        process.stdout.close()
        if process.poll() != code and not (early and process.poll() == 0):
            self.object(f"exit code {process.poll()} instead of {code}\n{self._log_end()}")

    def _log_end(self) -> str:
        return "\n".join((self.place.directory / "log").read_text().splitlines()[-8:])

    # ---- clients ------------------------------------------------------------------------------------

    async def _client(self, number: int) -> None:
        draw = random.Random(f"{self.seed} {number}")
        while True:
            errand = drawn_errand(draw)
            await trio.sleep(errand.pause_s)
            answer = await ask(self.place.port, errand)
            if not (answer.status or answer.left or answer.forgot):
                continue  # nobody listens just now, or its process was killed before the first byte
            if what := self._objection(answer, errand):
                self.object(f"prompt {errand.prompt}: {what}")
            self.answers[ending(answer)] += 1

    def _objection(self, answer: Answer, errand: Errand) -> str | None:
        late = ("deadline_exceeded", "deadline_too_short", "queue_too_long")  # the last: by what was measured already
        if answer.code in (None, "loading", "draining", "shutdown", *late):
            return objection(answer, errand, self.texts, may_break_off=True)
        return f"{answer.status} {answer.code}"

    # ---- what is on disk ----------------------------------------------------------------------------

    def _look_at_disk(self, kill: int) -> None:
        """What the killed process left; now and then half a line more."""
        for history in self._histories():
            try:
                if read_memory(history).holding is None:
                    self.object("the history says that a killed process gave its device back")
            except UnreadableHistory as unreadable:
                self.object(str(unreadable))
        if kill % TORN_EVERY == 1 and (files := segments(self.place.state / "audit")):
            with files[-1].open("ab") as file:
                file.write(b'{"at":"2026-01-01T00:00:00.000Z","before":"')
            self.torn += 1

    def _look_at_running(self) -> None:
        """What a process that serves has made of it."""
        verdict = verify(self.place.state / "audit")
        if verdict.problem is not None:
            self.object(f"the audit log: {verdict.problem}")
        if aside := list((self.place.state / "faults").glob("*.set-aside-*")):
            self.object(f"the history was set aside: {aside[0].name}")

    def _look_at_end(self) -> None:
        """Everything was given back, and every package is whole."""
        self._look_at_running()
        if self.place.admin_socket.exists():
            self.object("the admin socket was left behind by a process that ended in order")
        for history in self._histories():
            memory = read_memory(history)
            if memory.holding is not None or memory.resets or memory.faults:
                self.object(f"the history remembers what never was: {memory}")
        torn = len(list((self.place.state / "audit").glob("*.torn-*")))
        if torn != self.torn:
            self.object(f"{self.torn} lines were torn, {torn} were set aside")
        for command in (("package", "verify", "tiny"), ("package", "gc", "--json"), ("package", "list", "--json")):
            try:
                said = self.place.calculet(*command)
            except RuntimeError as failed:
                self.object(str(failed))
                continue
            if command[1] == "list" and len(json.loads(said)) != 1:
                self.object(f"the store holds {said}")

    def _histories(self) -> list[Path]:
        return list((self.place.state / "faults").glob("*.json"))
