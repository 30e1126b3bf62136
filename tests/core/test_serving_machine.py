"""Anything, in any order: the whole core against its clients' streams and its device's lanes.

The checks of every step stand in `tests.core.world`; this file says what may happen, and what must be true when
it is over: whoever could be served was, everybody was told exactly once, and nothing is left behind.
"""

from __future__ import annotations

from typing import Any

import attrs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from calculet_trio.core import events as ev
from calculet_trio.core.effects import Drop, Fail, Finish, Refuse
from calculet_trio.core.events import CancelReason, FaultReason
from calculet_trio.core.jobs import EngineId
from calculet_trio.core.policy import (
    AdmissionPolicy,
    BatchPolicy,
    DecodeOrder,
    DecodePolicy,
    Policy,
    QueuePolicy,
    RecoveryPolicy,
    ReusePolicy,
    TenantPolicy,
    TurnPolicy,
)
from calculet_trio.core.profiles import LaneLayout, ModelShape
from calculet_trio.ids import GenerationId, JobId, LaneId, RequestId, ReservationId, SequenceId
from tests.core.shapes import evidence_of, small_shape
from tests.core.world import World

TENANTS = ("a", "b", "c")
OTHER_GENERATION = GenerationId(99)
SERVED_WITHIN_S = 60.0
MAX_SEQ = 24

picks = st.integers(0, 999)
crowds = st.lists(st.tuples(st.sampled_from(TENANTS), st.integers(1, 12), st.integers(1, 6)), min_size=2, max_size=6)


tenant_policies = st.dictionaries(
    st.sampled_from(TENANTS),
    st.builds(
        TenantPolicy,
        weight=st.sampled_from([0.5, 1.0, 3.0]),
        max_active_sequences=st.none() | st.integers(1, 3),
        max_waiting_tokens=st.none() | st.integers(3, 30),
        requests_per_s=st.none() | st.sampled_from([0.5, 20.0]),
        deadline_s=st.none() | st.sampled_from([5.0, 200.0]),
    ),
)


@st.composite
def shapes(draw: st.DrawFn) -> ModelShape:
    """Small models; the profile of one lane always holds everything, so that no pool is without a wide one."""
    lanes = draw(st.integers(1, 5), label="lanes")
    larger = draw(st.sampled_from([(), (2,), (2, 4), (4,), (5,)]), label="batches")
    own_pool = draw(st.booleans(), label="own_pool")
    return small_shape(
        lanes,
        batches=(1, *larger),
        max_seq=MAX_SEQ,
        prefill_max_seq=draw(st.sampled_from([MAX_SEQ, 16]), label="prefill_max_seq"),
        holds={batch: draw(st.sampled_from([MAX_SEQ, 12]), label="holds") for batch in larger},
        pools=dict.fromkeys(larger, "second") if own_pool else {},
        layout=draw(st.sampled_from(LaneLayout), label="layout"),
        lane_fault_isolation=draw(st.booleans(), label="lane_fault_isolation"),
    )


@st.composite
def policies(draw: st.DrawFn, lanes: int, engines: int) -> Policy:
    """Small budgets, so that every limit is met soon."""
    return Policy(
        admission=AdmissionPolicy(
            max_sequences=draw(st.none() | st.integers(1, lanes), label="max_sequences"),
            max_kv_tokens=draw(st.none() | st.integers(MAX_SEQ, lanes * MAX_SEQ), label="max_kv_tokens"),
            max_waiting_requests=draw(st.integers(0, 5), label="max_waiting_requests"),
            max_waiting_prompt_tokens=draw(st.integers(5, 60), label="max_waiting_prompt_tokens"),
            max_inflight_jobs=draw(st.integers(1, engines), label="max_inflight_jobs"),
        ),
        queues=QueuePolicy(
            policy=draw(st.sampled_from(TurnPolicy), label="turns"),
            short_prefill_max_tokens=4,
            medium_prefill_max_tokens=10,
            long_quota=draw(st.sampled_from([1.0, 0.01]), label="long_quota"),
            prefill_chunk_tokens=draw(st.integers(1, 6), label="prefill_chunk_tokens"),
        ),
        decode=DecodePolicy(
            order=draw(st.sampled_from(DecodeOrder), label="order"),
            tenant_lane_share=draw(st.sampled_from([1.0, 0.5]), label="tenant_lane_share"),
        ),
        batch=BatchPolicy(
            batching_window_s=draw(st.sampled_from([0.0, 0.25, 2.0]), label="batching_window_s"),
            thresholds=draw(st.sampled_from([{}, {2: 2, 4: 3}, {1: 1}]), label="thresholds"),
        ),
        reuse=ReusePolicy(
            max_lanes=draw(st.none() | st.integers(1, 2), label="reuse_max_lanes"),
            max_age_s=draw(st.sampled_from([2.0, 600.0]), label="reuse_max_age_s"),
            min_tokens=draw(st.integers(1, 4), label="reuse_min_tokens"),
            replies=draw(st.sampled_from([None, None, True, False]), label="reuse_replies"),
        ),
        tenants=draw(tenant_policies, label="tenants"),
        recovery=RecoveryPolicy(
            max_resets_per_10min=draw(st.sampled_from([0, 1, 100]), label="max_resets_per_10min"),
            replay=draw(st.booleans(), label="replay"),
        ),
    )


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """A model under a policy, on a device of one engine or two."""
    shape = draw(shapes())
    engines = draw(st.sampled_from([(EngineId.PING,), (EngineId.PING, EngineId.PONG)]), label="engines")
    policy = draw(policies(shape.lanes, len(engines)))
    shown = [None, "incremental_prefill", "prefix_reuse", "reply_reuse"]
    capability = draw(st.sampled_from(shown), label="evidence")
    evidence = None if capability is None else evidence_of(capability)
    return World(shape, policy=policy, engines=engines, evidence=evidence)


