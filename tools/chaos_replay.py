"""Eight streams of a real model, with faults in their middle and without: the texts must be the same."""

from __future__ import annotations

from typing import Any, Final

import attrs
import trio
from chaos_client import Answer, Errand, ask
from chaos_life import Armed, Calm, living
from chaos_place import Place

from calculet_trio.core.fault_kinds import FaultKind
from calculet_trio.runtimes.faults import FaultPlan, Plan, Planned

QUESTIONS: Final = (
    "What is the sea?",
    "Why is the sky blue?",
    "Write a short poem about rain.",
    "How does one bake bread?",
    "Tell me of a town by a river.",
    "What do bees do in winter?",
    "Who needs a lighthouse, and why?",
    "Explain what a clock does, to a child.",
)
TOKENS: Final = 120
FAULTS: Final = (Planned(FaultKind.CCU_FAULT, 5), Planned(FaultKind.PCIE_ERROR, 60), Planned(FaultKind.CCU_FAULT, 145))
"""In a prefill, and twice while streams of different lengths decode."""


@attrs.frozen
class Streams:
    """What eight streams said, and what was done to the device meanwhile."""

    answers: list[Answer]
    resets: int
    replays: int

    @property
    def texts(self) -> list[str]:
        return [answer.text for answer in self.answers]

    @property
    def is_whole(self) -> bool:
        """Whether every reply came to its own end."""
        return all(answer.is_whole and answer.code is None for answer in self.answers)


async def eight_streams(place: Place, *, disturbed: bool) -> Streams:
    """All at once, greedy."""
    plan = Armed(Plan(FAULTS)) if disturbed else Calm()
    answers: dict[int, Answer] = {}

    async def one(number: int, question: str) -> None:
        body: dict[str, Any] = {"model": "m", "prompt": question, "max_tokens": TOKENS + number}
        answers[number] = await ask(place.port, Errand(number, {**body, "temperature": 0, "stream": True}))

    async with living(place.configuration, plan, proves=False) as life:
        arm(plan)
        async with trio.open_nursery() as clients:
            for number, question in enumerate(QUESTIONS):
                clients.start_soon(one, number, question)
        now = life.house._loop.snapshot()
    return Streams([answers[number] for number in range(len(QUESTIONS))], now.resets, now.replays)


def arm(plan: FaultPlan) -> None:
    """From now on things go wrong, if they are to."""
    if isinstance(plan, Armed):
        plan.is_armed = True
