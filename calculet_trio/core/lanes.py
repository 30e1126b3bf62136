"""KV lanes: where sequences live on the device, and why no lane can leak from one user to another.

A lane is reserved for one request, allocated by the runtime, updated by jobs, released, and Free again only
when the runtime confirmed that it is empty. A lane whose content nobody knows goes to nobody. One whose request has
ended may be Retained: nobody's, and still holding what was written, for whoever goes on from there
(`calculet_trio.core.retention`).

Source: SPEC section 7 (S §9.1, §9.2).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from calculet_trio.core.transition import Machine, Symbol, Table
from calculet_trio.ids import GenerationId, LaneId, RequestId, ReservationId, SequenceId


class LaneState(Symbol):
    FREE = "free"
    RESERVED = "reserved"
    ACTIVE = "active"
    UPDATING = "updating"
    RETAINED = "retained"
    UNKNOWN = "unknown"
    RELEASING = "releasing"


class LaneEvent(Symbol):
    RESERVE = "reserve"
    ALLOCATED = "allocated"
    REFUSED = "refused"
    SUBMIT = "submit"
    COMMIT = "commit"
    WITHDRAW = "withdraw"
    RETAIN = "retain"
    LOSE = "lose"
    RELEASE = "release"
    RELEASED = "released"
    UNCONFIRMED = "unconfirmed"
    RESET = "reset"


_S, _E = LaneState, LaneEvent

LANE_TABLE: Final = Table[LaneState, LaneEvent](
    "lane",
    LaneState,
    {
        _S.FREE: {_E.RESERVE: _S.RESERVED},
        # RELEASE: of one that was retained, where the runtime could not make ready what is to be continued.
        _S.RESERVED: {
            _E.ALLOCATED: _S.ACTIVE,
            _E.REFUSED: _S.FREE,
            _E.RELEASE: _S.RELEASING,
            _E.LOSE: _S.UNKNOWN,
        },
        _S.ACTIVE: {
            _E.SUBMIT: _S.UPDATING,
            _E.RETAIN: _S.RETAINED,
            _E.RELEASE: _S.RELEASING,
            _E.LOSE: _S.UNKNOWN,
        },
        _S.UPDATING: {_E.COMMIT: _S.ACTIVE, _E.WITHDRAW: _S.ACTIVE, _E.LOSE: _S.UNKNOWN},
        _S.RETAINED: {_E.RESERVE: _S.RESERVED, _E.RELEASE: _S.RELEASING, _E.LOSE: _S.UNKNOWN},
        _S.RELEASING: {_E.RELEASED: _S.FREE, _E.UNCONFIRMED: _S.UNKNOWN, _E.LOSE: _S.UNKNOWN},
        _S.UNKNOWN: {_E.RESET: _S.FREE},  # only a device reset makes such a lane usable again
    },
)


_NOBODYS: Final = (LaneState.FREE, LaneState.RETAINED, LaneState.RELEASING, LaneState.UNKNOWN)
"""States in which a lane may be without a request: empty, retained, or on the way from there."""


class KvLane(Machine[LaneState, LaneEvent]):
    """One lane of one generation.

    ``committed_len <= reserved_len <= max_seq`` at all times. ``updating_len`` tokens are in a job that has
    not ended; they are committed by device *and* output success, or never. ``reservation`` names the latest time that
    the lane was reserved: one request may have the same lane twice, and an old answer is no answer to the new question.
    """

    __slots__ = ("id", "request", "sequence", "reservation", "committed_len", "reserved_len", "updating_len")

    table = LANE_TABLE

    def __init__(self, lane: LaneId) -> None:
        super().__init__(LaneState.FREE)
        self.id = lane
        self.reservation = ReservationId(0)
        self._empty()

    def _empty(self) -> None:
        self.request: RequestId | None = None
        self.sequence: SequenceId | None = None
        self.committed_len = 0
        self.reserved_len = 0
        self.updating_len = 0

    def reserve(self, request: RequestId, tokens: int, *, kept: int = 0) -> None:
        """The lane is the request's; of a Retained one its first ``kept`` tokens stay."""
        self.advance(LaneEvent.RESERVE)
        self.reservation = ReservationId(self.reservation + 1)
        self.request = request
        self.committed_len = kept
        self.reserved_len = tokens

    def allocated(self, sequence: SequenceId) -> None:
        self.advance(LaneEvent.ALLOCATED)
        self.sequence = sequence

    def disown(self) -> None:
        """Its request goes on without it, and may have another lane before this one is empty."""
        self.request = None

    def refused(self) -> None:
        self.advance(LaneEvent.REFUSED)
        self._empty()

    def submit(self, tokens: int) -> None:
        assert self.committed_len + tokens <= self.reserved_len, "a job may not outgrow its lane's reservation"
        self.advance(LaneEvent.SUBMIT)
        self.updating_len = tokens

    def commit(self) -> None:
        self.advance(LaneEvent.COMMIT)
        self.committed_len += self.updating_len
        self.updating_len = 0

    def withdraw(self) -> None:
        self.advance(LaneEvent.WITHDRAW)
        self.updating_len = 0

    def retain(self) -> None:
        self.advance(LaneEvent.RETAIN)
        self.request = None
        self.reserved_len = self.committed_len

    def lose(self) -> None:
        self.advance(LaneEvent.LOSE)

    def release(self) -> SequenceId:
        self.advance(LaneEvent.RELEASE)
        assert self.sequence is not None
        return self.sequence

    def released(self, *, confirmed: bool) -> None:
        self.advance(LaneEvent.RELEASED if confirmed else LaneEvent.UNCONFIRMED)
        if confirmed:
            self._empty()

    def reset(self) -> None:
        self.advance(LaneEvent.RESET)
        self._empty()


