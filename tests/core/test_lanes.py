"""KV lanes: the lengths of SPEC section 7, and that nothing but a confirmed release empties one."""

from __future__ import annotations

import pytest

from calculet_trio.core.lanes import KvLane, KvLanes, LaneState
from calculet_trio.core.transition import IllegalTransition
from calculet_trio.ids import LaneId, RequestId, SequenceId
from tests.core.shapes import GENERATION


def make_lanes(many: int = 3, *, max_seq: int = 16) -> KvLanes:
    return KvLanes(GENERATION, lanes=many, max_seq=max_seq)


def active_lane(lanes: KvLanes, request: int, *, tokens: int = 10) -> KvLane:
    lane = lanes.reserve(RequestId(request), tokens)
    assert lane is not None
    lane.allocated(SequenceId(100 + request))
    return lane


def test_the_lowest_free_lane_is_reserved() -> None:
    lanes = make_lanes()
    assert [lanes.reserve(RequestId(n), 4) for n in (1, 2)] == [lanes[LaneId(0)], lanes[LaneId(1)]]
    lanes[LaneId(0)].refused()
    assert lanes.reserve(RequestId(3), 4) is lanes[LaneId(0)]
    lanes.check()


def test_no_lane_is_reserved_where_none_is_free() -> None:
    lanes = make_lanes(1)
    active_lane(lanes, 1)
    assert lanes.reserve(RequestId(2), 4) is None


@pytest.mark.parametrize("tokens", [0, -1, 17])
def test_a_reservation_lies_within_the_lane(tokens: int) -> None:
    with pytest.raises(AssertionError):
        make_lanes().reserve(RequestId(1), tokens)


def test_only_a_commit_makes_written_tokens_count() -> None:
    lanes = make_lanes()
    lane = active_lane(lanes, 1)
    lane.submit(4)
    assert (lane.committed_len, lane.updating_len, lanes.committed_tokens) == (0, 4, 0)
    lanes.check()
    lane.commit()
    assert (lane.committed_len, lane.updating_len, lanes.committed_tokens) == (4, 0, 4)
    lane.submit(1)
    lane.withdraw()
    assert (lane.committed_len, lane.updating_len) == (4, 0)
    lanes.check()


def test_a_job_does_not_outgrow_the_reservation() -> None:
    lane = active_lane(make_lanes(), 1, tokens=4)
    lane.submit(4)
    lane.commit()
    with pytest.raises(AssertionError, match="outgrow"):
        lane.submit(1)
    assert lane.state is LaneState.ACTIVE


def test_a_lane_is_in_one_job_at_a_time() -> None:
    lane = active_lane(make_lanes(), 1)
    lane.submit(1)
    with pytest.raises(IllegalTransition):
        lane.submit(1)


def test_a_confirmed_release_leaves_nothing_of_the_user() -> None:
    lanes = make_lanes()
    lane = active_lane(lanes, 1)
    lane.submit(4)
    lane.commit()
    assert lane.release() == 101
    assert lanes.free == 2, "not free before the runtime has confirmed it"
    lane.released(confirmed=True)
    assert (lane.state, lane.request, lane.sequence) == (LaneState.FREE, None, None)
    assert (lane.committed_len, lane.reserved_len, lane.updating_len) == (0, 0, 0)
    assert lanes.free == 3
    lanes.check()


def test_an_unconfirmed_release_makes_it_unknown_for_good() -> None:
    lanes = make_lanes(1)
    lane = active_lane(lanes, 1)
    lane.release()
    lane.released(confirmed=False)
    assert lane.state is LaneState.UNKNOWN
    assert (lanes.free, lanes.usable, lanes.reserved_tokens, lanes.unknown_tokens) == (0, 0, 10, 10)
    assert lanes.reserve(RequestId(2), 4) is None
    lanes.check()


def test_a_lane_in_a_job_cannot_be_released() -> None:
    lane = active_lane(make_lanes(), 1)
    lane.submit(1)
    with pytest.raises(IllegalTransition):
        lane.release()


def test_losing_everything_spares_only_what_is_certainly_empty() -> None:
    lanes = make_lanes(6)
    active, updating, releasing, unknown = (active_lane(lanes, number) for number in (1, 2, 3, 4))
    updating.submit(3)
    releasing.release()
    unknown.lose()
    lanes.reserve(RequestId(5), 4)
    lanes.lose_all()
    assert lanes.by_state() == {LaneState.UNKNOWN: 5, LaneState.FREE: 1}
    lanes.check()
    assert active.sequence == 101, "it is remembered for the fault record"


def test_in_transit_is_what_the_runtime_still_has_to_answer() -> None:
    lanes = make_lanes()
    assert not lanes.in_transit
    lane = lanes.reserve(RequestId(1), 4)
    assert lane is not None
    assert lanes.in_transit
    assert lanes.being_allocated == [1]
    lane.allocated(SequenceId(1))
    assert not lanes.in_transit
    assert lanes.being_allocated == []
    lane.submit(1)
    assert lanes.in_transit
    lane.commit()
    lane.release()
    assert lanes.in_transit
    lane.released(confirmed=True)
    assert not lanes.in_transit


def test_the_check_notices_two_lanes_of_one_request() -> None:
    lanes = make_lanes()
    active_lane(lanes, 1)
    active_lane(lanes, 2).request = RequestId(1)
    with pytest.raises(AssertionError, match="one lane per request"):
        lanes.check()


def test_the_check_notices_one_sequence_in_two_lanes() -> None:
    lanes = make_lanes()
    active_lane(lanes, 1)
    active_lane(lanes, 2).sequence = SequenceId(101)
    with pytest.raises(AssertionError, match="one lane per sequence"):
        lanes.check()


@pytest.mark.parametrize(("field", "value"), [("committed_len", 11), ("reserved_len", 17), ("updating_len", 1)])
def test_the_check_notices_lengths_that_cannot_be(field: str, value: int) -> None:
    lanes = make_lanes()
    setattr(active_lane(lanes, 1), field, value)
    with pytest.raises(AssertionError):
        lanes.check()
