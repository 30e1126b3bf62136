"""Two engines and one batch's worth of sequences: apart where that was measured to be faster, else together."""

from __future__ import annotations

import pytest

from calculet_trio.core.jobs import DecodeJob, EngineId, Job
from calculet_trio.core.policy import AdmissionPolicy, BatchPolicy, Policy
from calculet_trio.core.profiles import LaneLayout, ModelShape
from calculet_trio.ids import JobId
from tests.core.shapes import small_shape
from tests.core.world import World

BOTH = (EngineId.PING, EngineId.PONG)
LAYOUTS = pytest.mark.parametrize("layout", LaneLayout)


class Board:
    """A world whose decode steps take time, on a board that computes two at once or one after the other."""

    def __init__(self, shape: ModelShape, *, overlaps: bool, window_s: float = 0.0) -> None:
        batch = BatchPolicy(batching_window_s=window_s)
        policy = Policy(admission=AdmissionPolicy(max_inflight_jobs=2), batch=batch)
        self.world = World(shape, policy=policy, engines=BOTH)
        self._overlaps = overlaps
        self._ends_s: dict[JobId, float] = {}

    def come(self, sequences: int) -> None:
        for _ in range(sequences):
            self.world.ask(max_new_tokens=None)
            self.world.answer(1, jobs=False)

    def step(self) -> list[int]:
        """The next job ends; how many lanes each job has that is in flight afterwards."""
        world = self.world
        self._begin()
        job = min(world.jobs, key=self._ends_s.__getitem__)
        world.pass_time(max(0.0, self._ends_s.pop(job) - world.now))
        world.finish(job)
        self._begin()
        return sorted(len(each.lanes) for each in world.jobs.values())

    def _begin(self) -> None:
        for number, job in self.world.jobs.items():
            if number not in self._ends_s:
                busy_s = self.world.now if self._overlaps else max(self._ends_s.values(), default=self.world.now)
                self._ends_s[number] = max(busy_s, self.world.now) + self._takes_s(job)

    def _takes_s(self, job: Job) -> float:
        return 0.01 + 0.005 * job.profile.compiled_batch if isinstance(job, DecodeJob) else 0.005

    def settled(self, steps: int = 40) -> list[list[int]]:
        """What is in flight, step by step, once it has found its way."""
        for _ in range(steps):
            self.step()
        return [self.step() for _ in range(8)]


@LAYOUTS
def test_where_one_computes_at_a_time_they_go_together(layout: LaneLayout) -> None:
    board = Board(small_shape(4, batches=(1, 2, 4), max_seq=256, layout=layout), overlaps=False)
    board.come(4)
    assert board.settled() == [[4]] * 8


@LAYOUTS
def test_where_both_compute_at_once_each_takes_half(layout: LaneLayout) -> None:
    board = Board(small_shape(4, batches=(1, 2, 4), max_seq=256, layout=layout), overlaps=True)
    board.come(4)
    assert all(sum(lanes) <= 4 and len(lanes) == 2 for lanes in board.settled())


def test_more_than_one_batch_holds_uses_both_engines() -> None:
    board = Board(small_shape(4, batches=(1, 2), max_seq=256), overlaps=False)
    board.come(3)
    assert all(len(lanes) == 2 for lanes in board.settled())


def test_one_lane_batches_use_both_engines() -> None:
    board = Board(small_shape(2, batches=(1,), max_seq=256), overlaps=False)
    board.come(2)
    assert board.settled() == [[1, 1]] * 8


def test_lanes_too_far_apart_for_one_window_wait_for_nobody() -> None:
    board = Board(small_shape(4, batches=(1, 2), max_seq=256), overlaps=False)
    board.come(4)
    board.settled()
    streams = list(board.world.streams)
    for request in streams[1:3]:
        board.world.cancel(request)
    assert all(len(lanes) == 2 for lanes in board.settled())


def test_a_prompt_does_not_wait_for_those_that_decode() -> None:
    board = Board(small_shape(4, batches=(1, 2, 4), max_seq=256), overlaps=False)
    board.come(3)
    assert board.settled() == [[3]] * 8
    board.come(1)
    assert any(not isinstance(job, DecodeJob) for job in board.world.jobs.values())
    assert board.settled() == [[4]] * 8


def test_who_waits_for_those_in_flight_is_not_woken_by_its_window() -> None:
    """A wakeup that is due and changes nothing would be a busy loop; the world's audit looks for it at every event."""
    board = Board(small_shape(8, batches=(1, 2, 4), max_seq=256), overlaps=False, window_s=0.001)
    board.come(3)
    board.settled()
    waited = 0
    board.come(1)
    for _ in range(40):
        waited += len(board.step()) == 1
        board.world.pass_time(0.002)
    assert waited