class KvLanes:
    """All lanes of one generation.

    Args:
        generation: whose lanes these are.
        lanes: how many; ids are ``0 .. lanes - 1``.
        max_seq: tokens that one lane holds at most.
    """

    def __init__(self, generation: GenerationId, *, lanes: int, max_seq: int) -> None:
        self.generation = generation
        self.max_seq = max_seq
        self._lanes = tuple(KvLane(LaneId(lane)) for lane in range(lanes))

    def __getitem__(self, lane: LaneId) -> KvLane:
        return self._lanes[lane]

    def __len__(self) -> int:
        return len(self._lanes)

    def __iter__(self) -> Iterator[KvLane]:
        return iter(self._lanes)

    def reserve(self, request: RequestId, tokens: int) -> KvLane | None:
        """The lowest free lane, so that running lanes stay close together and small profiles cover them."""
        assert 0 < tokens <= self.max_seq
        for lane in self._lanes:
            if lane.state is LaneState.FREE:
                lane.reserve(request, tokens)
                return lane
        return None

    @property
    def free(self) -> int:
        return [lane._state for lane in self._lanes].count(LaneState.FREE)

    @property
    def retained(self) -> int:
        """Lanes of nobody that still hold something, and are emptied when they are wanted."""
        return [lane._state for lane in self._lanes].count(LaneState.RETAINED)

    @property
    def retained_tokens(self) -> int:
        """Tokens of KV in them."""
        return sum(lane.reserved_len for lane in self._lanes if lane.state is LaneState.RETAINED)

    @property
    def usable(self) -> int:
        """Lanes that serve somebody, or can again."""
        return len(self._lanes) - [lane._state for lane in self._lanes].count(LaneState.UNKNOWN)

    @property
    def unknown_tokens(self) -> int:
        """Tokens of KV that Unknown lanes stay charged with."""
        return sum(lane.reserved_len for lane in self._lanes if lane.state is LaneState.UNKNOWN)

    @property
    def being_allocated(self) -> list[RequestId]:
        """Whom the runtime is allocating a lane for; some may have ended meanwhile."""
        return [lane.request for lane in self._lanes if lane.state is LaneState.RESERVED and lane.request is not None]

    @property
    def reserved_tokens(self) -> int:
        """Tokens of KV that lanes in use may grow to; an Unknown lane's stay charged."""
        return sum(lane.reserved_len for lane in self._lanes)

    @property
    def committed_tokens(self) -> int:
        return sum(lane.committed_len for lane in self._lanes)

    @property
    def in_transit(self) -> bool:
        """Whether an answer of the runtime on an allocation, a job or a release is still to come."""
        waiting = (LaneState.RESERVED, LaneState.UPDATING, LaneState.RELEASING)
        return any(lane.state in waiting for lane in self._lanes)

    def by_state(self) -> Counter[LaneState]:
        return Counter(lane.state for lane in self._lanes)

    def lose_all(self) -> None:
        """The device's state is unknown: so is every lane that is not known to be empty."""
        for lane in self._lanes:
            if lane.state not in (LaneState.FREE, LaneState.UNKNOWN):
                lane.lose()

    def reset(self) -> None:
        """The device was reset: what was Unknown is empty."""
        for lane in self._lanes:
            if lane.state is LaneState.UNKNOWN:
                lane.reset()

    def check(self) -> None:
        """Assert the invariants of SPEC section 7 that a single lane's table cannot hold by itself."""
        held = [lane for lane in self._lanes if lane.state is not LaneState.FREE]
        known = [lane.request for lane in held if lane.request is not None and lane.state is not LaneState.UNKNOWN]
        assert len(known) == len(set(known)), "one lane per request"
        sequences = [lane.sequence for lane in held if lane.sequence is not None]
        assert len(sequences) == len(set(sequences)), "one lane per sequence"
        for lane in self._lanes:
            assert 0 <= lane.committed_len + lane.updating_len <= lane.reserved_len <= self.max_seq
            assert (lane.request is None) >= (lane.state in (LaneState.FREE, LaneState.RETAINED))
            assert lane.request is not None or lane.state in _NOBODYS
            assert (lane.sequence is None) >= (lane.state is LaneState.FREE)
            assert lane.updating_len == 0 or lane.state in (LaneState.UPDATING, LaneState.UNKNOWN)
