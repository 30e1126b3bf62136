"""A tiny, deterministic shell over a tiny device: it performs the core's effects, and answers when a test says so.

Whatever a test does with it, every effect is checked against the client's stream (`tests.core.stream`) and the
device's lanes (`tests.core.device`), and the core is checked after each event.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from calculet_trio.core import events as ev
from calculet_trio.core.effects import (
    ContinueSequence,
    Deliver,
    Effect,
)
from calculet_trio.core.events import CancelReason, FaultReason
from calculet_trio.core.evidence import Evidence
from calculet_trio.core.generation import GenerationEvent
from calculet_trio.core.jobs import EngineId, Job, PrefillJob
from calculet_trio.core.policy import Policy, TenantPolicy
from calculet_trio.core.profiles import ModelShape
from calculet_trio.ids import GenerationId, JobId, LaneId, RequestId, SequenceId
from tests.core.audit import audit
from tests.core.performer import Performer
from tests.core.shapes import ALIAS, GENERATION
from tests.core.stream import Stream

LOAD_STEPS = (GenerationEvent.VALIDATE, GenerationEvent.CONFIGURE, GenerationEvent.WARM)


class World(Performer):
    """One core with its device and clients."""

    def __init__(
        self,
        shape: ModelShape | None = None,
        *,
        policy: Policy | None = None,
        engines: tuple[EngineId, ...] = (EngineId.PING,),
        published: bool = True,
        evidence: Evidence | None = None,
    ) -> None:
        super().__init__(shape, policy=policy, engines=engines, evidence=evidence)
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

    def offer(
        self,
        request: RequestId,
        *,
        prompt_tokens: int = 3,
        prompt: tuple[int, ...] | None = None,
        max_new_tokens: int | None = 3,
        generation: GenerationId = GENERATION,
    ) -> None:
        """The request's prompt has been tokenized."""
        stream = self.streams[request]
        prompt = prompt or tuple(range(1, prompt_tokens + 1))
        if stream.is_open and not stream.prompt:
            stream.prompt = prompt
            room = self.context_tokens - len(prompt)
            stream.granted = room if max_new_tokens is None else min(max_new_tokens, room)
        self.tell(ev.Offered(request, generation, prompt, max_new_tokens))

    def ask(
        self,
        *,
        prompt_tokens: int = 3,
        prompt: tuple[int, ...] | None = None,
        max_new_tokens: int | None = 3,
        tenant: str = "a",
        deadline_s: float | None = None,
    ) -> RequestId:
        """A request arrives and is offered at once; its prompt is the first numbers, or another."""
        request = self.arrive(tenant=tenant, deadline_s=deadline_s)
        self.offer(request, prompt_tokens=prompt_tokens, prompt=prompt, max_new_tokens=max_new_tokens)
        return request

    def come_back(self, request: RequestId, *, more: int = 2, max_new_tokens: int | None = 3) -> RequestId:
        """The client of an ended request goes on: its prompt, its reply, and so many tokens more."""
        before = self.streams[request]
        prompt = (*before.prompt, *before.tokens, *range(-more, 0))
        return self.ask(prompt=prompt, max_new_tokens=max_new_tokens, tenant=before.tenant)

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
        if isinstance(asked, ContinueSequence):
            sequence = asked.sequence
            self.streams[request].found(len(self.device.content[asked.lane]))
        else:
            sequence = SequenceId(-request) if is_late else self.device.allocate(asked.lane)
            self.streams[request].found(0)
        self.streams[request].has_lane = True
        self._answer(ev.SequenceAllocated(asked.generation, asked.lane, request, asked.reservation, sequence))

    def refuse_allocation(self, request: RequestId) -> None:
        asked = self.allocations.pop(request)
        reason = FaultReason.NO_CAPACITY
        self._answer(ev.SequenceRefused(asked.generation, asked.lane, request, asked.reservation, reason))

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
        results = []
        expected = []
        for work in ended.lanes:
            stream = self.streams[work.request]
            if work.lane in lost:
                if self.policy.recovery.replay:
                    stream.begin_again()
                continue
            if not work.samples:
                continue
            failed = FaultReason.BAD_LOGITS if work.request in fail else None
            token = None if failed else stream.next_token
            stopped = work.request in stop
            stream.stopped = stream.stopped or stopped
            results.append(ev.LaneResult(work.lane, work.request, token, stopped, failed, output=token))
            if token and not mute and stream.is_open and not stream.cancelled and not stream.shut_down:
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

    def reset(self, failed: FaultReason | None = None) -> None:
        """The reset that was asked for has ended."""
        self.resets.pop()
        if failed is None:
            self.device.reset()
            self.serves = True
        self.tell(ev.DeviceReset(failed))

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
            if written and stream.rewritten is not None:
                stream.rewritten += len(work.tokens)
            elif isinstance(ended, PrefillJob) and written:
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
    def is_sound(self) -> bool:
        """Nothing is being reset, and the device has not been given up."""
        return self.core._recovery.device.is_sound

    def answer(self, many: int, *, jobs: bool = True) -> bool:
        """Give so many outstanding answers, the best one each time; whether there were so many."""
        for _ in range(many):
            if self.releases:
                self.release(next(iter(self.releases)))
            elif self.allocations:
                self.allocate(next(iter(self.allocations)))
            elif self.resets:
                self.reset()
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

    # ---- looking ---------------------------------------------------------------------------------

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
