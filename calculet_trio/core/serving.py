"""ServingCore: every decision of the service, as a function of what happened and when.

The shell tells it what happened (`handle`), performs the effects it returns, and wakes it when it asked to
be woken (`next_wakeup`). After each event it lets deadlines fall, admits who fits, and gives idle engines
work, so that between two calls nothing is left undone.

Source: SPEC section 2–9 (S §3–§9).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import assert_never

from calculet_trio.core import events as ev
from calculet_trio.core.admission import AdmissionController
from calculet_trio.core.backoff import Backoff
from calculet_trio.core.deadlines import Deadlines
from calculet_trio.core.degradation import EnginePair
from calculet_trio.core.effects import Drained, Effect, Place, Refusal, Refuse, SubmitJob
from calculet_trio.core.endings import DRAINING, LOADING, RECOVERING, Endings, device_failed
from calculet_trio.core.events import Event, FaultReason
from calculet_trio.core.fleet import Fleet
from calculet_trio.core.health import DeviceState, EngineHealth
from calculet_trio.core.jobs import EngineId, JobTable
from calculet_trio.core.lanes import LaneState
from calculet_trio.core.placement import Placement
from calculet_trio.core.policy import Policy
from calculet_trio.core.recovery import Recovery, ResetBudget
from calculet_trio.core.registry import RequestRegistry
from calculet_trio.core.replay import Replays
from calculet_trio.core.request import RequestEvent, RequestState
from calculet_trio.core.settlement import Settlement
from calculet_trio.core.slots import Slot, slots_of
from calculet_trio.core.snapshot import CoreSnapshot, EngineMode, service_status, take_snapshot
from calculet_trio.core.tenant_queue import TenantQueue
from calculet_trio.core.tenants import Tenants
from calculet_trio.ids import NO_GENERATION, RequestId


class ServingCore:
    """The service's decisions, over one device.

    Args:
        policy: budgets and weights of the device, and what a model without a policy of its own is scheduled by.
        engines: the device's job engines that may be used, in order of preference.
        policies: of aliases that have their own: how prefill, decode and batches of their generations are planned.
        dwell_s: how long a model stays on a device that several share by time.
        past_resets_s: moments of device resets by earlier processes, on the clock of ``now``, oldest first.
    """

    def __init__(
        self,
        policy: Policy,
        engines: Sequence[EngineId] = (EngineId.PING,),
        *,
        policies: Mapping[str, Policy] = MappingProxyType({}),
        dwell_s: float = 60.0,
        past_resets_s: Sequence[float] = (),
    ) -> None:
        self.policy = policy
        self._effects: list[Effect] = []
        self._tenants = Tenants(policy.tenants)
        self._registry = RequestRegistry(self._tenants)
        self._queue = TenantQueue(self._tenants)
        self._admission = AdmissionController(policy.admission, self._registry, self._queue)
        self._jobs = JobTable()
        self._deadlines = Deadlines(self._registry)
        self._engines = {engine: EngineHealth(engine) for engine in engines}
        self._submission = Backoff()
        self._drain_deadline_s: float | None = None
        self._is_draining = False
        self._said_drained = False
        self._pair = EnginePair(
            policy.executor,
            self._engines,
            jobs_at_most=min(len(engines), policy.admission.max_inflight_jobs),
            effects=self._effects,
        )
        self._endings = Endings(
            self._registry, self._queue, self._effects, decode_cost_weight=policy.fairness.decode_cost_weight
        )
        self._fleet = self._make_fleet(policies, dwell_s)
        self._served = self._fleet.served
        replays = Replays(self._registry, self._endings, enabled=policy.recovery.replay)
        self._recovery = Recovery(
            registry=self._registry,
            queue=self._queue,
            jobs=self._jobs,
            engines=self._engines,
            served=self._served,
            endings=self._endings,
            replays=replays,
            effects=self._effects,
            policy=policy.recovery,
            budget=ResetBudget(policy.recovery.max_resets_per_10min, past_resets_s),
        )
        self._settlement = Settlement(
            registry=self._registry,
            jobs=self._jobs,
            engines=self._engines,
            served=self._served,
            submission=self._submission,
            pair=self._pair,
            endings=self._endings,
            replays=replays,
            recovery=self._recovery,
            drain_rate=self._admission.drain_rate,
            effects=self._effects,
        )
        self._placement = Placement(
            registry=self._registry,
            queue=self._queue,
            replays=replays,
            admission=self._admission,
            served=self._served,
            settlement=self._settlement,
            device=self._recovery.device,
            endings=self._endings,
            effects=self._effects,
        )

    def _make_fleet(self, policies: Mapping[str, Policy], dwell_s: float) -> Fleet:
        return Fleet(
            self.policy,
            self._registry,
            self._queue,
            self._jobs,
            self._endings,
            self._pair,
            self._effects,
            policies=policies,
            dwell_s=dwell_s,
        )

    # ---- the surface ----------------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take in one event and decide everything that follows from it.

        Args:
            event: what happened. Stale or unheard-of ids are ignored, yet what they still hold is recovered.
            now: monotonic seconds, never less than in the call before.

        Returns:
            What is to be done, in this order; jobs may be begun before the rest.
        """
        self._take_in(event, now)
        self._expire(now)
        self._recovery.proceed()
        self._fleet.proceed(now)
        if self._may_switch:
            self._fleet.residency.proceed(now)
        self._placement.place(now)
        self._schedule(now)
        self._conclude_drain()
        effects = self._effects[:]
        self._effects.clear()
        return effects

    def next_wakeup(self) -> float | None:
        """The moment at which `events.TimePassed` is due, monotonic; None while only events matter."""
        moments = [
            self._deadlines.next_s(),
            self._drain_deadline_s,
            self._fleet.next_s(),
            self._fleet.residency.next_s() if self._may_switch else None,
            self._submission.until_s,
            self._placement.next_s(),
        ]
        if self._submission.until_s is None:
            moments += [
                one.hold_until_s(self._jobs.decoding(name))
                for name, one in self._served.items()
                if one.may_hold and self._idle_engine() is not None
            ]
        return min([moment for moment in moments if moment is not None], default=None)

    def snapshot(self) -> CoreSnapshot:
        """Counts for health and metrics, frozen."""
        return take_snapshot(
            self._registry,
            self._served.values(),
            self._fleet.generations.values(),
            self._jobs,
            self._tenants,
            global_time=self._queue.global_time,
            engine_mode=EngineMode(self._pair.mode, self._pair.doubt, self._pair.quarantined),
            recovery=self._recovery,
            reuse=self._fleet.reuse,
            status=service_status(
                self._fleet.generations.values(),
                draining=self._is_draining,
                device=self._recovery.device,
                switching=self._fleet.residency.is_switching,
            ),
        )

    def slots(self) -> tuple[Slot, ...]:
        """Every lane and what is in it; no prompts."""
        return slots_of(self._served.values(), self._registry)

    def prompts(self) -> dict[RequestId, Sequence[int]]:
        """What the live requests asked, as token ids; for an operator who asks for it in so many words."""
        return {request.id: request.prompt for request in self._registry}

    def check(self) -> None:
        """Assert what must hold between any two events; for tests and the simulator."""
        for served in self._served.values():
            served.lanes.check()
        assert self._jobs.in_flight_count <= self.policy.admission.max_inflight_jobs
        for request in self._registry:
            lane = request.lane
            assert lane is None or lane.request == request.id, "a request holds its own lane or none"
            assert not request.is_running or (lane is not None and lane.state is LaneState.UPDATING)

    # ---- events ---------------------------------------------------------------------------------

    def _take_in(self, event: Event, now: float) -> None:
        match event:
            case ev.JobFinished() | ev.JobFailed() | ev.JobNotSubmitted() | ev.JobUnknown():  # by far the most
                self._settlement.job_ended(event, now)
            case ev.Arrived():
                self._arrived(event, now)
            case ev.Offered():
                self._offered(event, now)
            case ev.Cancelled():
                self._cancelled(event)
            case ev.SequenceAllocated() | ev.SequenceRefused() | ev.SequenceReleased():
                self._placement.answered(event, now)
            case ev.ResetAsked() | ev.DeviceReset() | ev.CallStuck():
                self._heard_of_device(event, now)
            case (
                ev.GenerationAdvanced() | ev.ModelExpected() | ev.ModelForgone() | ev.ModelParked() | ev.SwitchFailed()
            ):
                self._fleet.heard(event, now)
            case ev.PairDoubted() | ev.PairTrusted():
                self._pair.told(event)
            case ev.TenantsChanged():
                self._tenants.change(event.tenants)
                self._queue.reweigh()
            case ev.DrainBegan():
                self._drain_began(event)
            case ev.TimePassed():
                pass
            case _:
                assert_never(event)

    def _arrived(self, event: ev.Arrived, now: float) -> None:
        served = self._fleet.current(event.alias)
        self._tenants.forget_idle(now, self._queue.global_time)
        tenant = self._tenants.of(event.tenant)
        is_to_wait = (served is None or not served.is_ready) and self._fleet.is_expected(event.alias)
        refusal = self._unavailable(None if is_to_wait else event.alias)
        if refusal is None and is_to_wait:
            refusal = self._fleet.residency.refusal(event.alias, now)
        if refusal is None:
            lanes = None if is_to_wait or served is None else served.lanes
            refusal = self._admission.on_arrival(lanes, tenant, now)
        if refusal is not None:
            self._effects.append(Refuse(event.request, refusal))
            return
        own_s = tenant.policy.deadline_s
        latest_s = now + (self.policy.admission.deadline_default_s if own_s is None else own_s)
        request = self._registry.create(
            event.request,
            tenant=event.tenant,
            alias=event.alias,
            generation=NO_GENERATION if is_to_wait or served is None else served.generation.id,
            arrived_s=now,
            deadline_s=latest_s if event.deadline_s is None else min(latest_s, event.deadline_s),
            order_deadline_s=latest_s,
        )
        self._deadlines.watch(request)
        if is_to_wait:
            self._fleet.admit_to_room(request)
        else:
            self._effects.append(Place(request.id, request.generation, event.tenant))

    def _offered(self, event: ev.Offered, now: float) -> None:
        request = self._registry.get(event.request)
        if request is None or request.state is not RequestState.NEW or request.generation != event.generation:
            return
        assert event.prompt, "a prompt has at least one token"
        served = self._served[request.generation]
        tenant = self._tenants.of(request.tenant)
        prompt_tokens = len(event.prompt)
        refusal = self._unavailable(request.alias) or self._admission.on_offer(
            served, request, tenant, prompt_tokens=prompt_tokens, now=now
        )
        if refusal is not None:
            self._endings.refuse(request, refusal)
            return
        granted = self._admission.grant(served, prompt_tokens=prompt_tokens, asked=event.max_new_tokens)
        self._registry.price(request, prompt=tuple(event.prompt), max_new_tokens=granted)
        self._registry.move(request, RequestEvent.QUEUE)
        self._queue.push(request, cost=prompt_tokens + self.policy.fairness.decode_cost_weight * granted)

    def _cancelled(self, event: ev.Cancelled) -> None:
        request = self._registry.get(event.request)
        if request is None or request.state is RequestState.FINISHING:
            return
        if request.is_running:
            request.give_up = request.give_up or event.reason
        else:
            self._endings.drop(request)

    def _heard_of_device(self, event: ev.ResetAsked | ev.DeviceReset | ev.CallStuck, now: float) -> None:
        self._recovery.heard(event, now, is_loading=self._fleet.is_loading)
        if isinstance(event, ev.DeviceReset):
            self._pair.doubted(ev.Doubt.RECOVERY)

    def _drain_began(self, event: ev.DrainBegan) -> None:
        self._is_draining = self._recovery.is_draining = True
        self._drain_deadline_s = event.deadline_s
        for request in self._registry:
            if request.is_waiting:
                self._endings.refuse(request, DRAINING)
        for generation, served in self._served.items():
            for lane in served.retention.close():
                self._endings.give_back(lane, generation)

    # ---- what follows from time and room --------------------------------------------------------

    def _expire(self, now: float) -> None:
        while (request := self._deadlines.pop_expired(now)) is not None:
            self._endings.expire(request)  # a running one's job drains first: settlement looks at its deadline
        if self._drain_deadline_s is not None and now >= self._drain_deadline_s:
            self._drain_deadline_s = None
            for request in self._registry:
                if request.is_running:
                    request.give_up = request.give_up or FaultReason.SHUTDOWN
                elif request.state is not RequestState.FINISHING:
                    self._endings.fail(request, FaultReason.SHUTDOWN)

    def _schedule(self, now: float) -> None:
        while self._submission.allows(now) and (engine := self._idle_engine()) is not None:
            if not self._submit_next(engine, now):
                return

    def _idle_engine(self) -> EngineId | None:
        """An engine that may be given a job."""
        if not self._recovery.device.is_sound:
            return None
        in_flight = self._jobs.in_flight_count
        if in_flight and in_flight >= self._pair.jobs_at_most:
            return None
        return self._jobs.idle_engine([engine for engine, health in self._engines.items() if health.usable])

    def _submit_next(self, engine: EngineId, now: float) -> bool:
        other_is_idle = self._jobs.in_flight_count == 0 and self._pair.jobs_at_most > 1
        for generation, served in self._served.items():
            decoding = self._jobs.decoding(generation)
            planned = served.plan(self._jobs.new_id(), now, decoding=decoding, other_is_idle=other_is_idle)
            if planned is None:
                continue
            job, requests = planned
            for work, request in zip(job.lanes, requests, strict=True):
                assert request.lane is not None
                request.lane.submit(len(work.tokens))
                request.advance(RequestEvent.SUBMIT)
            self._jobs.open(job, requests, engine, now)
            self._effects.append(SubmitJob(engine, job))
            self._served[generation] = self._served.pop(generation)  # generations take turns: to the end of the line
            return True
        return False

    def _conclude_drain(self) -> None:
        if not self._is_draining or self._said_drained or len(self._registry) or self._recovery.is_under_way:
            return
        if self._jobs.in_flight_count or any(served.lanes.in_transit for served in self._served.values()):
            return
        self._said_drained = True
        self._effects.append(Drained())

    @property
    def _may_switch(self) -> bool:
        """Whether another model may be wanted: not while the device recovers, nor when it is to be left."""
        return self._recovery.device.is_sound and not self._is_draining

    # ---- look-ups -------------------------------------------------------------------------------

    def _unavailable(self, alias: str | None) -> Refusal | None:
        """Why nobody new is served by that alias now; of None: by any."""
        if self._is_draining:
            return DRAINING
        device = self._recovery.device
        if device.state is DeviceState.LOST:
            assert device.reason is not None
            return device_failed(device.reason)
        if not device.is_sound:
            return RECOVERING
        if alias is None:
            return None
        served = self._fleet.current(alias)
        return LOADING if served is None or not served.is_ready else None
