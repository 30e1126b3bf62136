"""One generation as the scheduler serves it: its lanes, and the work that waits for an engine.

Source: SPEC section 5–8.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from calculet_trio.core.decode import DecodeScheduler
from calculet_trio.core.evidence import Evidence, batch_capability
from calculet_trio.core.generation import GenerationState, ModelGeneration
from calculet_trio.core.jobs import Job, PrefillJob
from calculet_trio.core.lanes import KvLanes, LaneState
from calculet_trio.core.policy import BatchPolicy, Policy
from calculet_trio.core.prefill import PREFILL_KINDS, PrefillScheduler
from calculet_trio.core.profiles import ModelShape
from calculet_trio.core.request import Request, RequestEvent, RequestState
from calculet_trio.core.retention import Retention, ReuseCounts
from calculet_trio.core.service_rates import ServiceRates
from calculet_trio.core.turns import LongQuota, WorkKind, turns_of
from calculet_trio.ids import JobId


@attrs.frozen
class QueueDepth:
    """How many wait for an engine, and since when the first of them does (monotonic; None if none)."""

    requests: int
    oldest_s: float | None

    def with_more(self, other: QueueDepth) -> QueueDepth:
        """Both together."""
        moments = [moment for moment in (self.oldest_s, other.oldest_s) if moment is not None]
        return QueueDepth(self.requests + other.requests, min(moments, default=None))


class Served:
    """A published generation with everything that is scheduled on it.

    Args:
        generation: whose this is.
        shape: what its model offers.
        policy: the numbers.
        evidence: what it has been shown to do: prompts are cut, and lanes share a batch, only where that was shown.
            None where nothing could be on record: prompts are not cut, and every batch of the package is used.
        reuse: counts what comes of its retained lanes.

    Attributes:
        may_hold: whether a part-filled batch is ever made to wait for company.
    """

    def __init__(
        self,
        generation: ModelGeneration,
        shape: ModelShape,
        policy: Policy,
        evidence: Evidence | None,
        reuse: ReuseCounts,
    ) -> None:
        self.generation = generation
        self.shape = shape
        self.lanes = KvLanes(generation.id, lanes=shape.lanes, max_seq=shape.max_seq)
        # Whether decode was shown to write what a prefill would have written.
        is_same = evidence is not None and evidence.allows("reply_reuse")
        self.retention = Retention(
            policy.reuse if _may_reuse(policy, shape, evidence) else None,
            reuse,
            replies=is_same if policy.reuse.replies is None else policy.reuse.replies,
        )
        self.rates = ServiceRates()
        may_chunk = evidence is not None and evidence.allows("incremental_prefill")
        self._prefill = PrefillScheduler(
            policy.queues,
            chunk_tokens=policy.queues.prefill_chunk_tokens if may_chunk else None,
            replies=is_same,
        )
        self._decode = DecodeScheduler(shape, policy.decode, _shown(policy.batch, shape, evidence), self.rates)
        self.may_hold = policy.batch.batching_window_s > 0
        self._turns = turns_of(policy.queues)
        self._long_quota = LongQuota(policy.queues.long_quota)

    @property
    def is_ready(self) -> bool:
        return self.generation.state is GenerationState.READY

    @property
    def context_tokens(self) -> int:
        """The longest context of a sequence: what a lane holds and some profile decodes."""
        return min(self.lanes.max_seq, self._decode.max_seq)

    def enqueue_token(self, request: Request, now: float) -> None:
        """A request whose token was just committed waits for an engine again."""
        request.ready_s = now
        self._decode.push(request)

    def enqueue_prompt(self, request: Request, now: float) -> None:
        """An admitted request waits for an engine."""
        request.ready_s = now
        self._prefill.push(request)

    def enqueue_known(self, request: Request, now: float) -> None:
        """A request of whose known tokens some were just committed, and nothing was sampled: the others follow."""
        if request.prefilled_tokens < self._prefill.share(request):
            request.advance(RequestEvent.CHUNK)
            request.ready_s = now
            self._prefill.put_back(request)  # before others begin
        else:
            request.advance(RequestEvent.COMMIT)
            self.enqueue_token(request, now)

    def can_write_again(self, request: Request) -> bool:
        """Whether the prefill graph takes what is for it to write; with what was decoded that may have outgrown it."""
        return self._prefill.share(request) <= self.shape.prefill.max_seq

    def put_back(self, request: Request) -> None:
        """The device did not take the request's job."""
        if request.state is RequestState.PREFILL_READY:
            self._prefill.put_back(request)
        else:
            self._decode.put_back(request)

    def retain(self, request: Request, now: float) -> bool:
        """The request, in no job, is about to end well: keep what its lane holds, if that may be; then it has none."""
        return self.is_ready and self.retention.keep(request, now)

    def tokens_to_allocate(self, request: Request) -> int:
        """What its lane is to hold: where lanes are retained, also what others may append later."""
        return self.context_tokens if self.retention.is_enabled else request.tokens_at_most

    def lose_all(self) -> None:
        """The device is about to be reset: what lanes hold is lost, and nothing waits for an engine."""
        self.lanes.lose_all()
        self.retention.lose_all()
        self._prefill.clear()
        self._decode.clear()

    def plan(
        self, job: JobId, now: float, *, decoding: Sequence[Request] = (), other_is_idle: bool = False
    ) -> tuple[Job, list[Request]] | None:
        """The next job of this generation and the requests in it; None if nothing is to be sent now.

        Args:
            job: its id.
            now: monotonic seconds.
            decoding: whose next token another engine is working on.
            other_is_idle: whether another engine could be given a job now, too.
        """
        available = self._prefill.available()
        if self._decode.available() and not self.is_holding(now) and not self._decode.waits_to_join(decoding):
            available.insert(0, WorkKind.DECODE)
        if len(available) > 1 and WorkKind.LONG_PREFILL in available and not self._long_quota.allows(now):
            available.remove(WorkKind.LONG_PREFILL)
        if not available:
            return None
        kind = self._turns.turn(available)
        if kind is WorkKind.DECODE:
            return self._decode.plan(job, now, other_is_idle=other_is_idle)
        prefill, request = self._prefill.plan(kind, job, self.shape.prefill)
        return prefill, [request]

    def hold_until_s(self, decoding: Sequence[Request] = ()) -> float | None:
        """Until when the next decode batch waits for company; None while nothing is held, or what is ``decoding``."""
        return None if self._decode.waits_to_join(decoding) else self._decode.hold_until_s(self._joinable)

    def is_holding(self, now: float) -> bool:
        """Whether a part-filled batch is to wait a little longer."""
        until_s = self.hold_until_s() if self.may_hold else None
        return until_s is not None and now < until_s

    def charge(self, job: Job, taken_s: float, now: float, *, beside: bool | None = None) -> None:
        """A job has ended: what it took is what its kind has had of the device."""
        self.rates.observe(job, taken_s, beside=beside)
        kind = self.kind_of(job)
        self._turns.charge(kind, taken_s)
        if kind is WorkKind.LONG_PREFILL:
            self._long_quota.charge(taken_s, now)

    def kind_of(self, job: Job) -> WorkKind:
        """The kind of work that a job is."""
        return self._prefill.class_of(len(job.work.tokens)) if isinstance(job, PrefillJob) else WorkKind.DECODE

    def depths(self) -> dict[WorkKind, QueueDepth]:
        """How much waits for an engine, by kind."""
        waiting = {kind: self._prefill.waiting(kind) for kind in PREFILL_KINDS}
        waiting[WorkKind.DECODE] = self._decode.waiting()
        return {
            kind: QueueDepth(len(requests), min((request.ready_s for request in requests), default=None))
            for kind, requests in waiting.items()
        }

    def _joinable(self) -> int:
        """Sequences that are not ready for decode and may soon be."""
        states = self.lanes.by_state()
        in_use = states[LaneState.RESERVED] + states[LaneState.ACTIVE] + states[LaneState.UPDATING]
        return in_use - len(self._decode.waiting())


def _may_reuse(policy: Policy, shape: ModelShape, evidence: Evidence | None) -> bool:
    """Whether lanes may be retained. Where profiles have pools of their own, what one wrote prefill may not read."""
    is_shown = evidence is not None and evidence.allows("prefix_reuse")
    return is_shown and policy.reuse.enabled is not False and len({profile.kv_pool for profile in shape.decode}) == 1


def _shown(batch: BatchPolicy, shape: ModelShape, evidence: Evidence | None) -> BatchPolicy:
    """The profiles that may be used; one of several lanes has to have been shown first."""
    if evidence is None:
        return batch
    held = [profile.compiled_batch for profile in shape.decode]
    shown = tuple(
        size
        for size in held
        if (batch.profiles is None or size in batch.profiles) and evidence.standing(batch_capability(size)).earned
    )
    return attrs.evolve(batch, profiles=shown)
