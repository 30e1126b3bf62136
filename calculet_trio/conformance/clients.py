"""Clients: what a gate asks of a service, and what it heard.

Prompts are token ids, replies are greedy and of a fixed length: the same work, and the same words, every time.

Source: SPEC section 13.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Final

import attrs
import numpy as np
import trio

from calculet_trio.errors import CalculetError
from calculet_trio.shell.service import InferenceRequest, Service
from calculet_trio.text.params import ReplyParams, SamplingParams, TokenPrompt

_REPLY: Final = ReplyParams(sampling=SamplingParams(temperature=0.0), ignore_eos=True)
_DEADLINE_S: Final = 3600.0
"""Whatever the policy says: an answer that a deadline cut would be another answer."""


@attrs.frozen
class Errand:
    """One request: a prompt, and how many tokens are wanted."""

    prompt: tuple[int, ...]
    tokens: int


@attrs.frozen
class Heard:
    """What came back.

    Args:
        text: of the reply, as far as it came.
        tokens: how many.
        gaps_s: seconds between each two of them.
        trouble: why it did not end well; None if it did.
    """

    text: str
    tokens: int
    gaps_s: tuple[float, ...]
    trouble: str | None = None


def errands(number: int, *, prompt_tokens: int, tokens: int, vocabulary: int, seed: int = 1) -> tuple[Errand, ...]:
    """So many different ones; the same for the same numbers."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, vocabulary, (number, prompt_tokens)).tolist()
    return tuple(Errand(tuple(prompt), tokens) for prompt in drawn)


async def ask(service: Service, alias: str, errand: Errand, *, begun: trio.Event | None = None) -> Heard:
    """Send one request and listen to its end; a refusal or a loss is part of what was heard.

    Args:
        service: whom to ask.
        alias: the model.
        errand: the request.
        begun: set when it has been admitted.

    **Cancellation**: at once; the request is given up.
    """
    request = InferenceRequest(
        alias=alias,
        tenant="gate",
        prompt=TokenPrompt(errand.prompt),
        reply=_REPLY,
        max_new_tokens=errand.tokens,
        deadline_s=_DEADLINE_S,
    )
    pieces: list[str] = []
    moments_s: list[float] = []
    tokens = 0
    trouble = None
    try:
        async with service.open(request) as handle:
            if begun is not None:
                begun.set()
            async for output in handle:
                pieces.append(output.text)
                moments_s.append(trio.current_time())
            tokens = handle.timings.predicted_tokens
            if handle.ending.truncated_by is not None:
                trouble = f"truncated by {handle.ending.truncated_by}"
    except CalculetError as error:
        trouble = f"{type(error).__name__}: {error}"
    gaps_s = tuple(later - earlier for earlier, later in pairwise(moments_s))
    return Heard("".join(pieces), tokens, gaps_s, trouble)


async def ask_all(service: Service, alias: str, wanted: Sequence[Errand], *, at_once: int) -> tuple[Heard, ...]:
    """All of them, ``at_once`` at a time, each as soon as one before it has ended.

    **Cancellation**: at once; open requests are given up.
    """
    heard: dict[int, Heard] = {}
    left = iter(enumerate(wanted))

    async def client() -> None:
        for place, errand in left:
            heard[place] = await ask(service, alias, errand)

    async with trio.open_nursery() as nursery:
        for number in range(at_once):
            nursery.start_soon(partial(client), name=f"client {number}")
    return tuple(heard[place] for place in range(len(wanted)))
