"""Switching: clients keep asking while an operator replaces one model by another, again and again.

No request may be lost or refused, and each must be answered by a model that its alias meant while it was open: the
old one before a swap is asked for, the new one after it is done, one of the two in between. The two models say
different words, so that what is seen is who has answered.

Source: S §19 (M4: "8 h of switching, generation isolation"); SPEC section 8.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import attrs
import numpy as np
import trio

from calculet_trio.conformance.clients import Errand, Heard, errands
from calculet_trio.conformance.footprint import GROWTH_AT_MOST, Footprint, settled
from calculet_trio.conformance.gate import Criterion
from calculet_trio.conformance.two_models import FIRST, SECOND, Site
from calculet_trio.errors import ConfigurationRefused
from calculet_trio.shell.loading import ModelSource

_ERRANDS: Final = 8
_PROMPT_TOKENS: Final = (3, 9, 17, 30)
TOKENS: Final = 8
_WARM_SWITCHES: Final = 4
"""Caches, histograms and buffers have their size by then."""
_SWITCHES_MIN: Final = 8
_NAMES: Final = ("first", "second")

Words = tuple[tuple[str, ...], tuple[str, ...]]
"""What each of the two models says to each errand."""


@attrs.frozen(kw_only=True)
class Traffic:
    """How much goes on.

    Args:
        clients: at a time.
        pause_s: how long a client thinks between a reply and its next request, on average.
        dwell_s: how long a model stays before the operator replaces it.
    """

    clients: int
    pause_s: float
    dwell_s: float


@attrs.frozen(kw_only=True)
class Switched:
    """What was seen.

    Args:
        hours: how long, on the daemon's clock.
        switches: one model after the other.
        replies: by model: first, second.
        astride: of them, those that were open when a swap was.
        downtime_s: the longest time in which the alias had no model.
        objection: the first thing that was wrong; None if nothing was.
        early: what was held after the first switches.
        late: what was held after the last, with the same model.
    """

    hours: float
    switches: int
    replies: tuple[int, int]
    astride: int
    downtime_s: float
    objection: str | None
    early: Footprint
    late: Footprint


class Reign:
    """Which models the alias may mean, from one moment to the next."""

    def __init__(self, model: int) -> None:
        self.now = model
        self._line = [frozenset({model})]

    @property
    def moment(self) -> int:
        """Of now; it grows with every change."""
        return len(self._line) - 1

    def since(self, moment: int) -> frozenset[int]:
        """Those that have been meant at some time since then."""
        return frozenset().union(*self._line[moment:])

    def begin(self, model: int) -> None:
        """A swap is asked for."""
        self._line.append(frozenset({self.now, model}))
        self.now = model

    def done(self) -> None:
        """It is done: the one before is gone."""
        self._line.append(frozenset({self.now}))


def errands_of(sources: Sequence[ModelSource]) -> tuple[Errand, ...]:
    """Requests that every one of the models can take."""
    shapes = [source.shape for source in sources if source.shape is not None]
    longest = min(shape.max_seq for shape in shapes) - TOKENS
    vocabulary = min(shape.vocab_size for shape in shapes)
    return tuple(
        errand
        for place in range(_ERRANDS)
        for errand in errands(
            1,
            prompt_tokens=min(_PROMPT_TOKENS[place % len(_PROMPT_TOKENS)], longest),
            tokens=TOKENS,
            vocabulary=vocabulary,
            seed=place,
        )
    )


async def words_of(site: Site, wanted: Sequence[Errand]) -> tuple[tuple[Errand, ...], Words]:
    """What each model says to each errand, asked alone; the first is there at the end.

    Returns:
        The errands that the two answer differently, and the answers.

    Raises:
        calculet_trio.errors.ConfigurationRefused: there are none, or one is not answered at all.
    """
    said: dict[int, list[str]] = {}
    for model in (SECOND, FIRST):
        await site.load(model)
        heard = [await site.ask(errand) for errand in wanted]
        trouble = next((each.trouble for each in heard if each.trouble is not None), None)
        if trouble is not None:
            raise ConfigurationRefused(f"a model that is asked alone does not answer: {trouble}")
        said[model] = [each.text for each in heard]
    told = [each for each in zip(wanted, said[FIRST], said[SECOND], strict=True) if each[1] != each[2]]
    if not told:
        raise ConfigurationRefused(
            "both models say the same to everything: nobody could see which one has answered",
            hint="choose another one with --second",
        )
    kept, ones, others = zip(*told, strict=True)
    return kept, (ones, others)


async def switch(
    site: Site, wanted: Sequence[Errand], traffic: Traffic, *, seconds: float, progress: Callable[[str], None]
) -> Switched:
    """Let clients ask and an operator switch, for so long and some times at least.

    **Cancellation**: at once; open requests are given up.
    """
    kept, words = await words_of(site, wanted)
    work = _Switching(site, traffic, kept, words, progress)
    began_s = trio.current_time()
    await work.leg(_WARM_SWITCHES, until_s=began_s)
    early = Footprint.now(site.device_bytes())
    await work.leg(_SWITCHES_MIN, until_s=began_s + seconds)
    late = await settled(early, site.device_bytes)
    return Switched(
        hours=(trio.current_time() - began_s) / 3600,
        switches=work.switches,
        replies=(work.replies[FIRST], work.replies[SECOND]),
        astride=work.astride,
        downtime_s=work.downtime_s,
        objection=work.objection,
        early=early,
        late=late,
    )


class _Switching:
    """Clients and an operator, and what has become of them so far."""

    def __init__(
        self,
        site: Site,
        traffic: Traffic,
        wanted: tuple[Errand, ...],
        words: Words,
        progress: Callable[[str], None],
    ) -> None:
        self._site = site
        self._traffic = traffic
        self._wanted = wanted
        self._words = words
        self._progress = progress
        self._reign = Reign(FIRST)
        self.switches = 0
        self.replies: Counter[int] = Counter()
        self.astride = 0
        self.downtime_s = 0.0
        self.objection: str | None = None

    async def leg(self, switches_min: int, *, until_s: float) -> None:
        """Go on until then, and for so many switches; at its end the first model is there, and as new.

        Lanes that a crowd was the first to write would be counted as growth, or would hide it.
        """
        least = self.switches + switches_min
        over = trio.Event()
        async with trio.open_nursery() as nursery:
            for number in range(self._traffic.clients):
                nursery.start_soon(self._client, number, over)
            while self.objection is None and (self.switches < least or trio.current_time() < until_s):
                left_s = max(0.0, until_s - trio.current_time())
                self._progress(f"{self.switches} switches, {self.replies.total()} replies, {left_s:.0f} s to go")
                await self._switch_to(SECOND)
                await self._switch_to(FIRST)
            over.set()
        await self._site.load(FIRST)

    async def _switch_to(self, model: int) -> None:
        await trio.sleep(self._traffic.dwell_s)
        self._reign.begin(model)
        done = await self._site.load(model)
        self._reign.done()
        self.switches += 1
        self.downtime_s = max(self.downtime_s, done["downtime_s"])

    async def _client(self, number: int, over: trio.Event) -> None:
        rng = np.random.default_rng(number)
        while not over.is_set():
            place = int(rng.integers(len(self._wanted)))
            since = self._reign.moment
            heard = await self._site.ask(self._wanted[place])
            self._judge(place, heard, self._reign.since(since))
            if self._traffic.pause_s:
                await trio.sleep(float(rng.exponential(self._traffic.pause_s)))

    def _judge(self, place: int, heard: Heard, possible: frozenset[int]) -> None:
        """Hold a reply against the words of the models that its alias meant while it was open."""
        objection = None
        said_by = [model for model in (FIRST, SECOND) if self._words[model][place] == heard.text]
        if heard.trouble is not None:
            objection = f"a request was lost: {heard.trouble}"
        elif not said_by:
            objection = f"a reply is of neither model: {heard.text[:40]!r}"
        elif said_by[0] not in possible:
            objection = (
                f"a request was answered by the {_NAMES[said_by[0]]} model, which was not there any more, or yet"
            )
        else:
            self.replies[said_by[0]] += 1
            self.astride += len(possible) > 1
        self.objection = self.objection or objection


def switching_criteria(switched: Switched, *, time: str) -> tuple[Criterion, ...]:
    """No request lost, none answered by the wrong generation, and nothing left over.

    Args:
        switched: what was seen.
        time: ``real`` or ``virtual``.
    """
    first, second = switched.replies
    seen = (
        f"{switched.hours:.4g} h of {time} time, {switched.switches} switches; {first} and {second} replies of the two "
        f"models, {switched.astride} of them open across a switch; at most {switched.downtime_s:.3f} s without a model"
    )
    if switched.objection is not None:
        seen += f"; {switched.objection}"
    return (
        Criterion.of("switching under traffic", holds=switched.objection is None, seen=seen),
        nothing_left("nothing left of switching", switched.early, switched.late),
    )


def nothing_left(name: str, early: Footprint, late: Footprint) -> Criterion:
    """Memory within the growth that is allowed, and not one task, thread, file or socket more."""
    grown = early.grown(late)
    seen = (
        f"{late.tasks} tasks, {late.threads} threads, {late.files} files, {late.sockets} sockets, "
        f"{late.memory_bytes >> 20} MiB of the process, {late.device_bytes >> 20} MiB of the device; "
        f"allowed {GROWTH_AT_MOST:+.0%} of memory, none of the rest"
    )
    return Criterion.of(name, holds=not grown, seen=f"{seen}; grew: {', '.join(grown)}" if grown else seen)
