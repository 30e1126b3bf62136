"""Decode: whose turn it is decodes now, with all the company that its profile holds."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calculet_trio.core.decode import DecodeScheduler
from calculet_trio.core.jobs import DecodeJob
from calculet_trio.core.policy import BatchPolicy, DecodeOrder, DecodePolicy
from calculet_trio.core.profiles import LaneLayout, ModelShape
from calculet_trio.core.request import Request, RequestEvent
from calculet_trio.core.service_rates import ServiceRates
from calculet_trio.ids import JobId
from tests.core.shapes import GENERATION, decoding_request, small_shape

EDF, SLACK = DecodeOrder.EDF, DecodeOrder.SLACK
LAYOUTS = pytest.mark.parametrize("layout", LaneLayout)
STEP_S = 0.5


def scheduler_with(
    requests: Iterable[Request] = (),
    shape: ModelShape | None = None,
    *,
    order: DecodeOrder = EDF,
    share: float = 1.0,
    batch: BatchPolicy | None = None,
) -> DecodeScheduler:
    """A scheduler whose profiles take `STEP_S` each, as far as anybody has measured."""
    shape = shape or small_shape(4)
    rates = ServiceRates()
    work = DecodeScheduler(shape, DecodePolicy(), BatchPolicy(), rates)
    work.push(decoding_request(999, lane=0))
    job, _ = work.plan(JobId(1), 0.0)
    rates.observe(job, STEP_S)
    decode = DecodePolicy(order=order, tenant_lane_share=share)
    scheduler = DecodeScheduler(shape, decode, batch or BatchPolicy(), rates)
    for request in requests:
        scheduler.push(request)
    return scheduler


def lanes_of(job: DecodeJob) -> list[int]:
    return [work.lane for work in job.lanes]


def first_of(scheduler: DecodeScheduler, now: float = 0.0) -> int:
    """Whose turn it is, where a job has room for one."""
    [request] = scheduler.plan(JobId(1), now)[1]
    return request.id


def turns_of(scheduler: DecodeScheduler, many: int, now: float = 0.0) -> list[int]:
    return [first_of(scheduler, now) for _ in range(many)]


ONE_BY_ONE = small_shape(4, batches=(1,), layout=LaneLayout.INDIRECT)


def test_nothing_is_available_where_nobody_is_ready() -> None:
    scheduler = scheduler_with()
    assert not scheduler.available()
    assert scheduler.waiting() == []


def test_a_job_says_all_about_each_lane() -> None:
    requests = [decoding_request(number, lane=lane, prompt_tokens=5) for number, lane in ((1, 3), (2, 2))]
    job, batch = scheduler_with(requests).plan(JobId(9), 0.0)
    assert (job.job, job.generation, job.phase, job.samples) == (9, GENERATION, "decode", True)
    assert (job.profile.compiled_batch, job.first_lane) == (2, 2)
    assert batch == [requests[1], requests[0]], "by lane, as the batch's rows are"
    assert [(w.request, w.sequence, w.lane, w.index, w.position) for w in job.lanes] == [
        (2, 102, 2, 0, 5),
        (1, 101, 3, 1, 5),
    ]
    assert [tuple(work.tokens) for work in job.lanes] == [(2001,), (1001,)], "the last token sampled, not committed yet"


def test_an_indirect_job_names_each_lane_and_its_row() -> None:
    shape = small_shape(8, batches=(1, 4), layout=LaneLayout.INDIRECT)
    requests = [decoding_request(number, lane=lane) for number, lane in ((1, 7), (2, 0), (3, 4))]
    job, batch = scheduler_with(requests, shape).plan(JobId(9), 0.0)
    assert (job.profile.compiled_batch, job.first_lane) == (4, None)
    assert batch == requests
    assert [(work.lane, work.index) for work in job.lanes] == [(7, 0), (0, 1), (4, 2)]


def test_lanes_far_apart_share_a_batch_only_where_it_is_indirect() -> None:
    for layout, lanes in ((LaneLayout.CONTIGUOUS, [7]), (LaneLayout.INDIRECT, [7, 0])):
        requests = [decoding_request(1, lane=7), decoding_request(2, lane=0)]
        scheduler = scheduler_with(requests, small_shape(8, batches=(1, 4), layout=layout))
        assert lanes_of(scheduler.plan(JobId(1), 0.0)[0]) == lanes


@LAYOUTS
@pytest.mark.parametrize("order", DecodeOrder)
@pytest.mark.parametrize("batch", [1, 2, 4])
def test_queues_of_every_length_around_a_batch(batch: int, order: DecodeOrder, layout: LaneLayout) -> None:
    """S §17.1: 0 to B + 1 sequences."""
    shape = small_shape(8, batches=(batch,) if batch == 1 else (1, batch), layout=layout)
    for many in range(batch + 2):
        scheduler = scheduler_with(
            (decoding_request(number + 1, lane=number) for number in range(many)), shape, order=order
        )
        assert scheduler.available() == (many > 0)
        served = []
        while scheduler.available():
            job, requests = scheduler.plan(JobId(len(served)), 0.0)
            assert len(job.lanes) == len(requests) <= batch
            served += lanes_of(job)
        assert sorted(served) == list(range(many)), "everybody decodes once"


@given(st.permutations(range(6)), st.sampled_from([(1,), (1, 2), (1, 4), (6,)]), st.sampled_from(LaneLayout))
def test_the_longest_wait_is_always_served(order: list[int], batches: tuple[int, ...], layout: LaneLayout) -> None:
    shape = small_shape(6, batches=batches, layout=layout)
    waiting = [decoding_request(lane + 1, lane=lane) for lane in order]
    scheduler = scheduler_with(waiting, shape)
    for _ in range(12):
        _, batch = scheduler.plan(JobId(1), 0.0)
        assert waiting[0] in batch
        waiting = [request for request in waiting if request not in batch] + batch
        for request in batch:
            scheduler.push(request)


def test_the_ended_are_let_go() -> None:
    gone, stays = decoding_request(1, lane=0), decoding_request(2, lane=1)
    scheduler = scheduler_with([gone, stays])
    gone.advance(RequestEvent.CANCEL)
    assert scheduler.available()
    assert scheduler.plan(JobId(1), 0.0)[1] == [stays]
    assert not scheduler.available()
    assert scheduler._ready == {}


def test_what_the_device_refused_has_waited_longest_still() -> None:
    first, second = decoding_request(1, lane=0), decoding_request(2, lane=3)
    scheduler = scheduler_with([first, second], ONE_BY_ONE)
    assert first_of(scheduler) == 1
    scheduler.put_back(first)
    assert first_of(scheduler) == 1


def crowd(tenants: str, *, order_deadline_s: float = 1000.0, **weights: float) -> list[Request]:
    """A sequence for each letter, its tenant's name, with the weight of that; three tokens are left of each."""
    requests = []
    for number, tenant in enumerate(tenants):
        request = decoding_request(number + 1, lane=number, tenant=tenant, deadline_s=order_deadline_s)
        request.weight = weights.get(tenant, 1.0)
        requests.append(request)
    return requests


