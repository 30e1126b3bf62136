"""SamplerPool: the text side of every live request, and the sampling of a finished job's lanes.

Sampling rides in the engine's own thread hop, while the logits lie in the engine's buffers.

Source: SPEC section 6 (S §7.4); CONVENTIONS.md trap 14.
"""

from __future__ import annotations

import structlog

from calculet_trio.core.events import FaultReason, LaneResult
from calculet_trio.core.jobs import Job, LaneWork
from calculet_trio.ids import RequestId
from calculet_trio.runtimes.port import Finished
from calculet_trio.text.params import Output
from calculet_trio.text.reply import ReplyStream

_log = structlog.get_logger(__name__)


class SamplerPool:
    """Reply streams by request. Entries come and go in the trio thread; `settle` reads in an engine's.

    A request's entry stays while its job is out, because the core ends a request only after its job.
    """

    def __init__(self) -> None:
        self._replies: dict[RequestId, ReplyStream] = {}

    def __len__(self) -> int:
        return len(self._replies)

    def join(self, request: RequestId, reply: ReplyStream) -> None:
        self._replies[request] = reply

    def leave(self, request: RequestId) -> None:
        """Forget the request; one that never joined is no error."""
        self._replies.pop(request, None)

    def held_back(self, request: RequestId) -> Output | None:
        """What the request's text side still holds when its reply ends without a stop."""
        reply = self._replies.get(request)
        return None if reply is None else reply.finish()

    def settle(self, job: Job, finished: Finished) -> tuple[LaneResult, ...]:
        """Sample every lane of the job of which that is wanted. One lane's failure is its own."""
        lost = finished.lost_lanes
        return tuple(self._sample(work, finished) for work in job.lanes if work.samples and work.lane not in lost)

    def _sample(self, work: LaneWork, finished: Finished) -> LaneResult:
        reply = self._replies.get(work.request)
        if reply is None or finished.logits is None:
            return LaneResult(work.lane, work.request, None, failed=FaultReason.RUNTIME_ERROR)
        try:
            named = finished.candidates
            step = reply.accept(finished.logits[work.index], None if named is None else named.row(work.index))
        except Exception:  # noqa: BLE001 - a defect met by one request must not end the others in its batch
            _log.exception("sampling_failed", request=work.request, lane=work.lane)
            return LaneResult(work.lane, work.request, None, failed=FaultReason.RUNTIME_ERROR)
        if step.failed:
            return LaneResult(work.lane, work.request, None, failed=FaultReason.BAD_LOGITS)
        return LaneResult(work.lane, work.request, step.token, stopped=step.stopped, output=step.output)
