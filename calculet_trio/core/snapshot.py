"""CoreSnapshot: the core's counts at one moment, frozen, for health, metrics and tests.

Source: SPEC section 11 (S §16).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

import attrs

from calculet_trio.core.events import Doubt
from calculet_trio.core.generation import GenerationState, ModelGeneration
from calculet_trio.core.health import DeviceHealth, DeviceState
from calculet_trio.core.jobs import EngineId, JobTable
from calculet_trio.core.lanes import LaneState
from calculet_trio.core.recovery import Recovery
from calculet_trio.core.registry import RequestRegistry
from calculet_trio.core.retention import ReuseCounts
from calculet_trio.core.served import QueueDepth, Served
from calculet_trio.core.tenants import Tenant
from calculet_trio.core.turns import WorkKind


@attrs.frozen
class ServiceStatus:
    """``word`` is one of ``ok, loading, draining, recovering, failed``; ``reason`` says why it is not ok."""

    word: str
    reason: str | None = None


@attrs.frozen
class EngineMode:
    """How engines are used.

    Args:
        word: ``single``, ``ping_pong`` or ``degraded``.
        doubt: what speaks against both at a time; None where nothing does.
        quarantined: engines that only the device's reset brings back.
    """

    word: str
    doubt: Doubt | None = None
    quarantined: tuple[EngineId, ...] = ()


@attrs.frozen(kw_only=True)
class TenantSnapshot:
    """One tenant's counts.

    Args:
        virtual_lag: how far its virtual time is behind the global one, in weighted tokens; negative: ahead.
    """

    waiting_requests: int
    waiting_prompt_tokens: int
    active_requests: int
    virtual_lag: float


@attrs.frozen(kw_only=True)
class CoreSnapshot:
    """Counts, not contents.

    Args:
        running_requests: admitted and not ended.
        lanes_by_state: a count for every lane state.
        kv_tokens_reserved, kv_tokens_used, kv_tokens_total: of all served generations; what is only retained is free.
        jobs_in_flight, jobs_unknown: submitted and not ended; those whose fate nobody knows.
        engine_mode: whether new jobs use both engines.
        buffers_unknown: sets of job buffers that the device may have written to unseen; theirs until the process ends.
        reuse: what retained lanes have come to, in this process.
        resets, replays: how often the device was reset, and a sequence begun again, in this process.
        generations: of each alias, how many are in each state; none of an alias that was unloaded.
        queues: what waits for an engine, by kind of work.
        tenants: those that have, or recently had, something here.
    """

    status: ServiceStatus
    waiting_requests: int
    waiting_prompt_tokens: int
    running_requests: int
    lanes_by_state: dict[LaneState, int]
    kv_tokens_reserved: int
    kv_tokens_used: int
    kv_tokens_total: int
    jobs_in_flight: int
    jobs_unknown: int
    engine_mode: EngineMode
    buffers_unknown: int
    reuse: ReuseCounts
    resets: int
    replays: int
    generations: dict[str, Counter[GenerationState]]
    queues: dict[WorkKind, QueueDepth]
    tenants: dict[str, TenantSnapshot]

    @property
    def lanes_in_use(self) -> int:
        """Lanes that are neither Free nor only retained, Unknown ones included."""
        counts = self.lanes_by_state
        return sum(counts.values()) - counts[LaneState.FREE] - counts[LaneState.RETAINED]


def take_snapshot(
    registry: RequestRegistry,
    served: Iterable[Served],
    generations: Collection[ModelGeneration],
    jobs: JobTable,
    tenants: Iterable[Tenant],
    *,
    global_time: float,
    engine_mode: EngineMode,
    recovery: Recovery,
    reuse: ReuseCounts,
    status: ServiceStatus,
) -> CoreSnapshot:
    """Read everything once."""
    lanes: Counter[LaneState] = Counter()
    reserved = used = total = 0
    queues = dict.fromkeys(WorkKind, QueueDepth(0, None))
    for one in served:
        lanes.update(one.lanes.by_state())
        reserved += one.lanes.reserved_tokens - one.lanes.retained_tokens
        used += one.lanes.committed_tokens - one.lanes.retained_tokens
        total += len(one.lanes) * one.lanes.max_seq
        queues = {kind: queues[kind].with_more(depth) for kind, depth in one.depths().items()}
    return CoreSnapshot(
        status=status,
        waiting_requests=registry.waiting,
        waiting_prompt_tokens=registry.waiting_prompt_tokens,
        running_requests=len(registry) - registry.waiting,
        lanes_by_state={state: lanes[state] for state in LaneState},
        kv_tokens_reserved=reserved,
        kv_tokens_used=used,
        kv_tokens_total=total,
        jobs_in_flight=jobs.in_flight_count,
        jobs_unknown=jobs.unknown_count,
        engine_mode=engine_mode,
        buffers_unknown=jobs.unknown_ever,
        reuse=attrs.evolve(reuse),
        resets=recovery.resets,
        replays=recovery.replays.begun,
        generations=_by_alias(generations),
        queues=queues,
        tenants={
            tenant.name: TenantSnapshot(
                waiting_requests=len(tenant.waiting),
                waiting_prompt_tokens=tenant.waiting_prompt_tokens,
                active_requests=tenant.active,
                virtual_lag=global_time - tenant.virtual_time,
            )
            for tenant in tenants
        },
    )


def _by_alias(generations: Collection[ModelGeneration]) -> dict[str, Counter[GenerationState]]:
    states: dict[str, Counter[GenerationState]] = {generation.alias: Counter() for generation in generations}
    for generation in generations:
        states[generation.alias][generation.state] += 1
    return states


def service_status(
    generations: Collection[ModelGeneration], *, draining: bool, device: DeviceHealth, switching: bool = False
) -> ServiceStatus:
    """What health says: the worst of what holds, and ok only if some generation is Ready.

    Where models share the device by time it is ok while one takes another's place: who asks now waits, and is served.
    """
    if device.state is DeviceState.LOST:
        return ServiceStatus("failed", f"device: {_word(device)}")
    if draining:
        return ServiceStatus("draining", "the service is shutting down")
    if not device.is_sound:
        return ServiceStatus("recovering", f"the device is being reset: {_word(device)}")
    states = {generation.state for generation in generations}
    if GenerationState.READY in states or switching:
        return ServiceStatus("ok")
    for state, word in (
        (GenerationState.RECOVERING, "recovering"),
        (GenerationState.DRAINING, "draining"),
        (GenerationState.UNLOADING, "draining"),
        (GenerationState.FAILED, "failed"),
    ):
        if state in states:
            return ServiceStatus(word, f"the model is {state.value}")
    return ServiceStatus("loading", "no model is ready")


def _word(device: DeviceHealth) -> str:
    assert device.reason is not None, "a device that is not sound has a reason"
    return device.reason.value
