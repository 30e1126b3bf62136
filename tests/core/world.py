"""A tiny, deterministic shell over a tiny device: it performs the core's effects, and answers when a test says so.

Whatever a test does with it, every effect is checked against the client's stream (`tests.core.stream`) and the
device's lanes (`tests.core.device`), and the core is checked after each event.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from calculet_trio.core import events as ev
from calculet_trio.core.effects import (
    Admit,
    AllocateSequence,
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
    SubmitJob,
)
from calculet_trio.core.events import CancelReason, FaultReason
from calculet_trio.core.evidence import Evidence
from calculet_trio.core.generation import GenerationEvent
from calculet_trio.core.jobs import DecodeJob, EngineId, Job, PrefillJob
from calculet_trio.core.policy import Policy, TenantPolicy
from calculet_trio.core.profiles import ModelShape
from calculet_trio.core.serving import ServingCore
from calculet_trio.ids import JobId, LaneId, RequestId, SequenceId
from tests.core.audit import audit
from tests.core.device import Device
from tests.core.shapes import ALIAS, GENERATION, small_shape
from tests.core.stream import Stream

LOAD_STEPS = (GenerationEvent.VALIDATE, GenerationEvent.CONFIGURE, GenerationEvent.WARM)


class World:
    """One core with its device and clients.

    Attributes:
        now: monotonic seconds; only `pass_time` moves it.
        streams: every request that ever arrived.
        allocations, jobs, releases: what the core asked for and nobody has answered yet, oldest first.
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
        published: bool = True,
        evidence: Evidence | None = None,
    ) -> None:
        self.shape = shape or small_shape()
        self.policy = policy or Policy()
        self.tenants = self.policy.tenants
        self.evidence = evidence
        self.core = ServingCore(self.policy, engines)
        self.device = Device(self.shape.lanes, engines)
        self.now = 100.0
        self.streams: dict[RequestId, Stream] = {}
        self.allocations: dict[RequestId, AllocateSequence] = {}
        self.jobs: dict[JobId, Job] = {}
        self.releases: dict[SequenceId, ReleaseSequence] = {}
        self.past: list[ev.Event] = []
        self.effects: list[Effect] = []
        self.drained = False
        self.serves = True
        self.sound = True
        self._drain_deadline_s: float | None = None
        self.pausing = False
        self._reserved: dict[LaneId, int] = {}
        if published:
            self.load()

    # ---- what happens ---------------------------------------------------------------------------

    def tell(self, event: ev.Event) -> list[Effect]:
        """Hand one event to the core, perform what it returns, and check everything that always holds."""
        self.sound = False
        self.effects = self.core.handle(event, self.now)
        for effect in self.effects:
            self._perform(effect)
        audit(self)
        self.sound = True
        return self.effects

    def load(self) -> None:
        """Bring the model to Ready."""
        for step in LOAD_STEPS:
            self.tell(ev.GenerationAdvanced(GENERATION, ALIAS, step))
        self.tell(ev.GenerationAdvanced(GENERATION, ALIAS, GenerationEvent.PUBLISH, self.shape, self.evidence))

    def arrive(self, *, tenant: str = "a", alias: str = ALIAS, deadline_s: float | None = None) -> RequestId:
        """Somebody is at the door; ``deadline_s`` counts from now."""
        request = RequestId(len(self.streams) + 1)
        own_s = self.tenants.get(tenant, TenantPolicy()).deadline_s
        within_s = self.policy.admission.deadline_default_s if own_s is None else own_s
        latest_s = self.now + (within_s if deadline_s is None else min(within_s, deadline_s))
        self.streams[request] = Stream(request, tenant, latest_s)
        asked_s = None if deadline_s is None else self.now + deadline_s
        self.tell(ev.Arrived(request, tenant, alias, asked_s))
        return request

    def offer(self, request: RequestId, *, prompt_tokens: int = 3, max_new_tokens: int | None = 3) -> None:
        """The request's prompt has been tokenized."""
        stream = self.streams[request]
        if stream.is_open and not stream.prompt:
            stream.prompt = tuple(range(1, prompt_tokens + 1))
            room = self.context_tokens - prompt_tokens
            stream.granted = room if max_new_tokens is None else min(max_new_tokens, room)
        self.tell(ev.Offered(request, tuple(range(1, prompt_tokens + 1)), max_new_tokens))

    def ask(
        self,
        *,
        prompt_tokens: int = 3,
        max_new_tokens: int | None = 3,
        tenant: str = "a",
        deadline_s: float | None = None,
    ) -> RequestId:
        """A request arrives and is offered at once."""
        request = self.arrive(tenant=tenant, deadline_s=deadline_s)
        self.offer(request, prompt_tokens=prompt_tokens, max_new_tokens=max_new_tokens)
        return request

    @property
    def context_tokens(self) -> int:
        """What one sequence may grow to: lanes, decode profiles and the KV budget each have their say."""
        budget = self.policy.admission.max_kv_tokens or self.shape.lanes * self.shape.max_seq
        return min(self.shape.max_seq, max(profile.max_seq for profile in self.shape.decode), budget)

    def change_tenants(self, tenants: Mapping[str, TenantPolicy]) -> None:
        """The control plane has new weights and limits; requests that are here keep their deadlines."""
        self.tenants = tenants
        self.tell(ev.TenantsChanged(tenants))

    def pause_model(self) -> None:
        """The generation is being recovered: what is running goes on, and what waits is set aside."""
        self.serves = False
        self.tell(ev.GenerationAdvanced(GENERATION, ALIAS, GenerationEvent.FAULT))

    def resume_model(self) -> None:
        self.serves = True
        self.tell(ev.GenerationAdvanced(GENERATION, ALIAS, GenerationEvent.RECOVERED))

    def cancel(self, request: RequestId, reason: CancelReason = CancelReason.CLIENT_GONE) -> None:
        stream = self.streams.get(request)
        if stream is not None and stream.is_open:
            stream.cancelled = True
        self.tell(ev.Cancelled(request, reason))

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.pausing = self.pausing and seconds < 1.0
        if self._drain_deadline_s is not None and self.now >= self._drain_deadline_s:
            self._shut_down()
        self.tell(ev.TimePassed())

    def drain(self, within_s: float = 30.0) -> None:
        self._drain_deadline_s = self.now + within_s
        if within_s <= 0:
            self._shut_down()
        self.tell(ev.DrainBegan(self._drain_deadline_s))

    def _shut_down(self) -> None:
        for stream in self.streams.values():
            stream.shut_down = stream.shut_down or stream.is_open

    # ---- the device's answers -------------------------------------------------------------------

    def allocate(self, request: RequestId) -> None:
        asked = self.allocations.pop(request)
        is_late = asked.lane in self.device.lost  # an answer from before the device was lost
        sequence = SequenceId(-request) if is_late else self.device.allocate(asked.lane)
        self._answer(ev.SequenceAllocated(asked.generation, asked.lane, request, sequence))

    def refuse_allocation(self, request: RequestId) -> None:
        asked = self.allocations.pop(request)
        self.tell(ev.SequenceRefused(asked.generation, asked.lane, request, FaultReason.NO_CAPACITY))

    def finish(
        self,
        job: JobId,
        *,
        stop: Collection[RequestId] = (),
        fail: Collection[RequestId] = (),
        lost: Collection[LaneId] = (),
        mute: bool = False,
    ) -> None:
        """The job's tokens are written and sampled.

        Args:
            job: which.
            stop: whose reply comes to its natural end.
            fail: whose lane fails by itself.
            lost: lanes of which the device says that it does not know what they hold.
            mute: the results got lost on their way.
        """
        if lost and not self.shape.lane_fault_isolation:
            ended, mute = self.jobs.pop(job), True
            self.device.lose(job)
        else:
            ended = self._end(job, written=True)
            self.device.lose_lanes(lost)
        mute = mute or not ended.samples
        results = []
        expected = []
        for work in ended.lanes:
            stream = self.streams[work.request]
            if work.lane in lost:
                continue
            failed = FaultReason.BAD_LOGITS if work.request in fail else None
            token = None if failed else stream.next_token
            stopped = work.request in stop
            stream.stopped = stream.stopped or stopped
            results.append(ev.LaneResult(work.lane, work.request, token, stopped, failed, output=token))
            if token and not mute and not stream.cancelled and not stream.shut_down:
                expected.append(Deliver(work.request, token))
        self.pausing = False
        self._answer(ev.JobFinished(job, ended.generation, () if mute else tuple(results), frozenset(lost)))
        assert [effect for effect in self.effects if isinstance(effect, Deliver)] == expected

    def fail_output(self, job: JobId) -> None:
        ended = self._end(job, written=True, dirty=True)
        self.pausing = False
        self._answer(ev.JobFailed(job, ended.generation, FaultReason.OUTPUT_ERROR))
        assert not any(isinstance(effect, Deliver) for effect in self.effects)

    def refuse_job(self, job: JobId, reason: FaultReason = FaultReason.DEVICE_BUSY) -> None:
        ended = self._end(job)
        self.pausing = True
        self._answer(ev.JobNotSubmitted(job, ended.generation, reason))

    def lose_job(self, job: JobId, reason: FaultReason = FaultReason.TIMEOUT) -> None:
        ended = self.jobs.pop(job)
        self.device.lose(job)
        self._answer(ev.JobUnknown(job, ended.generation, reason))

    def release(self, sequence: SequenceId, *, confirmed: bool = True) -> None:
        asked = self.releases.pop(sequence)
        self.device.end_release(asked.lane, confirmed=confirmed)
        self._answer(ev.SequenceReleased(asked.generation, asked.lane, sequence, confirmed))

    def stale(self, event: ev.Event) -> None:
        """An answer that comes again, too late, or from another generation: nothing at all may follow from it."""
        before = self.core.snapshot()
        assert self.tell(event) == []
        assert self.core.snapshot() == before

    def _end(self, job: JobId, *, written: bool = False, dirty: bool = False) -> Job:
        del self.jobs[job]
        ended = self.device.end(job, written=written, dirty=dirty)
        for work in ended.lanes:
            stream = self.streams[work.request]
            stream.ready_s = self.now
            if isinstance(ended, PrefillJob) and written:
                stream.prefilled += len(work.tokens)
        return ended

    def _answer(self, event: ev.Event) -> None:
        self.past.append(event)
        self.tell(event)

    # ---- answers by the dozen -------------------------------------------------------------------

    @property
    def job(self) -> Job:
        """The one job that is out."""
        [job] = self.jobs.values()
        return job

    @property
    def open_streams(self) -> list[Stream]:
        return [stream for stream in self.streams.values() if stream.is_open]

    def answer(self, many: int, *, jobs: bool = True) -> bool:
        """Give so many outstanding answers, the best one each time; whether there were so many."""
        for _ in range(many):
            if self.releases:
                self.release(next(iter(self.releases)))
            elif self.allocations:
                self.allocate(next(iter(self.allocations)))
            elif self.jobs and jobs:
                self.finish(next(iter(self.jobs)))
            else:
                return False
        return True

    def answer_all(self, *, jobs: bool = True, steps_max: int = 10_000) -> None:
        """Give every outstanding answer until nothing is asked any more."""
        assert not self.answer(steps_max, jobs=jobs), "the core never comes to rest"

    def run(self, *, until_s: float = 10.0, wakeups_max: int = 1000) -> None:
        """Answer everything and wake the core when it asks for it, for no longer than ``until_s`` from now."""
        last_s = self.now + until_s
        for _ in range(wakeups_max):
            self.answer_all()
            wakeup_s = self.core.next_wakeup()
            if wakeup_s is None or wakeup_s > last_s:
                return
            self.pass_time(wakeup_s - self.now)
        raise AssertionError("the core wakes up again and again")

    # ---- performing and checking ----------------------------------------------------------------

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
            case AllocateSequence():
                self._begin_allocation(effect)
            case ReleaseSequence():
                self.device.begin_release(effect.lane, effect.sequence)
                self.releases[effect.sequence] = effect
            case SubmitJob():
                self._begin_job(effect)
            case Quarantined():
                self.device.quarantine(effect.engine)
            case Drained():
                assert not self.drained, "said once"
                self.drained = True

    def _begin_allocation(self, effect: AllocateSequence) -> None:
        stream = self.streams[effect.request]
        assert stream.is_open, "no lane for a request that has ended"
        assert effect.tokens == len(stream.prompt) + stream.granted <= self.shape.max_seq
        assert effect.request not in self.allocations
        assert all(effect.lane != other.lane for other in self.allocations.values()), "one allocation a lane"
        self.device.expect_empty(effect.lane)
        self.allocations[effect.request] = effect
        self._reserved[effect.lane] = effect.tokens

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
                assert tuple(work.tokens) == (stream.tokens[-1],)
            else:
                self._expect_prefill(job, stream)

    def _expect_prefill(self, job: PrefillJob, stream: Stream) -> None:
        """The whole prompt; or, where that has been earned, the next chunk of it."""
        assert not stream.tokens, "a prompt is prefilled once"
        rest = stream.prompt[stream.prefilled :]
        may_chunk = self.evidence is not None and self.evidence.allows("incremental_prefill")
        tokens = min(len(rest), self.policy.queues.prefill_chunk_tokens) if may_chunk else len(rest)
        assert tuple(job.work.tokens) == rest[:tokens]
        assert job.samples == (tokens == len(rest)), "logits are wanted of a prompt's end only"

    def can_hold(self, stream: Stream) -> bool:
        """Whether the budgets hold the request once all lanes are free that can be; lost ones stay charged."""
        budgets, tokens = self.policy.admission, len(stream.prompt) + stream.granted
        lost_tokens = sum(self._reserved.get(lane, 0) for lane in self.device.lost)
        fits = budgets.max_kv_tokens is None or lost_tokens + tokens <= budgets.max_kv_tokens
        return fits and len(self.device.lost) < (budgets.max_sequences or self.shape.lanes)

    @property
    def lanes_alive(self) -> list[LaneId]:
        return [lane for lane in self.device.sequence if lane not in self.device.lost]


def decoding_pair(world: World) -> tuple[RequestId, RequestId]:
    """Two requests in one decode job."""
    pair = world.ask(max_new_tokens=9), world.ask(max_new_tokens=9)
    world.answer_all(jobs=False)
    while isinstance(world.job, PrefillJob) or len(world.job.lanes) < 2:
        world.finish(world.job.job)
    return pair