def nth(items: Any, pick: int) -> Any:
    """One of the items, by any number."""
    found = list(items)
    return found[pick % len(found)]


class ServingMachine(RuleBasedStateMachine):
    """Clients, a device with every fault, time and a drain."""

    world: World

    @initialize(world=worlds(), asks=crowds, answers=st.integers(0, 20))
    def begin(self, world: World, asks: list[tuple[str, int, int]], answers: int) -> None:
        """A service that has been at work for a while."""
        self.world = world
        self.ask_in_a_crowd(asks)
        self.world.answer(answers)

    # ---- clients --------------------------------------------------------------------------------

    @rule(tenant=st.sampled_from(TENANTS), deadline_s=st.none() | st.sampled_from([-1.0, 0.0, 0.5, 3.0, 500.0]))
    def arrive(self, tenant: str, deadline_s: float | None) -> None:
        self.world.arrive(tenant=tenant, deadline_s=deadline_s)

    @rule(
        tenant=st.sampled_from(TENANTS),
        prompt_tokens=st.integers(1, MAX_SEQ + 1),
        max_new_tokens=st.none() | st.integers(1, 6),
    )
    def ask(self, tenant: str, prompt_tokens: int, max_new_tokens: int | None) -> None:
        self.world.ask(tenant=tenant, prompt_tokens=prompt_tokens, max_new_tokens=max_new_tokens)

    @precondition(lambda self: self.world.streams)
    @rule(pick=picks, prompt_tokens=st.integers(1, MAX_SEQ + 1), max_new_tokens=st.none() | st.integers(1, 6))
    def offer(self, pick: int, prompt_tokens: int, max_new_tokens: int | None) -> None:
        """Of any request: those that were offered before, or have ended, must not mind."""
        request = nth(self.world.streams, pick)
        self.world.offer(request, prompt_tokens=prompt_tokens, max_new_tokens=max_new_tokens)

    @precondition(lambda self: any(stream.tokens and not stream.is_open for stream in self.world.streams.values()))
    @rule(pick=picks, more=st.integers(1, 6), max_new_tokens=st.none() | st.integers(1, 6))
    def come_back(self, pick: int, more: int, max_new_tokens: int | None) -> None:
        ended = [stream.request for stream in self.world.streams.values() if stream.tokens and not stream.is_open]
        self.world.come_back(nth(ended, pick), more=more, max_new_tokens=max_new_tokens)

    @precondition(lambda self: self.world.streams)
    @rule(pick=picks, reason=st.sampled_from(CancelReason))
    def cancel(self, pick: int, reason: CancelReason) -> None:
        self.world.cancel(nth(self.world.streams, pick), reason)

    @rule(asks=crowds)
    def ask_in_a_crowd(self, asks: list[tuple[str, int, int]]) -> None:
        for tenant, prompt_tokens, max_new_tokens in asks:
            self.world.ask(tenant=tenant, prompt_tokens=prompt_tokens, max_new_tokens=max_new_tokens)

    # ---- the device -----------------------------------------------------------------------------

    @precondition(lambda self: self.world.allocations or self.world.jobs or self.world.releases)
    @rule(many=st.integers(1, 8))
    def work_on(self, many: int) -> None:
        """So many good answers, so that what comes next finds something going on."""
        self.world.answer(many)

    @precondition(lambda self: self.world.allocations)
    @rule(pick=picks)
    def allocate(self, pick: int) -> None:
        self.world.allocate(nth(self.world.allocations, pick))

    @precondition(lambda self: self.world.allocations)
    @rule(pick=picks)
    def refuse_allocation(self, pick: int) -> None:
        self.world.refuse_allocation(nth(self.world.allocations, pick))

    @precondition(lambda self: self.world.jobs)
    @rule(pick=picks, stop=st.integers(0, 31), fail=st.integers(0, 31), ends_some=st.booleans())
    def finish(self, pick: int, stop: int, fail: int, ends_some: bool) -> None:
        """Mostly everybody goes on; sometimes some lanes stop or fail by themselves."""
        job = nth(self.world.jobs, pick)
        works = self.world.jobs[job].lanes if ends_some else ()
        self.world.finish(
            job,
            stop=[work.request for work in works if stop >> work.index & 1],
            fail=[work.request for work in works if fail >> work.index & 1],
        )

    @precondition(lambda self: self.world.jobs)
    @rule(pick=picks)
    def finish_without_results(self, pick: int) -> None:
        self.world.finish(nth(self.world.jobs, pick), mute=True)

    @precondition(lambda self: self.world.jobs and len(self.world.past) > 8)
    @rule(pick=picks, which=st.integers(1, 31))
    def lose_lanes(self, pick: int, which: int) -> None:
        """The device is not sure about some lanes of a job."""
        job: JobId = nth(self.world.jobs, pick)
        lost = [work.lane for work in self.world.jobs[job].lanes if which >> work.index & 1]
        if lost:
            self.world.finish(job, lost=lost)

    @precondition(lambda self: self.world.jobs)
    @rule(pick=picks)
    def fail_output(self, pick: int) -> None:
        self.world.fail_output(nth(self.world.jobs, pick))

    @precondition(lambda self: self.world.jobs)
    @rule(pick=picks, reason=st.sampled_from([FaultReason.DEVICE_BUSY] * 3 + [FaultReason.RUNTIME_ERROR]))
    def refuse_job(self, pick: int, reason: FaultReason) -> None:
        self.world.refuse_job(nth(self.world.jobs, pick), reason)

    @precondition(lambda self: self.world.jobs and len(self.world.past) > 8)
    @rule(pick=picks, reason=st.sampled_from([FaultReason.TIMEOUT, FaultReason.CCU_FAULT, FaultReason.DEVICE_LOST]))
    def lose_job(self, pick: int, reason: FaultReason) -> None:
        self.world.lose_job(nth(self.world.jobs, pick), reason)

    @precondition(lambda self: self.world.releases)
    @rule(pick=picks)
    def release(self, pick: int) -> None:
        self.world.release(nth(self.world.releases, pick))

    @precondition(lambda self: self.world.releases)
    @rule(pick=picks)
    def release_without_being_sure(self, pick: int) -> None:
        self.world.release(nth(self.world.releases, pick), confirmed=False)

    @precondition(lambda self: self.world.resets)
    @rule(failed=st.sampled_from([None, None, None, FaultReason.GOLDEN_MISMATCH]))
    def reset(self, failed: FaultReason | None) -> None:
        self.world.reset(failed)

    @rule()
    def an_operator_asks_for_a_reset(self) -> None:
        self.world.tell(ev.ResetAsked())

    # ---- answers that must change nothing ---------------------------------------------------------

    @precondition(lambda self: self.world.past)
    @rule(pick=picks)
    def answer_again(self, pick: int) -> None:
        self.world.stale(nth(self.world.past, pick))

    @precondition(lambda self: self.world.jobs)
    @rule(pick=picks, lost=st.booleans())
    def answer_for_another_generation(self, pick: int, lost: bool) -> None:
        job: JobId = nth(self.world.jobs, pick)
        if lost:
            self.world.stale(ev.JobUnknown(job, OTHER_GENERATION, FaultReason.TIMEOUT))
        else:
            self.world.stale(ev.JobFinished(job, OTHER_GENERATION, ()))

    @precondition(lambda self: self.world.releases)
    @rule(pick=picks)
    def release_something_else(self, pick: int) -> None:
        asked = nth(self.world.releases.values(), pick)
        self.world.stale(ev.SequenceReleased(asked.generation, asked.lane, SequenceId(10_000), True))
        self.world.stale(ev.SequenceReleased(OTHER_GENERATION, asked.lane, asked.sequence, True))
        self.world.stale(ev.SequenceReleased(asked.generation, LaneId(asked.lane + 1), asked.sequence, True))

    @precondition(lambda self: self.world.allocations)
    @rule(pick=picks)
    def answer_another_allocation(self, pick: int) -> None:
        asked = nth(self.world.allocations.values(), pick)
        named = (asked.generation, asked.lane, asked.request, asked.reservation)
        answer = ev.SequenceAllocated(*named, SequenceId(10_000))
        refusal = ev.SequenceRefused(*named, FaultReason.NO_CAPACITY)
        for another in (
            {"generation": OTHER_GENERATION},
            {"lane": LaneId(99)},
            {"request": RequestId(10_000)},
            {"reservation": ReservationId(asked.reservation - 1)},
        ):
            self.world.stale(attrs.evolve(answer, **another))
            self.world.stale(attrs.evolve(refusal, **another))

    @rule(number=st.integers(10_000, 10_010))
    def speak_of_the_unheard_of(self, number: int) -> None:
        self.world.stale(ev.Offered(RequestId(number), GenerationId(1), (1, 2, 3), 4))
        self.world.stale(ev.Cancelled(RequestId(number), CancelReason.CLIENT_GONE))
        self.world.stale(ev.JobFailed(JobId(number), GenerationId(1), FaultReason.OUTPUT_ERROR))

    # ---- the control plane ----------------------------------------------------------------------

    @precondition(lambda self: self.world.is_sound and self.world.serves and len(self.world.past) > 8)
    @rule()
    def take_the_model_away(self) -> None:
        self.world.pause_model()

    @precondition(lambda self: not self.world.serves and self.world.is_sound)
    @rule()
    def bring_the_model_back(self) -> None:
        self.world.resume_model()

    @rule(tenants=tenant_policies)
    def change_tenants(self, tenants: dict[str, TenantPolicy]) -> None:
        before = [stream.request for stream in self.world.open_streams]
        self.world.change_tenants(tenants)
        assert [stream.request for stream in self.world.open_streams] == before, "nobody is lost by it"

    # ---- time -----------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.0, 0.004, 0.005, 0.5, 1.0, 3.0, 20.0]))
    def pass_time(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @precondition(lambda self: self.world.core.next_wakeup() is not None)
    @rule()
    def wake_up_as_asked(self) -> None:
        wakeup_s = self.world.core.next_wakeup()
        assert wakeup_s is not None
        self.world.pass_time(wakeup_s - self.world.now)

    @precondition(lambda self: len(self.world.past) > 12)
    @rule(within_s=st.sampled_from([0.0, 1.0, 30.0]))
    def drain(self, within_s: float) -> None:
        self.world.drain(within_s)

    # ---- the end --------------------------------------------------------------------------------

    def teardown(self) -> None:
        """Everything is answered from now on: whoever can be served is, and nothing is left."""
        if not hasattr(self, "world") or not self.world.sound:
            return  # a step has failed already: its error is the one to read
        world = self.world
        if not world.serves and world.is_sound:
            world.resume_model()
        for stream in world.open_streams:
            if not stream.prompt:
                world.cancel(stream.request)
        due = [s for s in world.open_streams if not s.cancelled and s.deadline_s > world.now + SERVED_WITHIN_S]
        is_served = not world.drained and world.is_sound and not any(s.shut_down for s in due)
        draining = world.core.snapshot().status.word == "draining"
        within_s = 1.0 if draining else SERVED_WITHIN_S
        world.run(until_s=within_s)
        for stream in due:
            assert stream.end is not None, f"request {stream.request} starved"
            if is_served and world.can_hold(stream):
                assert isinstance(stream.end, Finish) or stream.cannot_be_replayed(world.shape), stream
        world.run(until_s=1000.0)
        self._expect_nothing_left()

    def _expect_nothing_left(self) -> None:
        world = self.world
        ends = [type(stream.end) for stream in world.streams.values()]
        assert len(ends) == sum(ends.count(kind) for kind in (Finish, Fail, Refuse, Drop)), "everybody was told"
        snapshot = world.core.snapshot()
        assert (snapshot.waiting_requests, snapshot.waiting_prompt_tokens, snapshot.running_requests) == (0, 0, 0)
        assert snapshot.jobs_in_flight == 0
        assert world.core.next_wakeup() is None, "nobody is left to wake up for"
        assert snapshot.status.word != "draining" or world.drained
        unknown = len(world.device.sequence) - len(world.lanes_alive)
        free = sum(world.device.sequence[lane] is None for lane in world.lanes_alive)
        assert free + unknown == world.shape.lanes, "every lane came back, or is known to be lost"


TestServingMachine = ServingMachine.TestCase
TestServingMachine.settings = settings(max_examples=120, stateful_step_count=50)
