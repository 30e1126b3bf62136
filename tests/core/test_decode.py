"""Decode: the longest wait decodes now, with all the company that its window holds."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calculet_trio.core.decode import DecodeScheduler
from calculet_trio.core.jobs import DecodeJob
from calculet_trio.core.request import Request, RequestEvent
from calculet_trio.ids import JobId
from tests.core.shapes import GENERATION, decoding_request, small_shape


def scheduler_with(requests: Iterable[Request]) -> DecodeScheduler:
    scheduler = DecodeScheduler()
    for request in requests:
        scheduler.push(request)
    return scheduler


def lanes_of(job: DecodeJob) -> list[int]:
    return [work.lane for work in job.lanes]


def test_nothing_is_available_where_nobody_is_ready() -> None:
    assert not DecodeScheduler().available()


def test_a_job_says_all_about_each_lane() -> None:
    requests = [decoding_request(number, lane=lane, prompt_tokens=5) for number, lane in ((1, 3), (2, 2))]
    job, batch = scheduler_with(requests).plan(JobId(9), small_shape(4))
    assert (job.job, job.generation, job.phase) == (9, GENERATION, "decode")
    assert (job.profile.compiled_batch, job.first_lane) == (2, 2)
    assert batch == [requests[1], requests[0]], "by lane, as the batch's rows are"
    assert [(w.request, w.sequence, w.lane, w.index, w.position) for w in job.lanes] == [
        (2, 102, 2, 0, 5),
        (1, 101, 3, 1, 5),
    ]
    assert [tuple(work.tokens) for work in job.lanes] == [(2001,), (1001,)], "the last token sampled, not committed yet"


@pytest.mark.parametrize("batch", [1, 2, 4])
def test_queues_of_every_length_around_a_batch(batch: int) -> None:
    shape = small_shape(8, batches=(batch,) if batch == 1 else (1, batch))
    for many in range(1, batch + 2):
        scheduler = scheduler_with(decoding_request(number + 1, lane=number) for number in range(many))
        served = []
        while scheduler.available():
            job, requests = scheduler.plan(JobId(len(served)), shape)
            assert len(job.lanes) == len(requests) <= batch
            served += lanes_of(job)
        assert sorted(served) == list(range(many)), "everybody decodes once"


@given(st.permutations(range(6)), st.sampled_from([(1,), (1, 2), (1, 4), (6,)]))
def test_the_longest_wait_is_always_served(order: list[int], batches: tuple[int, ...]) -> None:
    shape = small_shape(6, batches=batches)
    waiting = [decoding_request(lane + 1, lane=lane) for lane in order]
    scheduler = scheduler_with(waiting)
    for _ in range(12):
        _, batch = scheduler.plan(JobId(1), shape)
        assert waiting[0] in batch
        waiting = [request for request in waiting if request not in batch] + batch
        for request in batch:
            scheduler.push(request)


def test_the_ended_are_let_go() -> None:
    gone, stays = decoding_request(1, lane=0), decoding_request(2, lane=1)
    scheduler = scheduler_with([gone, stays])
    gone.advance(RequestEvent.CANCEL)
    assert scheduler.available()
    assert scheduler.plan(JobId(1), small_shape(4))[1] == [stays]
    assert not scheduler.available()


def test_what_the_device_refused_has_waited_longest_still() -> None:
    first, second = decoding_request(1, lane=0), decoding_request(2, lane=3)
    scheduler = scheduler_with([first, second])
    shape = small_shape(4, batches=(1,))
    _, batch = scheduler.plan(JobId(1), shape)
    assert batch == [first]
    scheduler.put_back(first)
    assert scheduler.plan(JobId(2), shape)[1] == [first]