# ---- fair turns ------------------------------------------------------------------------------------------------


def test_tenants_take_turns_by_tokens_however_many_sequences_they_have() -> None:
    assert turns_of(scheduler_with(crowd("aaab"), ONE_BY_ONE), 4) == [1, 4, 2, 3]


def test_a_heavier_tenant_has_more_turns() -> None:
    assert turns_of(scheduler_with(crowd("aaabbb", b=2.0), ONE_BY_ONE), 6) == [1, 4, 5, 2, 6, 3]


def test_a_tenant_that_had_nothing_here_starts_from_the_present() -> None:
    [long_here] = crowd("a")
    scheduler = scheduler_with([long_here], ONE_BY_ONE)
    for _ in range(100):
        assert turns_of(scheduler, 1) == [1]
        scheduler.push(long_here)
    _, *newcomers = crowd("abbb")
    for request in newcomers:
        scheduler.push(request)
    assert 1 in turns_of(scheduler, 2), "it does not make up for a hundred tokens"


@given(
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.tuples(*[st.sampled_from([0.5, 1.0, 3.0])] * 2),
    st.integers(1, 4),
    st.sampled_from(["f", "g", ""]),
)
def test_of_two_tenants_with_sequences_ready_neither_is_a_round_ahead(
    many: tuple[int, int], weights: tuple[float, float], guests: int, early: str
) -> None:
    """One token a job, and whoever had it is ready again: by weight they are no more than a token of each apart."""
    f, g = weights
    scheduler = scheduler_with([], small_shape(16, batches=(1,)))
    ready = crowd("f" * many[0] + "g" * many[1] + "h" * guests, f=f, g=g)
    for request in ready:
        if request.tenant == early:
            scheduler.push(request)
    for _ in range(20 if early else 0):
        scheduler.push(scheduler.plan(JobId(1), 0.0)[1][0])
    for request in ready:
        if request.tenant != early:
            scheduler.push(request)
    had = {"f": 0.0, "g": 0.0, "h": 0.0}
    for _ in range(60):
        [request] = scheduler.plan(JobId(1), 0.0)[1]
        had[request.tenant] += 1 / request.weight
        assert abs(had["f"] - had["g"]) <= 1 / f + 1 / g + 1e-9
        scheduler.push(request)


def test_the_turns_of_tenants_that_have_gone_are_forgotten() -> None:
    scheduler = scheduler_with([], ONE_BY_ONE)
    for number in range(1000):
        for _ in range(3):
            passing = decoding_request(number + 1, lane=0, tenant=f"tenant {number}")
            scheduler.push(passing)
            scheduler.plan(JobId(1), 0.0)
    assert len(scheduler._next_turn) < 10


# ---- edf -----------------------------------------------------------------------------------------------------


def test_edf_takes_the_earliest_deadline_then_the_fair_turn() -> None:
    requests = crowd("aaba")
    for request, order_deadline_s in zip(requests, (9.0, 5.0, 5.0, 5.0), strict=True):
        request.order_deadline_s = order_deadline_s
    assert turns_of(scheduler_with(requests, ONE_BY_ONE, order=EDF), 4) == [3, 2, 4, 1]


