"""KV lanes against a drawing of them: S §17.2's random reserve, append, free, cancel and fault.

Its "remove" is `take_up`: a lane that was retained is reserved anew, for what is left of it once its tail is gone.
"""

from __future__ import annotations

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from calculet_trio.core.lanes import KvLanes, LaneState
from calculet_trio.core.transition import IllegalTransition
from calculet_trio.ids import LaneId, RequestId, SequenceId
from tests.core.shapes import GENERATION

MAX_SEQ = 12
ACTS = ("submit", "commit", "withdraw", "release", "allocated", "refused", "released")
picks = st.integers(0, 99)


@attrs.define
class Slot:
    """One lane as a person would draw it.

    Attributes:
        owner: whose it is; None while it is empty.
        room: tokens it was reserved for.
        written: tokens that are certainly in it.
        writing: tokens of a job that is out.
        sequence: what the runtime calls its content; None before it has allocated it.
        is_retained: its request is over, and what it wrote is still there.
        is_leaving: the runtime was asked to empty it.
        is_waiting: it was taken up: the runtime was asked to drop its tail.
        is_lost: nobody knows what is in it.
    """

    owner: RequestId | None = None
    room: int = 0
    written: int = 0
    writing: int = 0
    sequence: SequenceId | None = None
    is_retained: bool = False
    is_leaving: bool = False
    is_waiting: bool = False
    is_lost: bool = False

    @property
    def state(self) -> LaneState:
        if self.is_lost:
            return LaneState.UNKNOWN
        if self.is_leaving:
            return LaneState.RELEASING
        if self.is_retained:
            return LaneState.RETAINED
        if self.owner is None:
            return LaneState.FREE
        if self.sequence is None or self.is_waiting:
            return LaneState.RESERVED
        return LaneState.UPDATING if self.writing else LaneState.ACTIVE


