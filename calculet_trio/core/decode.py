"""DecodeScheduler: which sequences get their next token in the next job.

Source: SPEC section 6 (S §7).
"""

from __future__ import annotations

from calculet_trio.core.jobs import DecodeJob, LaneWork
from calculet_trio.core.profiles import ModelShape, choose_window
from calculet_trio.core.request import Request, RequestState
from calculet_trio.ids import JobId, LaneId, RequestId


class DecodeScheduler:
    """Sequences that wait for their next token, longest wait first.

    The sequence that waited longest always decodes; with it go all that fit the profile's window, so that
    none is passed over twice in favour of the same other.
    """

    def __init__(self) -> None:
        self._ready: dict[RequestId, Request] = {}

    def push(self, request: Request) -> None:
        self._ready[request.id] = request

    def put_back(self, request: Request) -> None:
        """The device did not take the job: the request has waited longest still."""
        self._ready = {request.id: request, **self._ready}

    def available(self) -> bool:
        """Whether a sequence is ready; those that ended meanwhile are let go."""
        ended = [key for key, request in self._ready.items() if request.state is not RequestState.DECODE_READY]
        for key in ended:
            del self._ready[key]
        return bool(self._ready)

    def plan(self, job: JobId, shape: ModelShape) -> tuple[DecodeJob, list[Request]]:
        """The next batch: the longest-waiting sequence and its company (`available` was true)."""
        by_lane: dict[LaneId, Request] = {}
        for request in self._ready.values():
            assert request.lane is not None
            by_lane[request.lane.id] = request
        first = next(iter(by_lane))
        window = choose_window(by_lane.keys(), must=first, shape=shape)
        batch = [by_lane[lane] for lane in sorted(by_lane) if window.covers(lane)]
        for request in batch:
            del self._ready[request.id]
        works = tuple(_next_token(request, window.first) for request in batch)
        return DecodeJob(job, batch[0].generation, window.profile, window.first, works), batch


def _next_token(request: Request, first_lane: LaneId) -> LaneWork:
    lane = request.lane
    assert lane is not None
    assert lane.sequence is not None
    return LaneWork(
        request=request.id,
        sequence=lane.sequence,
        lane=lane.id,
        index=lane.id - first_lane,
        tokens=(request.generated[-1],),
        position=lane.committed_len,
    )