@pytest.mark.parametrize("order", DecodeOrder)
def test_a_clients_own_deadline_buys_no_place(order: DecodeOrder) -> None:
    patient = decoding_request(1, lane=0, deadline_s=100.0)
    hurried = decoding_request(2, lane=1, deadline_s=2.5, order_deadline_s=100.0)
    assert turns_of(scheduler_with([patient, hurried], ONE_BY_ONE, order=order), 2) == [1, 2]


# ---- slack ---------------------------------------------------------------------------------------------------


def test_only_whose_slack_runs_out_jumps_ahead() -> None:
    """Three tokens are left of each, 1.5 s of work, and a round of three takes 2 s."""
    for order_deadline_s, expected in ((4.0, [1, 2, 3]), (3.5, [1, 2, 3]), (3.4, [3, 1, 2]), (1.5, [3, 1, 2])):
        requests = crowd("aaa")
        requests[2].order_deadline_s = order_deadline_s
        assert turns_of(scheduler_with(requests, ONE_BY_ONE, order=SLACK), 3) == expected


def test_what_can_no_longer_be_saved_does_not_jump_ahead() -> None:
    """S §7.2, SPEC section 6: an expired request is never the most urgent."""
    for now in (2.0, 3.0, 30.0):
        requests = crowd("aa")
        requests[1].order_deadline_s = 3.0
        assert turns_of(scheduler_with(requests, ONE_BY_ONE, order=SLACK), 2, now) == [1, 2]


def test_of_the_urgent_the_earliest_goes_first() -> None:
    requests = crowd("aaa")
    for request, order_deadline_s in zip(requests, (100.0, 3.0, 2.9), strict=True):
        request.order_deadline_s = order_deadline_s
    [first] = scheduler_with(requests, ONE_BY_ONE, order=SLACK).plan(JobId(1), 0.0)[1]
    assert first.id == 3


def test_slack_before_anything_was_measured_is_by_turns() -> None:
    requests = crowd("aa", order_deadline_s=0.1)
    scheduler = DecodeScheduler(ONE_BY_ONE, DecodePolicy(order=SLACK), BatchPolicy(), ServiceRates())
    for request in requests:
        scheduler.push(request)
    assert turns_of(scheduler, 2) == [1, 2]


# ---- a tenant's share of the lanes --------------------------------------------------------------------------------


def test_a_tenant_has_its_share_of_the_rows_while_others_wait() -> None:
    shape = small_shape(8, batches=(1, 4), layout=LaneLayout.INDIRECT)
    for share, lanes in ((0.5, [0, 6, 1, 7]), (0.25, [0, 6, 1, 2]), (1.0, [0, 6, 1, 2])):
        requests = crowd("aaaaaabb", a=9.0)
        assert lanes_of(scheduler_with(requests, shape, share=share).plan(JobId(1), 0.0)[0]) == lanes


def test_rows_that_nobody_else_wants_are_not_left_empty() -> None:
    shape = small_shape(8, batches=(1, 4), layout=LaneLayout.INDIRECT)
    scheduler = scheduler_with(crowd("aaaaaab", a=9.0), shape, share=0.5)
    assert lanes_of(scheduler.plan(JobId(1), 0.0)[0]) == [0, 6, 1, 2]
    scheduler = scheduler_with(crowd("aaaaaa"), shape, share=0.25)
    assert lanes_of(scheduler.plan(JobId(1), 0.0)[0]) == [0, 1, 2, 3]


def test_of_windows_the_one_with_more_tenants_is_worth_more() -> None:
    """Lane 3 must; windows of four from lane 0 hold four of a, from lane 3 two of a and two of b."""
    shape = small_shape(8, batches=(1, 4))
    for share, first_lane in ((1.0, 0), (0.5, 3)):
        requests = crowd("aaaaabb", a=9.0)
        requests[3].order_deadline_s = 1.0
        job, _ = scheduler_with(requests, shape, order=EDF, share=share).plan(JobId(1), 0.0)
        assert job.first_lane == first_lane


@given(
    st.lists(st.sampled_from("abc"), min_size=1, max_size=8),
    st.sampled_from([0.1, 0.25, 0.5, 0.75]),
    st.sampled_from([(1, 2), (1, 4), (1, 2, 4)]),
)
def test_no_row_goes_to_a_tenant_beyond_its_share_while_another_waits(
    tenants: list[str], share: float, batches: tuple[int, ...]
) -> None:
    shape = small_shape(8, batches=batches, layout=LaneLayout.INDIRECT)
    job, batch = scheduler_with(crowd("".join(tenants)), shape, share=share).plan(JobId(1), 0.0)
    size = job.profile.compiled_batch
    cap = max(1, ceil(share * size))
    assert len(batch) == min(max(batches), len(tenants)), "no row is empty that somebody could have"
    assert batch[0].turn == min(request.turn for request in batch), "whose turn it is"
    taken = [request.tenant for request in batch]
    for tenant in set(taken):
        if taken.count(tenant) > cap:
            assert all(taken.count(other) >= min(cap, tenants.count(other)) for other in set(tenants))
