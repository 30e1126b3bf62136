"""Which profile a decode batch takes: thresholds, each profile's own length and KV pool; and the batching window."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calculet_trio.core.decode import DecodeScheduler
from calculet_trio.core.policy import BatchPolicy, DecodePolicy
from calculet_trio.core.profiles import InactiveLanePolicy, LaneLayout, ModelShape
from calculet_trio.core.request import Request
from calculet_trio.core.service_rates import ServiceRates
from calculet_trio.ids import JobId
from tests.core.shapes import decoding_request, small_shape

LAYOUTS = pytest.mark.parametrize("layout", LaneLayout)


def scheduler_of(
    shape: ModelShape, batch: BatchPolicy | None = None, rates: ServiceRates | None = None
) -> DecodeScheduler:
    return DecodeScheduler(shape, DecodePolicy(), batch or BatchPolicy(), rates or ServiceRates())


def batch_of(shape: ModelShape, requests: list[Request], batch: BatchPolicy | None = None) -> tuple[int, list[int]]:
    """The profile that is chosen, and who goes in it."""
    scheduler = scheduler_of(shape, batch)
    for request in requests:
        scheduler.push(request)
    job, members = scheduler.plan(JobId(1), 0.0)
    assert all(request.kv_pool == job.profile.kv_pool for request in members)
    return job.profile.compiled_batch, [request.id for request in members]


def ready(many: int, *, prompt_tokens: int = 3) -> list[Request]:
    return [decoding_request(n + 1, lane=n, prompt_tokens=prompt_tokens) for n in range(many)]


# ---- which profiles ------------------------------------------------------------------------------------------


def test_a_profile_without_a_mask_contract_is_never_used() -> None:
    shape = small_shape(4, batches=(1, 4))
    bare = attrs.evolve(shape.decode[1], inactive_lane=InactiveLanePolicy.NONE)
    assert batch_of(attrs.evolve(shape, decode=(shape.decode[0], bare)), ready(4)) == (1, [1])


def test_the_policy_narrows_the_profiles() -> None:
    shape = small_shape(8, batches=(1, 2, 4, 8))
    assert batch_of(shape, ready(8), BatchPolicy(profiles=(1, 4)))[0] == 4


def test_a_policy_that_leaves_no_profile_is_a_defect() -> None:
    with pytest.raises(AssertionError, match="usable profile"):
        scheduler_of(small_shape(4), BatchPolicy(profiles=(16,)))


def test_profiles_may_stand_in_any_order_in_the_package() -> None:
    shape = small_shape(4, batches=(4, 1, 2))
    assert [batch_of(shape, ready(many))[0] for many in (1, 2, 3)] == [1, 2, 4]


# ---- thresholds ------------------------------------------------------------------------------------------------


@LAYOUTS
def test_thresholds_choose_as_the_specification_writes(layout: LaneLayout) -> None:
    """S §8: sixteen from twelve on, eight from six on, four from three on."""
    shape = small_shape(17, batches=(1, 4, 8, 16), layout=layout)
    policy = BatchPolicy(thresholds={4: 3, 8: 6, 16: 12})
    chosen = [batch_of(shape, ready(many), policy)[0] for many in range(1, 18)]
    assert chosen == [1, 1, 4, 4, 4, 8, 8, 8, 8, 8, 8, 16, 16, 16, 16, 16, 16]


def test_without_thresholds_the_smallest_that_covers_as_many() -> None:
    shape = small_shape(17, batches=(1, 4, 8, 16), layout=LaneLayout.INDIRECT)
    assert [batch_of(shape, ready(many))[0] for many in (1, 2, 4, 5, 8, 9, 17)] == [1, 4, 4, 8, 8, 16, 16]


def test_where_every_threshold_is_too_high_the_smallest_serves() -> None:
    policy = BatchPolicy(thresholds={1: 2, 2: 3, 4: 4})
    assert batch_of(small_shape(4), ready(1), policy)[0] == 1


# ---- lengths -----------------------------------------------------------------------------------------------------


@LAYOUTS
def test_a_long_sequence_decodes_where_it_fits_and_the_short_ones_go_with_whom_they_can(layout: LaneLayout) -> None:
    shape = small_shape(4, batches=(1, 4), max_seq=64, holds={4: 16}, layout=layout)
    long, *short = ready(4)
    long = decoding_request(1, lane=0, prompt_tokens=16)
    assert batch_of(shape, [long, *short]) == (1, [1])
    assert batch_of(shape, [*short, long]) == (4, [2, 3, 4])


@LAYOUTS
def test_a_sequence_moves_to_a_longer_profile_when_it_has_outgrown_the_shorter(layout: LaneLayout) -> None:
    shape = small_shape(2, batches=(1, 2), max_seq=64, holds={2: 8}, layout=layout)
    for prompt_tokens, batch in ((7, 2), (8, 1)):
        assert batch_of(shape, ready(2, prompt_tokens=prompt_tokens))[0] == batch


def test_the_longest_context_is_that_of_a_usable_profile() -> None:
    shape = small_shape(4, batches=(1, 4), max_seq=64, holds={1: 32, 4: 48})
    assert scheduler_of(shape).max_seq == 48
    assert scheduler_of(shape, BatchPolicy(profiles=(1,))).max_seq == 32


# ---- KV pools ------------------------------------------------------------------------------------------------------


@LAYOUTS
def test_a_sequence_stays_in_the_pool_that_has_decoded_it(layout: LaneLayout) -> None:
    shape = small_shape(4, batches=(1, 4), pools={4: "wide"}, layout=layout)
    bound, *free = ready(4)
    bound.kv_pool = "main"
    assert batch_of(shape, [bound, *free]) == (1, [1])
    assert batch_of(shape, [*free, bound]) == (4, [2, 3, 4])
    assert {request.kv_pool for request in free} == {"wide"}


@LAYOUTS
def test_a_sequence_enters_no_pool_that_cannot_see_it_to_its_end(layout: LaneLayout) -> None:
    """It would fit the wide profile now; but it may grow to 24 tokens, and nothing in that pool holds more than 16."""
    shape = small_shape(4, batches=(1, 2, 4), pools={2: "wide", 4: "wide"}, holds={2: 16, 4: 8}, layout=layout)
    long = decoding_request(1, lane=0, prompt_tokens=4, max_new_tokens=20)
    others = ready(4)[1:]
    assert batch_of(shape, [long, *others]) == (1, [1])
    assert batch_of(shape, [*others, long]) == (4, [2, 3, 4])


@given(
    st.sampled_from(LaneLayout),
    st.lists(st.tuples(st.integers(1, 20), st.integers(1, 12)), min_size=1, max_size=8),
    st.tuples(st.sampled_from([8, 16, 32]), st.sampled_from([8, 16, 32])),
    st.sampled_from([{}, {4: "wide"}, {2: "wide", 4: "wide"}]),
)
def test_whoever_is_granted_a_reply_decodes_to_its_end(
    layout: LaneLayout, asks: list[tuple[int, int]], holds: tuple[int, int], pools: dict[int, str]
) -> None:
    """Whatever the profiles hold and read: never beyond a profile's length, never out of its pool, and to the end."""
    shape = small_shape(
        8, batches=(1, 2, 4), max_seq=32, holds=dict(zip((2, 4), holds, strict=True)), pools=pools, layout=layout
    )
    scheduler = scheduler_of(shape)
    steps = 0
    for lane, (prompt_tokens, max_new_tokens) in enumerate(asks):
        request = decoding_request(lane + 1, lane=lane, prompt_tokens=prompt_tokens, max_new_tokens=max_new_tokens)
        scheduler.push(request)
        steps += max_new_tokens
    while scheduler.available():
        job, members = scheduler.plan(JobId(1), 0.0)
        for request in members:
            assert request.lane is not None
            assert request.lane.committed_len < job.profile.max_seq
            request.lane.submit(1)
            request.lane.commit()
            request.generated.append(7)
            if len(request.generated) < request.max_new_tokens:
                scheduler.push(request)
        steps -= 1
        assert steps >= 0, "every job serves somebody"


