"""Placement: free lanes are given to those whose turn it is, and taken back; the runtime has its say in both.

Source: SPEC section 4, 7 (S §5, §9).
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from calculet_trio.core import events as ev
from calculet_trio.core.admission import AdmissionController
from calculet_trio.core.backoff import Backoff
from calculet_trio.core.effects import Admit, AllocateSequence, ContinueSequence, Effect
from calculet_trio.core.endings import LANES_LOST, Endings
from calculet_trio.core.events import FaultReason
from calculet_trio.core.health import DeviceHealth
from calculet_trio.core.lanes import KvLane, LaneState
from calculet_trio.core.registry import RequestRegistry
from calculet_trio.core.replay import Replays
from calculet_trio.core.request import Request, RequestEvent, RequestState
from calculet_trio.core.retention import Match
from calculet_trio.core.served import Served
from calculet_trio.core.settlement import Settlement
from calculet_trio.core.tenant_queue import TenantQueue
from calculet_trio.ids import GenerationId, LaneId


@attrs.define
class Placement:
    """Asks for KV sequences and hears what became of them. A device that is not sound is asked for nothing."""

    registry: RequestRegistry
    queue: TenantQueue
    replays: Replays
    admission: AdmissionController
    served: Mapping[GenerationId, Served]
    settlement: Settlement
    device: DeviceHealth
    endings: Endings
    effects: list[Effect]
    backoff: Backoff = attrs.field(factory=Backoff)

    def next_s(self) -> float | None:
        """When an allocation that was refused is to be tried again, or a retained lane is too old; None: never."""
        if not self.device.is_sound:
            return None
        moments = [served.retention.next_s() for served in self.served.values()]
        if (self.replays.peek() or self.queue.peek()) is not None:
            moments.append(self.backoff.until_s)
        return min([moment for moment in moments if moment is not None], default=None)

    def place(self, now: float) -> None:
        """Give free lanes away: to those that are to be replayed, then to those whose turn it is."""
        if not self.device.is_sound:
            return
        for generation, served in self.served.items():
            for lane in served.retention.evict_due(now):
                self.endings.give_back(lane, generation)
        while self.backoff.allows(now) and (request := self.replays.peek()) is not None:
            lanes = self.served[request.generation].lanes
            if not self.admission.may_ever_admit(lanes, request):
                self.endings.fail(request, FaultReason.LANE_LOST)
            elif self._give_lane(request):
                self.replays.pop()
            else:
                return
        while self.backoff.allows(now) and (request := self.queue.peek()) is not None:
            served = self.served[request.generation]
            if not served.is_ready:
                self.queue.set_aside(request)
                continue
            if not self.admission.may_ever_admit(served.lanes, request):
                self.endings.refuse(request, LANES_LOST)
                continue
            if not self._give_lane(request):
                return
            self.queue.pop()

    def _give_lane(self, request: Request) -> bool:
        """Ask for an empty lane for the request, or for one that holds what its tokens begin with; False: it waits.

        What others' lanes only retain keeps nobody waiting longer than it takes to empty them.
        """
        served = self.served[request.generation]
        lanes = served.lanes
        match = served.retention.match(request)
        if match is not None and self.admission.may_admit(lanes, request, besides=(match.lane,)):
            self._continue(request, served, match)
            return True
        if match is None and self.admission.may_admit(lanes, request):
            self._allocate(request, served)
            return True
        retained = served.retention.lanes
        if retained and self.admission.may_admit(lanes, request, besides=retained):
            self._make_room(request, served, None if match is None else match.lane)
        return False

    def _allocate(self, request: Request, served: Served) -> None:
        lane = served.lanes.reserve(request.id, request.tokens_at_most)
        assert lane is not None, "may_admit saw a free lane"
        tokens = served.tokens_to_allocate(request)
        self.effects.append(AllocateSequence(request.generation, lane.id, request.id, lane.reservation, tokens))

    def _continue(self, request: Request, served: Served, match: Match) -> None:
        lane, drop_tokens = match.lane, served.retention.take(match, request)
        assert lane.sequence is not None
        self.effects.append(
            ContinueSequence(request.generation, lane.id, request.id, lane.reservation, lane.sequence, drop_tokens)
        )

    def _make_room(self, request: Request, served: Served, sparing: KvLane | None) -> None:
        """Empty the retained lanes that have to make way for it, the oldest first."""

        def is_coming(lane: KvLane) -> bool:
            return lane is sparing or lane.state is LaneState.RELEASING

        while not self.admission.may_admit(served.lanes, request, besides=[*filter(is_coming, served.lanes)]):
            self.endings.give_back(served.retention.evict(sparing=sparing), request.generation)

    def answered(self, event: ev.SequenceAllocated | ev.SequenceRefused | ev.SequenceReleased, now: float) -> None:
        """The runtime's answer about one lane; a stale one changes nothing."""
        if isinstance(event, ev.SequenceReleased):
            self._released(event, now)
        else:
            self._allocation_answered(event, now)

    def _allocation_answered(self, event: ev.SequenceAllocated | ev.SequenceRefused, now: float) -> None:
        """The runtime holds a sequence in the lane, or could not make one now."""
        lane = self._lane_of(event.generation, event.lane)
        if lane is None or lane.state is not LaneState.RESERVED:
            return
        if (lane.request, lane.reservation) != (event.request, event.reservation):
            return
        request = self.registry.get(event.request)
        if isinstance(event, ev.SequenceRefused):
            if lane.sequence is None:
                lane.refused()
                self.backoff.refused(now)
            else:  # it was to be continued; now it goes, and the request gets an empty one
                lane.disown()
                self.endings.give_back(lane, event.generation)
            if request is not None:
                self._wait_on(request)
            self.settlement.heard_of(event.reason, now)
            return
        lane.allocated(event.sequence)
        self.backoff.accepted()
        if request is None or not self.device.is_sound:  # the lane is recovered all the same
            if request is not None:
                lane.disown()
                self._wait_on(request)
            self.endings.give_back(lane, event.generation)
            return
        request.lane = lane
        request.prefilled_tokens = lane.committed_len
        served = self.served[request.generation]
        if lane.committed_len:
            served.retention.used(lane.committed_len)
        is_new = request.is_waiting
        if is_new:
            request.cached_tokens = lane.committed_len
            self.registry.move(request, RequestEvent.ADMIT)
        served.enqueue_prompt(request, now)
        if not is_new:
            return  # a replay: its client has long been told
        self.effects.append(
            Admit(
                request.id,
                len(request.prompt),
                request.max_new_tokens,
                queued_s=now - request.arrived_s,
                expected_wait_s=request.expected_wait_s,
                cached_tokens=request.cached_tokens,
            )
        )

    def _wait_on(self, request: Request) -> None:
        """It was to have a lane, and has none: it keeps its place, among those to be replayed or among the new."""
        if request.is_waiting:
            self.queue.put_back(request)
        else:
            self.replays.put_back(request)

    def _released(self, event: ev.SequenceReleased, now: float) -> None:
        """The lane is empty; or nobody is certain, and it goes to nobody."""
        lane = self._lane_of(event.generation, event.lane)
        if lane is None or lane.state is not LaneState.RELEASING or lane.sequence != event.sequence:
            return
        owner = lane.request
        lane.released(confirmed=event.confirmed)
        if owner is not None:  # else its request had ended when the lane was retained
            self.admission.drain_rate.ended(now, others_waiting=self.registry.waiting > 0)
        request = None if owner is None else self.registry.get(owner)
        if request is not None and request.state is RequestState.FINISHING:
            self.registry.move(request, RequestEvent.RELEASED)
        if not event.confirmed:
            self.settlement.conclude_loss(FaultReason.UNCONFIRMED_RELEASE, now)

    def _lane_of(self, generation: GenerationId, lane: LaneId) -> KvLane | None:
        served = self.served.get(generation)
        return None if served is None or not 0 <= lane < len(served.lanes) else served.lanes[lane]