class LanesMachine(RuleBasedStateMachine):
    """The lanes and the drawing of them, told the same."""

    @initialize(many=st.integers(1, 4))
    def begin(self, many: int) -> None:
        self.lanes = KvLanes(GENERATION, lanes=many, max_seq=MAX_SEQ)
        self.slots = [Slot() for _ in range(many)]
        self.requests = 0

    def pick(self, pick: int, state: LaneState) -> int | None:
        """A lane that is in that state, by any number."""
        found = [n for n, slot in enumerate(self.slots) if slot.state is state]
        return found[pick % len(found)] if found else None

    @rule(tokens=st.integers(1, MAX_SEQ))
    def reserve(self, tokens: int) -> None:
        self.requests += 1
        free = self.pick(0, LaneState.FREE)
        lane = self.lanes.reserve(RequestId(self.requests), tokens)
        assert (None if lane is None else lane.id) == free, "the lowest free one, and never an unknown one"
        if free is not None:
            self.slots[free] = Slot(owner=RequestId(self.requests), room=tokens)

    @rule(pick=picks, granted=st.booleans())
    def answer_allocation(self, pick: int, granted: bool) -> None:
        number = self.pick(pick, LaneState.RESERVED)
        if number is None:
            return
        slot = self.slots[number]
        if slot.is_waiting and granted:
            assert slot.sequence is not None
            self.lanes[LaneId(number)].allocated(slot.sequence)
            slot.is_waiting = False
        elif slot.is_waiting:
            assert self.lanes[LaneId(number)].release() == slot.sequence, "nobody goes on from it: it is emptied"
            slot.is_leaving = True
        elif granted:
            slot.sequence = SequenceId(1000 + self.requests)
            self.lanes[LaneId(number)].allocated(slot.sequence)
            self.requests += 1
        else:
            self.slots[number] = Slot()
            self.lanes[LaneId(number)].refused()

    @rule(pick=picks, tokens=st.integers(1, 5))
    def append(self, pick: int, tokens: int) -> None:
        number = self.pick(pick, LaneState.ACTIVE)
        if number is None:
            return
        slot, lane = self.slots[number], self.lanes[LaneId(number)]
        if slot.written + tokens > slot.room:
            with pytest.raises(AssertionError, match="outgrow"):
                lane.submit(tokens)
            return
        lane.submit(tokens)
        slot.writing = tokens

    @rule(pick=picks, end=st.sampled_from(["commit", "commit", "withdraw", "lose"]))
    def end_job(self, pick: int, end: str) -> None:
        number = self.pick(pick, LaneState.UPDATING)
        if number is None:
            return
        slot = self.slots[number]
        getattr(self.lanes[LaneId(number)], end)()
        if end == "commit":
            slot.written += slot.writing
        if end == "lose":
            slot.is_lost = True
        else:
            slot.writing = 0

    @rule(pick=picks)
    def retain(self, pick: int) -> None:
        """Its request has ended, and somebody may go on from there: it is charged with what it holds."""
        number = self.pick(pick, LaneState.ACTIVE)
        if number is not None:
            self.lanes[LaneId(number)].retain()
            slot = self.slots[number]
            slot.owner, slot.room, slot.is_retained = None, slot.written, True

    @rule(pick=picks, left=st.integers(0, MAX_SEQ), more=st.integers(1, MAX_SEQ))
    def take_up(self, pick: int, left: int, more: int) -> None:
        """Another request begins like it."""
        number = self.pick(pick, LaneState.RETAINED)
        if number is None:
            return
        self.requests += 1
        slot = self.slots[number]
        slot.written = min(left, slot.written)
        slot.room = min(slot.written + more, MAX_SEQ)
        slot.owner, slot.is_retained, slot.is_waiting = RequestId(self.requests), False, True
        self.lanes[LaneId(number)].reserve(slot.owner, slot.room, kept=slot.written)

    @rule(pick=picks, state=st.sampled_from([LaneState.ACTIVE, LaneState.RETAINED]))
    def free(self, pick: int, state: LaneState) -> None:
        """Its request has ended, or was cancelled, or it was retained for long: the runtime is asked to empty it."""
        number = self.pick(pick, state)
        if number is not None:
            assert self.lanes[LaneId(number)].release() == self.slots[number].sequence
            self.slots[number].is_leaving = True

    @rule(pick=picks, confirmed=st.sampled_from([True, True, False]))
    def answer_release(self, pick: int, confirmed: bool) -> None:
        number = self.pick(pick, LaneState.RELEASING)
        if number is not None:
            self.lanes[LaneId(number)].released(confirmed=confirmed)
            if confirmed:
                self.slots[number] = Slot()
            else:
                self.slots[number].is_lost = True

    @rule(pick=picks, act=st.sampled_from(ACTS))
    def touch_an_unknown_lane(self, pick: int, act: str) -> None:
        number = self.pick(pick, LaneState.UNKNOWN)
        if number is None:
            return
        lane = self.lanes[LaneId(number)]
        arguments = {"submit": (0,), "allocated": (SequenceId(1),)}.get(act, ())
        named = {"confirmed": True} if act == "released" else {}
        with pytest.raises(IllegalTransition):
            getattr(lane, act)(*arguments, **named)

    @precondition(lambda self: self.requests > 15)
    @rule()
    def lose_the_device(self) -> None:
        self.lanes.lose_all()
        for slot in self.slots:
            slot.is_lost = slot.is_lost or slot.state is not LaneState.FREE

    @invariant()
    def the_drawing_is_right(self) -> None:
        if not hasattr(self, "lanes"):
            return
        self.lanes.check()
        for number, slot in enumerate(self.slots):
            lane = self.lanes[LaneId(number)]
            assert lane.state is slot.state
            assert (lane.request, lane.sequence) == (slot.owner, slot.sequence)
            assert (lane.committed_len, lane.reserved_len, lane.updating_len) == (slot.written, slot.room, slot.writing)
        states = [slot.state for slot in self.slots]
        assert self.lanes.free == states.count(LaneState.FREE)
        assert self.lanes.retained == states.count(LaneState.RETAINED)
        assert self.lanes.retained_tokens == sum(s.written for s in self.slots if s.state is LaneState.RETAINED)
        assert self.lanes.usable == len(states) - states.count(LaneState.UNKNOWN)
        assert self.lanes.by_state() == {state: states.count(state) for state in set(states)}
        assert self.lanes.reserved_tokens == sum(slot.room for slot in self.slots)
        assert self.lanes.committed_tokens == sum(slot.written for slot in self.slots)
        assert self.lanes.unknown_tokens == sum(slot.room for slot in self.slots if slot.is_lost)
        assert self.lanes.being_allocated == [s.owner for s in self.slots if s.state is LaneState.RESERVED]
        moving = (LaneState.RESERVED, LaneState.UPDATING, LaneState.RELEASING)
        assert self.lanes.in_transit == any(state in moving for state in states)


TestLanes = LanesMachine.TestCase
TestLanes.settings = settings(max_examples=80, stateful_step_count=40)
