"""A crowd that comes, stays or leaves, while the device fails, the daemon is told to stop, and starts again."""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Final

import attrs
import trio
from chaos_client import PROMPTS, Answer, ask, calm_errand, drawn_errand, ending, objection
from chaos_life import Armed, Calm, Life, living
from chaos_place import Place

from calculet_trio.core.fault_kinds import FaultKind
from calculet_trio.runtimes.faults import Rates

AT_ONCE: Final = 32
SIGTERMS: Final = 2
LIVES_MAX: Final = 60
OBJECTIONS_MAX: Final = 20
RATES: Final = {
    FaultKind.DEVICE_BUSY: 0.02,
    FaultKind.SLOW: 0.002,
    FaultKind.OUTPUT_ERROR: 0.003,
    FaultKind.STATUS_ANOMALY: 0.001,
    FaultKind.COUNTER_ANOMALY: 0.001,
    FaultKind.NO_CAPACITY: 0.05,
    FaultKind.UNCONFIRMED: 0.002,
    FaultKind.LOSE_LANE: 0.0005,
    FaultKind.CCU_FAULT: 0.001,
    FaultKind.PCIE_ERROR: 0.0005,
    FaultKind.UNKNOWN_DMA: 0.0005,
    FaultKind.WRONG_COMPLETION: 0.0005,
    FaultKind.DUPLICATE_COMPLETION: 0.0005,
    FaultKind.TIMEOUT: 0.0002,
    FaultKind.DEVICE_LOST: 0.0003,
    FaultKind.RESET_FAILED: 0.05,
}
"""Per call. One that never returns leaves its thread behind: that is tried with a process of its own, in the tests."""


@attrs.define
class Tally:
    """What came of one seed, or of several.

    Attributes:
        answers: how requests ended, in a word.
        faults: how often each came about.
        lives: daemons that were started.
        lost: those that gave their device up.
        turned_away: connections that a daemon on its way out did not take.
        objections: what did not hold.
    """

    answers: Counter[str] = attrs.field(factory=Counter)
    faults: Counter[str] = attrs.field(factory=Counter)
    lives: int = 0
    lost: int = 0
    resets: int = 0
    replays: int = 0
    turned_away: int = 0
    objections: list[str] = attrs.field(factory=list)

    def object(self, what: str) -> None:
        if len(self.objections) < OBJECTIONS_MAX:
            self.objections.append(what)

    def add(self, other: Tally) -> None:
        """Take another one's figures."""
        self.answers += other.answers
        self.faults += other.faults
        for name in ("lives", "lost", "resets", "replays", "turned_away"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.objections += other.objections


async def undisturbed(place: Place) -> dict[int, str]:
    """What each prompt's reply is, each asked alone."""
    texts = {}
    async with living(place.configuration, Calm()):
        for prompt in range(PROMPTS):
            answer = await ask(place.port, calm_errand(prompt))
            assert answer.is_whole, answer
            texts[prompt] = answer.text
    return texts


@attrs.define
class Crowd:
    """So many requests from one seed.

    Args:
        place: whose daemon.
        texts: see `undisturbed`.
        seed: of everything that is drawn.
        requests: how many.
    """

    place: Place
    texts: dict[int, str]
    seed: int
    requests: int
    tally: Tally = attrs.field(factory=Tally)
    _life: Life | None = None
    _serving: trio.Event = attrs.field(factory=trio.Event)
    _begun: int = 0

    async def run(self) -> Tally:
        """Live until all are answered, and look whether anything is left."""
        before = held_by_process()
        draw = random.Random(self.seed)
        signals = sorted(draw.sample(range(1, self.requests), min(SIGTERMS, self.requests - 1)))
        async with trio.open_nursery() as nursery:
            for _ in range(AT_ONCE):
                nursery.start_soon(self._client)
            while self.tally.answers.total() < self.requests and self.tally.lives < LIVES_MAX:
                await self._live(draw.randrange(1 << 32), signals)
            nursery.cancel_scope.cancel()
        if self.tally.answers.total() != self.requests:
            self.tally.object(f"{self.requests - self.tally.answers.total()} requests were never answered")
        self._compare(before)
        return self.tally

    async def _live(self, seed: int, signals: list[int]) -> None:
        plan = Armed(Rates(RATES, seed=seed))
        async with living(self.place.configuration, plan) as life:
            self._life = life
            self.tally.lives += 1
            plan.is_armed = True
            self._serving.set()
            while not life.is_leaving:
                answered = self.tally.answers.total()
                if answered >= self.requests:
                    if left := await life.becomes_idle():
                        self.tally.object(f"everybody was answered, and still there are {left}")
                    break
                if signals and answered >= signals[0]:
                    signals.pop(0)
                    break
                await trio.sleep(0.005)
            self._serving = trio.Event()
            if life.is_leaving and not life.is_lost:
                raise KeyboardInterrupt  # a signal that was not ours is meant for all of this
            if not life.is_leaving:
                os.kill(os.getpid(), signal.SIGTERM)
                await life.house._begun_stopping.wait()
        self._account(life)

    def _account(self, life: Life) -> None:
        now = life.house._loop.snapshot()
        self.tally.lost += life.is_lost
        self.tally.resets += now.resets
        self.tally.replays += now.replays
        self.tally.faults.update({kind.value: count for kind, count in life.runtime.happened.items()})
        if left := life.leftovers():
            self.tally.object(f"a daemon has ended, and leaves {left}")

    async def _client(self) -> None:
        while self._begun < self.requests:
            self._begun += 1
            errand = drawn_errand(random.Random(f"{self.seed} {self._begun}"))
            await trio.sleep(errand.pause_s)
            answer = None
            while answer is None:
                await self._serving.wait()
                life = self._life
                assert life is not None
                answer = await ask(self.place.port, errand)
                if is_nothing(answer) and life.is_leaving:
                    self.tally.turned_away += 1
                    answer = None
                    await trio.sleep(0.01)
            if what := objection(answer, errand, self.texts, may_break_off=False):
                self.tally.object(f"request {self._begun} (prompt {errand.prompt}): {what}")
            self.tally.answers[ending(answer)] += 1

    def _compare(self, before: Counter[str]) -> None:
        more = held_by_process() - before
        if more:
            self.tally.object(f"held by the process, and not before: {', '.join(more.elements())}")


def is_nothing(answer: Answer) -> bool:
    """Nobody took the connection: it was refused, or closed before a byte came."""
    return not (answer.status or answer.left or answer.forgot)


def held_by_process() -> Counter[str]:
    """What a daemon that has ended must have given back; threads that trio keeps for later hold nothing."""
    gc.collect()
    threads = [f"thread {each.name}" for each in threading.enumerate() if not each.name.startswith("Trio thread ")]
    files = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # that of this very listing is closed by now
            files.append(str(descriptor.readlink()).split("[")[0])  # a socket's number says nothing
    return Counter(threads + files)
