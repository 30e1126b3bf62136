"""One generation as the scheduler serves it: its lanes, and the work that waits for an engine.

Source: SPEC section 5–8.
"""

from __future__ import annotations

from calculet_trio.core.decode import DecodeScheduler
from calculet_trio.core.generation import GenerationState, ModelGeneration
from calculet_trio.core.jobs import Job
from calculet_trio.core.lanes import KvLanes
from calculet_trio.core.policy import Policy
from calculet_trio.core.prefill import PrefillScheduler
from calculet_trio.core.profiles import ModelShape
from calculet_trio.core.request import Request, RequestState
from calculet_trio.core.service_wheel import ServiceWheel, WorkKind
from calculet_trio.ids import JobId


class Served:
    """A published generation with everything that is scheduled on it."""

    def __init__(self, generation: ModelGeneration, shape: ModelShape, policy: Policy) -> None:
        self.generation = generation
        self.shape = shape
        self.lanes = KvLanes(generation.id, lanes=shape.lanes, max_seq=shape.max_seq)
        self._prefill = PrefillScheduler(policy.queues)
        self._decode = DecodeScheduler()
        self._wheel = ServiceWheel(policy.queues)

    @property
    def is_ready(self) -> bool:
        return self.generation.state is GenerationState.READY

    def enqueue(self, request: Request) -> None:
        """An admitted request, or one whose token was just committed, waits for an engine."""
        if request.state is RequestState.PREFILL_READY:
            self._prefill.push(request)
        else:
            self._decode.push(request)

    def put_back(self, request: Request) -> None:
        """The device did not take the request's job."""
        if request.state is RequestState.PREFILL_READY:
            self._prefill.put_back(request)
        else:
            self._decode.put_back(request)

    def plan(self, job: JobId) -> tuple[Job, list[Request]] | None:
        """The next job of this generation and the requests in it; None if nothing is ready."""
        available = self._prefill.available()
        if self._decode.available():
            available.insert(0, WorkKind.DECODE)
        if not available:
            return None
        kind = self._wheel.turn(available)
        if kind is WorkKind.DECODE:
            return self._decode.plan(job, self.shape)
        prefill, request = self._prefill.plan(kind, job, self.shape.prefill)
        return prefill, [request]
