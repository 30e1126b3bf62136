"""PrefillScheduler: prompts that hold a lane and wait for their prefill.

Source: SPEC section 5 (S §6).
"""

from __future__ import annotations

from collections import deque

from calculet_trio.core.jobs import PIECE_TOKENS_MIN, LaneWork, PrefillJob
from calculet_trio.core.policy import QueuePolicy
from calculet_trio.core.profiles import PrefillProfile
from calculet_trio.core.request import Request, RequestState
from calculet_trio.core.turns import WorkKind
from calculet_trio.ids import JobId

PREFILL_KINDS = (WorkKind.SHORT_PREFILL, WorkKind.MEDIUM_PREFILL, WorkKind.LONG_PREFILL)


class PrefillScheduler:
    """Three queues by the length of the next job; first come, first served within each.

    Args:
        policy: where the classes end.
        chunk_tokens: prompts go in pieces of at most so many tokens; None for whole prompts, which is all
            that may be done until the package has earned ``incremental_prefill``.
        replies: whether a replay's prefill writes what was sampled, too; else decode writes that again, as it did.
    """

    def __init__(self, policy: QueuePolicy, *, chunk_tokens: int | None, replies: bool) -> None:
        self._policy = policy
        self._chunk_tokens = chunk_tokens
        self._replies = replies
        self._queues: dict[WorkKind, deque[Request]] = {kind: deque() for kind in PREFILL_KINDS}

    def class_of(self, tokens: int) -> WorkKind:
        """The class of a job of so many tokens."""
        if tokens <= self._policy.short_prefill_max_tokens:
            return WorkKind.SHORT_PREFILL
        if tokens <= self._policy.medium_prefill_max_tokens:
            return WorkKind.MEDIUM_PREFILL
        return WorkKind.LONG_PREFILL

    def push(self, request: Request) -> None:
        """Queue an admitted request; a long job may be running, so those that ended behind it are let go here."""
        kind = self.class_of(self._next_tokens(request))
        waiting = (other for other in self._queues[kind] if _waits(other))
        self._queues[kind] = deque((*waiting, request))

    def put_back(self, request: Request) -> None:
        """Its job was not taken, or was only a chunk: the request keeps its place at the front."""
        self._queues[self.class_of(self._next_tokens(request))].appendleft(request)

    def clear(self) -> None:
        """Nobody waits any more: no lane holds what it did."""
        for queue in self._queues.values():
            queue.clear()

    def available(self) -> list[WorkKind]:
        """The classes in which a request waits; those that ended meanwhile are let go."""
        for queue in self._queues.values():
            while queue and not _waits(queue[0]):
                queue.popleft()
        return [kind for kind, queue in self._queues.items() if queue]

    def waiting(self, kind: WorkKind) -> list[Request]:
        """The class's requests, first come first."""
        return [request for request in self._queues[kind] if _waits(request)]

    def plan(self, kind: WorkKind, job: JobId, profile: PrefillProfile) -> tuple[PrefillJob, Request]:
        """The class's first request (`available` named the class): its prompt, or the next chunk of it."""
        request = self._queues[kind].popleft()
        lane = request.lane
        assert lane is not None
        assert lane.sequence is not None
        begin = lane.committed_len
        end = begin + self._next_tokens(request)
        known = request.known_tokens if self._replies else request.prompt
        work = LaneWork(
            request=request.id,
            sequence=lane.sequence,
            lane=lane.id,
            index=0,
            tokens=known[begin:end],
            position=begin,
            samples=end == request.known_count,
        )
        return PrefillJob(job, request.generation, profile, work), request

    def share(self, request: Request) -> int:
        """How many of the request's known tokens are for prefills to write; decode writes the others."""
        return request.known_count if self._replies else len(request.prompt)

    def _next_tokens(self, request: Request) -> int:
        """All that is left, or as much of it as leaves a whole piece for the last."""
        left = self.share(request) - request.prefilled_tokens
        if self._chunk_tokens is None or left <= self._chunk_tokens:
            return left
        return max(1, min(self._chunk_tokens, left - PIECE_TOKENS_MIN))


def _waits(request: Request) -> bool:
    return request.state is RequestState.PREFILL_READY
