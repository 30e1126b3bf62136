"""Admission: each budget, each tenant's limit, and each refusal with its reason."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calculet_trio.core.effects import Refusal, RefusalKind
from calculet_trio.core.policy import TenantPolicy
from calculet_trio.core.request import RequestEvent
from calculet_trio.ids import RequestId
from tests.core.door import Door
from tests.core.shapes import small_shape

# ---- arriving ---------------------------------------------------------------------------------------


def test_waiting_places_are_counted_beside_free_lanes() -> None:
    door = Door(lanes=2, max_waiting_requests=3)
    assert [door.arrive(number) is None for number in range(1, 8)] == [True] * 5 + [False] * 2


def test_no_waiting_place_at_all_still_serves_who_finds_a_free_lane() -> None:
    door = Door(lanes=1, max_waiting_requests=0)
    assert door.arrive(1) is None
    assert door.arrive(2) is not None


def test_a_request_whose_lane_is_being_allocated_takes_no_waiting_place() -> None:
    door = Door(lanes=1, max_waiting_requests=1)
    door.arrive(1)
    door.lanes.reserve(RequestId(1), 8)
    assert door.arrive(2) is None
    refusal = door.arrive(3)
    assert refusal is not None
    assert refusal.message == "1 requests wait already; the limit is 1"


def test_a_lane_that_is_allocated_for_somebody_who_has_gone_gives_nobody_a_place() -> None:
    door = Door(lanes=1, max_waiting_requests=1)
    door.lanes.reserve(RequestId(50), 8)
    assert door.arrive(1) is None
    assert door.arrive(2) is not None


def test_a_full_queue_is_the_loads_fault_and_says_when_to_come_back() -> None:
    door = Door(lanes=1, max_waiting_requests=1)
    door.occupy(50)
    door.arrive(1)
    refusal = door.arrive(2)
    assert refusal == Refusal(
        RefusalKind.CAPACITY, "queue_full", "1 requests wait already; the limit is 1", retry_after_s=1.0
    )


def test_places_come_back_however_a_wait_ends() -> None:
    door = Door(lanes=1, max_waiting_requests=1)
    for number, event in enumerate((RequestEvent.CANCEL, RequestEvent.REFUSE), start=1):
        assert door.arrive(10 * number) is None
        assert door.arrive(10 * number + 1) is None
        assert door.arrive(10 * number + 2) is not None
        for request in door.registry:
            door.registry.move(request, event)
    assert door.registry.waiting == 0


# ---- offering ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budgets", "prefill_max_seq", "limit"),
    [
        ({}, 32, 31),  # one token of the context is the reply's
        ({}, 31, 31),
        ({}, 20, 20),  # B62: the smaller of what the prefill graph and the context take
        ({"max_kv_tokens": 16}, 32, 15),
        ({"max_kv_tokens": 1000}, 32, 31),
        ({"shape": small_shape(2, batches=(1, 2), max_seq=32, holds={1: 24, 2: 12})}, 32, 23),
    ],
)
def test_a_prompt_that_can_never_fit_is_the_requests_fault(
    budgets: dict[str, Any], prefill_max_seq: int, limit: int
) -> None:
    door = Door(prefill_max_seq=prefill_max_seq, **budgets)
    assert door.offer(limit) is None
    refusal = door.offer(limit + 1)
    assert refusal is not None
    assert (refusal.kind, refusal.code) == (RefusalKind.INVALID, "context_length_exceeded")
    assert (refusal.prompt_tokens, refusal.limit_tokens) == (limit + 1, limit)
    assert refusal.message == f"the prompt has {limit + 1} tokens; this model takes at most {limit}"
    assert refusal.retry_after_s is None, "coming back would not help"


def test_waiting_prompt_tokens_have_a_budget() -> None:
    door = Door(max_waiting_prompt_tokens=20)
    door.arrive(1)
    door.price(1, 12)
    assert door.offer(8) is None
    refusal = door.offer(9)
    assert refusal is not None
    assert (refusal.kind, refusal.code) == (RefusalKind.CAPACITY, "queue_full")
    assert refusal.message == "12 prompt tokens wait already; the limit is 20"
    assert refusal.retry_after_s == 1.0


def test_a_prompt_longer_than_the_budget_is_served_when_nobody_waits() -> None:
    assert Door(max_waiting_prompt_tokens=5).offer(20) is None


def test_tokens_whose_lane_is_being_allocated_do_not_wait() -> None:
    door = Door(max_waiting_prompt_tokens=10)
    door.arrive(1)
    door.price(1, 9)
    door.lanes.reserve(RequestId(1), 10)
    assert door.offer(9) is None


# ---- the tenants' own limits --------------------------------------------------------------------------


def test_a_tenants_waiting_tokens_have_a_limit_of_their_own() -> None:
    door = Door(tenants={"a": TenantPolicy(max_waiting_tokens=10)})
    door.queue_up(1, 6)
    door.queue_up(2, 9, tenant="b")
    assert door.offer(4) is None
    refusal = door.offer(5)
    assert refusal == Refusal(
        RefusalKind.CAPACITY,
        "tenant_queue_full",
        "6 prompt tokens of the tenant wait already; its limit is 10",
        retry_after_s=1.0,
    )
    assert door.offer(30, tenant="b") is None, "it is nobody else's limit"


def test_a_tenants_only_prompt_may_be_longer_than_its_limit() -> None:
    door = Door(tenants={"a": TenantPolicy(max_waiting_tokens=10)})
    door.queue_up(1, 9, tenant="b")
    assert door.offer(25) is None


def test_a_tenants_tokens_whose_lane_is_being_allocated_do_not_wait() -> None:
    door = Door(tenants={"a": TenantPolicy(max_waiting_tokens=10)})
    door.queue_up(1, 9)
    door.queue_up(2, 9, tenant="b")
    door.lanes.reserve(RequestId(2), 10)
    assert door.offer(9) is not None, "it was somebody else's lane"
    door.lanes.reserve(RequestId(1), 10)
    assert door.offer(9) is None


def test_a_tenants_arrivals_have_a_rate_and_it_is_told_when_to_come_back() -> None:
    door = Door(tenants={"a": TenantPolicy(requests_per_s=2.0)})
    assert door.arrive(1) is None
    assert door.arrive(2) is None
    assert door.arrive(3) == Refusal(
        RefusalKind.CAPACITY, "rate_limited", "the tenant may send 2.0 requests a second", retry_after_s=0.5
    )
    assert door.arrive(4, tenant="b") is None
    assert door.arrive(5, now=0.5) is None


# ---- granting and admitting -------------------------------------------------------------------------


@pytest.mark.parametrize(("asked", "granted"), [(None, 22), (1, 1), (22, 22), (23, 22), (10**9, 22)])
def test_a_reply_is_granted_as_far_as_the_context_holds_it(asked: int | None, granted: int) -> None:
    door = Door(max_seq=32)
    assert door.controller.grant(door.served, prompt_tokens=10, asked=asked) == granted


def test_no_more_is_granted_than_some_profile_decodes() -> None:
    door = Door(shape=small_shape(2, batches=(1, 2), max_seq=32, holds={1: 24, 2: 12}))
    assert door.controller.grant(door.served, prompt_tokens=10, asked=None) == 14


def test_a_lane_must_be_free() -> None:
    door = Door(lanes=1)
    assert door.may_admit(8)
    door.occupy(1)
    assert not door.may_admit(8)


def test_max_sequences_may_be_less_than_the_lanes() -> None:
    door = Door(lanes=3, max_sequences=2)
    door.occupy(1)
    assert door.may_admit(8)
    door.occupy(2)
    assert not door.may_admit(8)


def test_max_kv_tokens_bounds_what_all_lanes_may_grow_to() -> None:
    door = Door(lanes=3, max_kv_tokens=40)
    door.occupy(1, tokens=30)
    assert door.may_admit(10)
    assert not door.may_admit(11)


def test_lost_lanes_stay_charged() -> None:
    door = Door(lanes=3, max_kv_tokens=40, max_sequences=2)
    door.lose(1, tokens=30)
    assert door.may_ever_admit(10)
    assert not door.may_ever_admit(11)
    door.lose(2, tokens=1)
    assert not door.may_ever_admit(2), "both sequences that policy allows are lost"


def test_without_a_limit_any_lane_that_is_left_serves_any_request() -> None:
    door = Door(lanes=2, max_seq=32)
    door.lose(1, tokens=32)
    assert door.may_ever_admit(32)


@given(
    st.integers(1, 4),
    st.none() | st.integers(1, 4),
    st.none() | st.integers(8, 128),
    st.lists(st.integers(2, 32), max_size=12),
)
def test_nothing_is_admitted_beyond_any_budget(
    lanes: int, max_sequences: int | None, max_kv_tokens: int | None, asks: list[int]
) -> None:
    door = Door(lanes=lanes, max_sequences=max_sequences, max_kv_tokens=max_kv_tokens)
    for number, tokens in enumerate(asks):
        used = lanes - door.lanes.free
        fits = used < min(lanes, max_sequences or lanes)
        fits = fits and door.lanes.reserved_tokens + tokens <= min(lanes * 32, max_kv_tokens or lanes * 32)
        assert door.may_admit(tokens) == fits
        if fits:
            assert door.may_ever_admit(tokens)
            door.occupy(number, tokens=tokens)
