"""PrefillScheduler: prompts that hold a lane and wait for their one prefill job.

Source: SPEC section 5 (S §6).
"""

from __future__ import annotations

from collections import deque

from calculet_trio.core.jobs import LaneWork, PrefillJob
from calculet_trio.core.policy import QueuePolicy
from calculet_trio.core.profiles import PrefillProfile
from calculet_trio.core.request import Request, RequestState
from calculet_trio.core.service_wheel import WorkKind
from calculet_trio.ids import JobId

_CLASSES = (WorkKind.SHORT_PREFILL, WorkKind.MEDIUM_PREFILL, WorkKind.LONG_PREFILL)


class PrefillScheduler:
    """Three queues by prompt length; first come, first served within each."""

    def __init__(self, policy: QueuePolicy) -> None:
        self._policy = policy
        self._queues: dict[WorkKind, deque[Request]] = {kind: deque() for kind in _CLASSES}

    def class_of(self, prompt_tokens: int) -> WorkKind:
        if prompt_tokens <= self._policy.short_prefill_max_tokens:
            return WorkKind.SHORT_PREFILL
        if prompt_tokens <= self._policy.medium_prefill_max_tokens:
            return WorkKind.MEDIUM_PREFILL
        return WorkKind.LONG_PREFILL

    def push(self, request: Request) -> None:
        """Queue an admitted request; a long job may be running, so those that ended behind it are let go here."""
        kind = self.class_of(len(request.prompt))
        waiting = (other for other in self._queues[kind] if _waits(other))
        self._queues[kind] = deque((*waiting, request))

    def put_back(self, request: Request) -> None:
        """The device did not take the job: the request keeps its place at the front."""
        self._queues[self.class_of(len(request.prompt))].appendleft(request)

    def available(self) -> list[WorkKind]:
        """The classes in which a request waits; those that ended meanwhile are let go."""
        for queue in self._queues.values():
            while queue and not _waits(queue[0]):
                queue.popleft()
        return [kind for kind, queue in self._queues.items() if queue]

    def plan(self, kind: WorkKind, job: JobId, profile: PrefillProfile) -> tuple[PrefillJob, Request]:
        """The class's first request (`available` named the class) as a job of its whole prompt."""
        request = self._queues[kind].popleft()
        lane = request.lane
        assert lane is not None
        assert lane.sequence is not None
        work = LaneWork(
            request=request.id,
            sequence=lane.sequence,
            lane=lane.id,
            index=0,
            tokens=request.prompt,
            position=lane.committed_len,
        )
        return PrefillJob(job, request.generation, profile, work), request


def _waits(request: Request) -> bool:
    return request.state is RequestState.PREFILL_READY
