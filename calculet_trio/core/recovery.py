"""Recovery: from a fault that nobody can look past, through a reset of the device, back to service; or the end of it.

    SOUND ──fault, or an operator's word──▶ QUIESCING ──nothing is out──▶ RESETTING ──configured, golden──▶ SOUND
      └─────────────────────────────────────────┴──no reset is left, or allowed, or it failed──┴──────────▶ LOST

An operator's word that comes when no reset may be made changes nothing: he is told why.

What waits keeps waiting, within its deadline; who comes meanwhile is told to come back. Admitted sequences lose
their KV in the reset: they are replayed, or fail.

Source: SPEC section 9 (S §14, §15 ``recovery``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from calculet_trio.core.effects import Abandon, Effect, Quarantined, ResetDevice, ResetRefused
from calculet_trio.core.endings import Endings, device_failed
from calculet_trio.core.events import CallStuck, DeviceReset, FaultReason, ResetAsked
from calculet_trio.core.faults import Next, next_step
from calculet_trio.core.generation import GenerationEvent, GenerationState
from calculet_trio.core.health import DeviceEvent, DeviceHealth, DeviceState, EngineHealth
from calculet_trio.core.jobs import EngineId, JobTable
from calculet_trio.core.policy import RecoveryPolicy
from calculet_trio.core.registry import RequestRegistry
from calculet_trio.core.replay import Replays
from calculet_trio.core.request import RequestEvent, RequestState
from calculet_trio.core.served import Served
from calculet_trio.core.tenant_queue import TenantQueue
from calculet_trio.ids import GenerationId

WINDOW_S: Final = 600.0
"""Of ``max_resets_per_10min``."""


class ResetBudget:
    """So many resets in any ten minutes.

    Args:
        most: how many.
        past_s: moments of resets by earlier processes, on this process's clock (they may be negative), in order.
    """

    def __init__(self, most: int, past_s: Sequence[float] = ()) -> None:
        self._most = most
        self._spent_s = deque(past_s, maxlen=max(1, most))

    def allows(self, now: float) -> bool:
        """Whether one more reset may be made."""
        while self._spent_s and self._spent_s[0] <= now - WINDOW_S:
            self._spent_s.popleft()
        return len(self._spent_s) < self._most

    def objection(self, now: float) -> str | None:
        """Why no reset may be made now, a sentence; None if one may."""
        if self.allows(now):
            return None
        limit = f"recovery.max_resets_per_10min is {self._most}"
        if not self._most:
            return f"{limit}: this daemon never resets its device"
        wait_s = self._spent_s[-self._most] + WINDOW_S - now
        return f"the reset budget is spent ({limit}); the next reset may be made in {wait_s:.0f} s"

    def spend(self, now: float) -> None:
        """A reset is made."""
        self._spent_s.append(now)


@attrs.define
class Recovery:
    """What a fault means for the whole device.

    Attributes:
        device: how it is; its reason is why it is not sound.
        resets: how many have been asked for.
    """

    registry: RequestRegistry
    queue: TenantQueue
    jobs: JobTable
    engines: Mapping[EngineId, EngineHealth]
    served: Mapping[GenerationId, Served]
    endings: Endings
    replays: Replays
    effects: list[Effect]
    policy: RecoveryPolicy
    budget: ResetBudget
    device: DeviceHealth = attrs.field(factory=DeviceHealth)
    is_draining: bool = False
    resets: int = 0

    @property
    def is_under_way(self) -> bool:
        """Whether a reset has been decided on and has not ended: until then nobody knows what the device still does."""
        return self.device.state in {DeviceState.QUIESCING, DeviceState.RESETTING}

    def heard(self, event: ResetAsked | DeviceReset | CallStuck, now: float, *, is_loading: bool) -> None:
        """What is told of the device as a whole.

        Args:
            event: what happened.
            now: monotonic.
            is_loading: whether a model is being put on the device, or taken off.
        """
        if isinstance(event, ResetAsked):
            self._asked(now, is_loading=is_loading)
        elif isinstance(event, DeviceReset):
            self._reset_ended(event.failed)
        else:
            self.fault(event.reason, now)

    def fault(self, reason: FaultReason, now: float, engine: EngineId | None = None) -> None:
        """The device cannot go on as it is: it is to be reset, or given up; one that was given up stays so."""
        if self.device.state is DeviceState.LOST:
            return
        if not self._may_reset(reason, now):
            self._abandon(reason, engine)
        elif self.device.is_sound:
            self._quiesce(reason, now, engine)

    def _asked(self, now: float, *, is_loading: bool) -> None:
        """An operator wants the device reset: that is done as after a fault, or he is told why it is not."""
        why_not = self._objection(now, is_loading=is_loading)
        if why_not is None:
            self._quiesce(FaultReason.OPERATOR_RESET, now)
        else:
            self.effects.append(ResetRefused(why_not))

    def _quiesce(self, reason: FaultReason, now: float, engine: EngineId | None = None) -> None:
        self.device.advance(DeviceEvent.FAULT)
        self.device.reason, self.device.engine = reason, engine
        self.budget.spend(now)
        for served in self.served.values():
            if served.is_ready:  # one that drains goes on draining, after the reset
                served.generation.fault()

    def proceed(self) -> None:
        """Once nothing is out any more the device is reset."""
        if self.device.state is not DeviceState.QUIESCING or self.jobs.in_flight_count:
            return
        if any(served.lanes.in_transit for served in self.served.values()):
            return
        reason = self.device.reason
        assert reason is not None
        self.device.advance(DeviceEvent.QUIET)
        self.resets += 1
        for served in self.served.values():
            served.lose_all()
        for request in self.registry:
            if request.lane is not None:
                self.replays.lose_kv(request, self.served[request.generation], reason)
        self.effects.append(ResetDevice(reason, self.device.engine))

    def _reset_ended(self, failed: FaultReason | None) -> None:
        """The shell has reset the device, or has failed to; a word that nobody waits for is ignored."""
        if self.device.state is not DeviceState.RESETTING:
            return
        if failed is not None:
            self._abandon(failed)
            return
        self.device.advance(DeviceEvent.PROVEN)
        self.device.reason = self.device.engine = None
        self.jobs.forget_unknown()
        for engine in self.engines.values():
            engine.reset()
        for served in self.served.values():
            served.lanes.reset()
            if served.generation.state is GenerationState.RECOVERING:
                served.generation.advance(GenerationEvent.RECOVERED)
                self.queue.bring_back(served.generation.id)

    def _may_reset(self, reason: FaultReason, now: float) -> bool:
        step = next_step(reason, restart_on_unknown_dma=self.policy.restart_on_unknown_dma)
        if step is Next.RESTART or self.is_draining:
            return False
        return not self.device.is_sound or self.budget.allows(now)

    def _objection(self, now: float, *, is_loading: bool) -> str | None:
        """Why an operator's reset is not made; None if it is."""
        if self.is_draining:
            return "the service is shutting down"
        if not self.device.is_sound:
            return "the device was given up" if self.device.state is DeviceState.LOST else "the device is being reset"
        return "a model is being loaded or unloaded" if is_loading else self.budget.objection(now)

    def _abandon(self, reason: FaultReason, engine: EngineId | None = None) -> None:
        """Everybody is told, every lane that held something is Unknown, no engine gets work again."""
        self.device.advance(DeviceEvent.GIVE_UP)
        self.device.reason = reason
        for health in self.engines.values():
            if health.usable:
                health.quarantine(reason)
                self.effects.append(Quarantined(health.engine, reason))
        for served in self.served.values():
            served.lose_all()
            served.generation.fault()
        for request in self.registry:
            if request.is_waiting:
                self.endings.refuse(request, device_failed(reason))
            elif request.state is RequestState.FINISHING:
                self.registry.move(request, RequestEvent.RELEASED)
            else:
                self.endings.fail(request, reason)
        self.effects.append(Abandon(reason, engine))
