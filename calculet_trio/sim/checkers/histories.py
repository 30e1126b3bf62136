"""Every job appends to a lane exactly what is known of its request at that place, whatever was reset in between; and
whoever goes on from what another request has left begins exactly like it.

Source: SPEC section 7, 9 (``recovery.replay``).
"""

from __future__ import annotations

from calculet_trio.core import effects as ef
from calculet_trio.core import events as ev
from calculet_trio.ids import GenerationId, LaneId, RequestId
from calculet_trio.sim.checkers.violation import require
from calculet_trio.sim.checkers.watch import Routes


class HistoryChecker:
    """One daemon's requests and their tokens: the prompt, and what was sampled and given to the client."""

    def __init__(self) -> None:
        self._known: dict[RequestId, list[int]] = {}
        self._sampled: dict[RequestId, int] = {}
        self._last: dict[RequestId, tuple[GenerationId, LaneId, int]] = {}
        self._left: dict[tuple[GenerationId, LaneId], list[int]] = {}

    def routes(self) -> Routes:
        """See `calculet_trio.sim.checkers.watch.Checker`."""
        return {
            ev.Offered: self._offered,
            ev.JobFinished: self._job_finished,
            ef.Deliver: self._delivered,
            ef.SubmitJob: self._submitted,
            ef.Refuse: self._ended,
            ef.ContinueSequence: self._continued,
            ef.Finish: self._finished,
            ef.Fail: self._ended,
            ef.Drop: self._ended,
        }

    def conclude(self, now: float, *, device_lost: bool) -> None:
        """Nothing is left to say: each job was held against it."""

    def _offered(self, event: ev.Offered, now: float) -> None:
        self._known.setdefault(event.request, list(event.prompt))

    def _job_finished(self, event: ev.JobFinished, now: float) -> None:
        self._sampled = {result.request: result.token for result in event.results if result.token is not None}

    def _delivered(self, effect: ef.Deliver, now: float) -> None:
        is_sampled = effect.request in self._sampled
        require(is_sampled, "request {} is given a token that nobody sampled now", effect.request)
        self._known[effect.request].append(self._sampled.pop(effect.request))

    def _submitted(self, effect: ef.SubmitJob, now: float) -> None:
        for work in effect.job.lanes:
            known = self._known[work.request][work.position : work.position + len(work.tokens)]
            is_own = known == list(work.tokens)
            require(is_own, "request {} is continued with tokens that are not its own", work.request)
            self._last[work.request] = (effect.job.generation, work.lane, work.position + len(work.tokens))

    def _finished(self, effect: ef.Finish, now: float) -> None:
        """What its lane holds then: all that was appended, which the last token was not."""
        if effect.request in self._last:
            generation, lane, tokens = self._last[effect.request]
            self._left[generation, lane] = self._known[effect.request][:tokens]
        self._ended(effect, now)

    def _continued(self, effect: ef.ContinueSequence, now: float) -> None:
        left = self._left.pop((effect.generation, effect.lane))
        kept = left[: len(left) - effect.drop_tokens]
        is_own = self._known[effect.request][: len(kept)] == kept
        require(is_own, f"request {effect.request} goes on from tokens that are not its own")

    def _ended(self, effect: ef.Refuse | ef.Finish | ef.Fail | ef.Drop, now: float) -> None:
        self._known.pop(effect.request, None)
        self._last.pop(effect.request, None)
