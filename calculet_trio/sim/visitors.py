"""Visitors: the clients of a world. Each knows what it must hear, and holds the reply against it.

Source: SPEC section 3, 4; S §17.3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import inf
from typing import Final

import attrs
import numpy as np
import trio

from calculet_trio.errors import CalculetError, GenerationFailed
from calculet_trio.runtimes.emulated import END_TOKEN, continuation
from calculet_trio.shell.service import InferenceRequest, RequestHandle, Service
from calculet_trio.sim.checkers.conservation import Heard
from calculet_trio.sim.checkers.violation import Violated
from calculet_trio.sim.population import ALIAS, Visit
from calculet_trio.sim.record import Record
from calculet_trio.text.byte_tokenizer import ByteTokenizer
from calculet_trio.text.params import ReplyParams, SamplingParams, TokenPrompt
from calculet_trio.visible import difference

_GREEDY: Final = ReplyParams(sampling=SamplingParams(temperature=0.0))
_TOKENIZER: Final = ByteTokenizer()


@attrs.define
class Visitors:
    """All clients of a world, over all lives of its daemon.

    Args:
        record: told of whole replies.
        voices: by alias, the voices of the models that may answer for it.

    Attributes:
        service: of the daemon that lives now; None while there is none.
        came: how many.
        heard: how their visits ended, for the books.
        endings: the same in words, for people.
    """

    record: Record
    voices: Mapping[str, tuple[int, ...]] = attrs.field(factory=lambda: {ALIAS: (0,)})
    service: Service | None = None
    came: int = 0
    heard: Counter[Heard] = attrs.field(factory=Counter)
    endings: Counter[str] = attrs.field(factory=Counter)

    async def visit(self, visit: Visit, seed: int) -> None:
        """One client, from its first request to its last word.

        **Cancellation**: at once; the request is given up.
        """
        random = np.random.default_rng(seed)
        said: tuple[int, ...] = ()
        for turn in range(visit.turns):
            if turn:
                await trio.sleep(visit.think_s)
            heard = await self._ask(visit, (*said, *random.integers(97, 123, visit.prompt_tokens).tolist()))
            if heard is None:
                return
            said = heard

    async def _ask(self, visit: Visit, prompt: tuple[int, ...]) -> tuple[int, ...] | None:
        """One request; what was said when it had ended, the prompt first. None: it had no whole reply."""
        self.came += 1
        if self.service is None:
            self._went(Heard.UNREACHABLE, "unreachable")
            return None
        said = None
        request = InferenceRequest(
            alias=visit.alias,
            tenant=visit.tenant,
            prompt=TokenPrompt(prompt),
            reply=_GREEDY,
            max_new_tokens=visit.output_tokens,
            deadline_s=visit.deadline_s,
        )
        heard, ending = Heard.LEFT, "left"
        with trio.move_on_after(inf if visit.patience_s is None else visit.patience_s):
            try:
                async with self.service.open(request) as handle:
                    ending, reply = await self._read(handle, visit, prompt)
                    heard, said = Heard.FINISHED, (*prompt, *reply)
            except GenerationFailed as failed:
                heard = Heard.DROPPED if failed.reason == "cancelled" else Heard.FAILED
                ending = f"failed: {failed.reason}"
            except CalculetError as refused:
                heard, ending = Heard.REFUSED, f"refused: {getattr(refused, 'code', type(refused).__name__)}"
        self._went(heard, ending)
        return said

    def _went(self, heard: Heard, ending: str) -> None:
        self.heard[heard] += 1
        self.endings[ending] += 1

    async def _read(self, handle: RequestHandle, visit: Visit, prompt: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
        """Read the reply and hold it against what the model says after exactly this prompt; how it ended, and it."""
        pieces: list[str] = []
        async for output in handle:
            pieces.append(output.text)
            if visit.read_pause_s:
                await trio.sleep(visit.read_pause_s)
        text, tokens = "".join(pieces), handle.timings.predicted_tokens
        voices = [continuation(prompt, tokens, voice=voice) for voice in self.voices[visit.alias]]
        said = {_TOKENIZER.decode(token for token in each if token != END_TOKEN): each for each in voices}
        if text not in said:
            expected = next(iter(said))
            at = difference(text, expected)
            raise Violated(
                f"a reply is not its own: after a prompt of {len(prompt)} tokens, from character {at} on, "
                f"{text[at : at + 40]!r}, not {expected[at : at + 40]!r}"
            )
        self.record.replied(trio.current_time(), visit, handle.timings)
        ending = handle.ending
        how = f"truncated: {ending.truncated_by}" if ending.truncated_by else f"finished: {ending.reason.value}"
        return how, tuple(said[text])