# ---- the batching window -------------------------------------------------------------------------------------------


def hold(
    *ready_s: float, window_s: float = 2.0, joinable: int = 1, deadline_s: float = 1000.0, step_s: float | None = None
) -> float | None:
    """Until when sequences that are ready since then wait for company, in batches of four."""
    rates = ServiceRates()
    scheduler = scheduler_of(small_shape(8, batches=(1, 4)), BatchPolicy(batching_window_s=window_s), rates)
    if step_s is not None:
        scheduler.push(decoding_request(999, lane=0))
        rates.observe(scheduler.plan(JobId(1), 0.0)[0], step_s)
    for number, moment_s in enumerate(ready_s):
        request = decoding_request(number + 1, lane=number, deadline_s=deadline_s)
        request.ready_s = moment_s
        scheduler.push(request)
    return scheduler.hold_until_s(lambda: joinable)


def test_without_a_window_nobody_waits() -> None:
    assert hold(10.0, window_s=0.0) is None


def test_the_window_is_counted_from_the_one_that_waits_longest() -> None:
    assert hold(11.0, 10.0, 10.5) == 12.0


def test_a_full_batch_goes_at_once() -> None:
    assert hold(*[10.0] * 4) is None
    assert hold(*[10.0] * 5) is None


def test_at_low_load_a_part_filled_batch_goes_at_once() -> None:
    assert hold(10.0, joinable=0) is None


def test_nothing_is_held_where_nobody_is_ready() -> None:
    assert hold() is None


def test_the_window_leaves_time_for_the_step_and_a_window_before_the_earliest_deadline() -> None:
    assert hold(10.0, deadline_s=14.5, step_s=0.5) == 12.0
    assert hold(10.0, deadline_s=14.0, step_s=0.5) == 11.5
    until_s = hold(10.0, deadline_s=12.0, step_s=0.5)
    assert until_s is not None
    assert until_s < 10.0, "there is no time to lose at all"


def test_a_clients_own_deadline_shortens_the_window_too() -> None:
    scheduler = scheduler_of(small_shape(8, batches=(1, 4)), BatchPolicy(batching_window_s=2.0))
    request = decoding_request(1, lane=0, deadline_s=3.0, order_deadline_s=1000.0)
    request.ready_s = 0.0
    scheduler.push(request)
    assert scheduler.hold_until_s(lambda: 1) == 1.0
