"""choose_window against brute force: the lane whose turn it is, as much company as possible, the smallest graph."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calculet_trio.core.profiles import LaneWindow, ModelShape, choose_window
from calculet_trio.ids import LaneId
from tests.core.shapes import small_shape


def every_window(shape: ModelShape) -> list[LaneWindow]:
    """All windows of all profiles that lie within the lanes."""
    return [
        LaneWindow(profile, LaneId(first))
        for profile in shape.decode
        for first in range(shape.lanes - profile.compiled_batch + 1)
    ]


def covered(window: LaneWindow, ready: set[LaneId]) -> int:
    return len([lane for lane in ready if window.covers(lane)])


@st.composite
def choices(draw: st.DrawFn) -> tuple[ModelShape, set[LaneId], LaneId]:
    lanes = draw(st.integers(1, 16))
    batches = draw(st.sampled_from([(1,), (1, 4), (1, 2, 4, 8, 16), (1, 4, 8, 16), (16, 1), (1, 3, 5)]))
    ready = draw(st.sets(st.integers(0, lanes - 1).map(LaneId), min_size=1))
    must = draw(st.sampled_from(sorted(ready)))
    return small_shape(lanes, batches=batches), ready, must


@given(choices())
def test_no_window_is_better(choice: tuple[ModelShape, set[LaneId], LaneId]) -> None:
    shape, ready, must = choice
    chosen = choose_window(ready, must=must, shape=shape)
    assert chosen in every_window(shape), "it lies within the lanes"
    assert chosen.covers(must)
    for other in every_window(shape):
        if other.covers(must):
            assert covered(other, ready) <= covered(chosen, ready)
            if covered(other, ready) == covered(chosen, ready):
                assert other.profile.compiled_batch >= chosen.profile.compiled_batch
                assert (other.profile.compiled_batch, other.first) >= (chosen.profile.compiled_batch, chosen.first)


@pytest.mark.parametrize("batch", [1, 2, 4, 8, 16])
def test_queues_of_every_length_around_a_batch(batch: int) -> None:
    """S §18: 0, 1, B - 1, B and B + 1 ready sequences (0 makes no job; see `test_decode`)."""
    shape = small_shape(17, batches=(1, 2, 4, 8, 16))
    for many in {1, batch - 1, batch, batch + 1} - {0}:
        ready = {LaneId(lane) for lane in range(many)}
        window = choose_window(ready, must=LaneId(many - 1), shape=shape)
        assert covered(window, ready) == min(many, 16)
        smaller = [p.compiled_batch for p in shape.decode if p.compiled_batch < window.profile.compiled_batch]
        assert all(size < many for size in smaller), "no smaller graph would have done"


def test_one_sequence_takes_the_graph_of_one_lane() -> None:
    window = choose_window({LaneId(3)}, must=LaneId(3), shape=small_shape(4))
    assert (window.profile.compiled_batch, window.first) == (1, 3)


def test_the_lane_whose_turn_it_is_goes_before_a_larger_crowd() -> None:
    crowd = {LaneId(lane) for lane in (0, 1, 2, 3, 9)}
    window = choose_window(crowd, must=LaneId(9), shape=small_shape(10, batches=(1, 4)))
    assert window.covers(LaneId(9))
    assert covered(window, crowd) == 1


def test_a_shape_whose_graphs_are_all_too_large_is_a_defect() -> None:
    shape = small_shape(4, batches=(4,))
    too_small = ModelShape(shape.prefill, shape.decode, lanes=3, max_seq=8, vocab_size=10)
    with pytest.raises(AssertionError, match="a shape has a profile"):
        choose_window({LaneId(0)}, must=LaneId(0), shape=too_small)


def test_a_window_covers_its_lanes_only() -> None:
    window = LaneWindow(small_shape(4).decode[1], LaneId(1))
    assert [window.covers(LaneId(lane)) for lane in range(4)] == [False, True, True, False]


@given(choices(), st.lists(st.integers(0, 9), min_size=16, max_size=16))
def test_no_window_is_worth_more(choice: tuple[ModelShape, set[LaneId], LaneId], prices: list[int]) -> None:
    """Lanes that are worth more than others, as those of tenants below their share are."""
    shape, ready, must = choice

    def worth(window: LaneWindow) -> int:
        return sum(prices[lane] for lane in ready if window.covers(lane))

    chosen = choose_window(ready, must=must, shape=shape, worth=worth)
    assert chosen.covers(must)
    assert worth(chosen) == max(worth(window) for window in every_window(shape) if window.covers(must))


def test_only_the_profiles_that_may_be_chosen_are() -> None:
    shape = small_shape(4)
    ready = {LaneId(lane) for lane in range(4)}
    window = choose_window(ready, must=LaneId(3), shape=shape, profiles=shape.decode[:2])
    assert (window.profile.compiled_batch, window.first) == (2, 2)
