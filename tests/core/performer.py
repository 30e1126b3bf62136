"""Performs the core's effects on a tiny device and its clients' streams; each is checked before it is done."""

from __future__ import annotations

from calculet_trio.core import events as ev
from calculet_trio.core.effects import (
    Abandon,
    Admit,
    AllocateSequence,
    ContinueSequence,
    Deliver,
    Drained,
    Drop,
    Effect,
    Fail,
    Finish,
    Place,
    Quarantined,
    Refuse,
    ReleaseSequence,
    ResetDevice,
    SubmitJob,
)
from calculet_trio.core.evidence import Evidence
from calculet_trio.core.jobs import PIECE_TOKENS_MIN, DecodeJob, EngineId, Job, LaneWork, PrefillJob
from calculet_trio.core.policy import Policy
from calculet_trio.core.profiles import ModelShape
from calculet_trio.core.serving import ServingCore
from calculet_trio.ids import JobId, LaneId, RequestId, SequenceId
from tests.core.device import Device
from tests.core.shapes import small_policy, small_shape
from tests.core.stream import Stream


class Performer:
    """The outside of one core; `tests.core.world.World` makes things happen in it.

    Attributes:
        now: monotonic seconds; only `pass_time` moves it.
        streams: every request that ever arrived.
        allocations, jobs, releases: what the core asked for and nobody has answered yet, oldest first.
        resets: of the device, that were asked for and have not ended.
        abandoned: that the device was given up; once at most.
        past: answers that were given; any of them may come again.
        effects: what the last event led to.
        serves: the generation is not being recovered.
        pausing: the device refused a job, so that engines may idle for a moment.
        sound: no check has failed so far.
    """

    def __init__(
        self,
        shape: ModelShape | None = None,
        *,
        policy: Policy | None = None,
        engines: tuple[EngineId, ...] = (EngineId.PING,),
        evidence: Evidence | None = None,
    ) -> None:
        self.shape = shape or small_shape()
        self.policy = policy or small_policy()
        self.tenants = self.policy.tenants
        self.evidence = evidence
        self.core = ServingCore(self.policy, engines)
        self.device = Device(self.shape.lanes, engines)
        self.now = 100.0
        self.streams: dict[RequestId, Stream] = {}
        self.allocations: dict[RequestId, AllocateSequence | ContinueSequence] = {}
        self.jobs: dict[JobId, Job] = {}
        self.releases: dict[SequenceId, ReleaseSequence] = {}
        self.resets: list[ResetDevice] = []
        self.abandoned: list[Abandon] = []
        self.past: list[ev.Event] = []
        self.effects: list[Effect] = []
        self.drained = False
        self.serves = True
        self.sound = True
        self._drain_deadline_s: float | None = None
        self.pausing = False
        self._reserved: dict[LaneId, int] = {}
        self._tenant_of: dict[LaneId, str] = {}

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Place():
                self.streams[effect.request].place()
            case Admit():
                self.streams[effect.request].admit(effect)
                self.streams[effect.request].ready_s = self.now
            case Deliver():
                self.streams[effect.request].deliver(effect.output)
            case Refuse() | Finish() | Fail() | Drop():
                self.streams[effect.request].close(effect, now=self.now)
            case AllocateSequence() | ContinueSequence():
                self._begin_allocation(effect)
            case ReleaseSequence():
                self.device.begin_release(effect.lane, effect.sequence)
                self.releases[effect.sequence] = effect
            case SubmitJob():
                self._begin_job(effect)
            case Quarantined():
                self.device.quarantine(effect.engine)
            case ResetDevice():
                self._begin_reset(effect)
            case Abandon():
                assert not self.abandoned, "said once"
                self.abandoned.append(effect)
                self.device.abandon()
            case Drained():
                assert not self.drained, "said once"
                self.drained = True

    def _begin_reset(self, effect: ResetDevice) -> None:
        assert self.device.is_quiet, "something is still out"
        assert not self.allocations, "an allocation is still out"
        assert not self.resets, "one at a time"
        self.resets.append(effect)
        for stream in self.open_streams:
            if stream.admitted is not None:
                assert self.policy.recovery.replay, "it has lost its KV, and was not told"
                stream.begin_again()

    def _begin_allocation(self, effect: AllocateSequence | ContinueSequence) -> None:
        stream = self.streams[effect.request]
        assert stream.is_open, "no lane for a request that has ended"
        assert effect.request not in self.allocations
        assert all(effect.lane != other.lane for other in self.allocations.values()), "one allocation a lane"
        if isinstance(effect, AllocateSequence):
            self._expect_empty_lane(effect, stream)
        else:
            self._expect_beginning(effect, stream)
        self.allocations[effect.request] = effect
        self._reserved[effect.lane] = len(stream.prompt) + stream.granted
        self._tenant_of[effect.lane] = stream.tenant

    def _expect_empty_lane(self, effect: AllocateSequence, stream: Stream) -> None:
        assert len(stream.prompt) + stream.granted <= effect.tokens <= self.shape.max_seq
        assert self.may_reuse or effect.tokens == len(stream.prompt) + stream.granted
        self.device.expect_empty(effect.lane)

    def _expect_beginning(self, effect: ContinueSequence, stream: Stream) -> None:
        """The lane holds how the request begins, and was its own tenant's."""
        assert self.may_reuse, "nobody has shown that a sequence can be continued"
        assert self._tenant_of[effect.lane] == stream.tenant, "a tenant's history is its own"
        self.device.shorten(effect.lane, effect.sequence, effect.drop_tokens)
        content = self.device.content[effect.lane]
        known = [*stream.prompt, *stream.tokens]
        assert 0 < len(content) < len(known), "at least one token is left, for its logits"
        assert content == known[: len(content)], "what is kept is how this request begins"
        if not self.may_reuse_replies and self.policy.queues.prefill_chunk_tokens > PIECE_TOKENS_MIN:
            assert not any(self.device.singly[effect.lane]), "what is kept was computed as it would be now"
            assert len(known) - len(content) >= PIECE_TOKENS_MIN, "and so will be what follows"

    @property
    def may_reuse(self) -> bool:
        """Whether lanes may be retained here."""
        is_shown = self.evidence is not None and self.evidence.allows("prefix_reuse")
        return is_shown and self.policy.reuse.enabled is not False

    @property
    def may_reuse_replies(self) -> bool:
        """Whether what decode wrote may be taken for what a prefill would write."""
        is_shown = self.evidence is not None and self.evidence.allows("reply_reuse")
        return is_shown if self.policy.reuse.replies is None else self.policy.reuse.replies

    def _begin_job(self, effect: SubmitJob) -> None:
        job = effect.job
        self.device.submit(effect.engine, job)
        self.jobs[job.job] = job
        assert len(self.jobs) <= self.policy.admission.max_inflight_jobs
        for work in job.lanes:
            stream = self.streams[work.request]
            assert stream.is_open, "no work for a request that has ended"
            assert self.device.content[work.lane] == stream.written, "the lane holds this request's tokens, no others"
            if isinstance(job, DecodeJob):
                self._expect_step(work, stream)
            else:
                self._expect_prefill(job, stream)

    def _expect_prefill(self, job: PrefillJob, stream: Stream) -> None:
        """The whole prompt; or, where that has been earned, the next chunk of it, and no last chunk of one token."""
        if stream.rewritten is None:
            assert not stream.tokens, "a prompt is prefilled once"
            rest = stream.prompt[stream.prefilled :]
        elif self.evidence is not None and self.evidence.allows("reply_reuse"):
            rest = (*stream.prompt, *stream.tokens)[stream.rewritten :]
        else:
            rest = stream.prompt[stream.rewritten :]
        may_chunk = self.evidence is not None and self.evidence.allows("incremental_prefill")
        tokens = min(len(rest), self.policy.queues.prefill_chunk_tokens) if may_chunk else len(rest)
        if len(rest) - tokens == 1:
            tokens = max(1, tokens - 1)
        assert tuple(job.work.tokens) == rest[:tokens]
        is_known = stream.rewritten is not None and stream.rewritten + len(rest) < len(stream.known)
        assert job.samples == (tokens == len(rest) and not is_known), "logits are wanted of a prompt's end only"

    def _expect_step(self, work: LaneWork, stream: Stream) -> None:
        """The newest token; in a replay each of them as it was written before, and nothing is sampled after it."""
        written = len(stream.written)
        assert tuple(work.tokens) == (stream.known[written],)
        assert work.samples == (written + 1 == len(stream.known))

    @property
    def open_streams(self) -> list[Stream]:
        return [stream for stream in self.streams.values() if stream.is_open]
