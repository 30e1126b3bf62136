"""The registry: whoever is alive, each ended once, and totals that are right at any moment."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calculet_trio.core.registry import RequestRegistry
from calculet_trio.core.request import Request, RequestEvent, RequestState
from calculet_trio.core.tenants import Tenants
from calculet_trio.core.transition import IllegalTransition
from calculet_trio.ids import RequestId
from tests.core.shapes import ALIAS, GENERATION

TO_FINISHING = (RequestEvent.QUEUE, RequestEvent.ADMIT, RequestEvent.SUBMIT, RequestEvent.FINISH)


def create(registry: RequestRegistry, number: int) -> Request:
    return registry.create(
        RequestId(number),
        tenant="ab"[number % 2],
        alias=ALIAS,
        generation=GENERATION,
        arrived_s=0.0,
        deadline_s=9.0,
        order_deadline_s=9.0,
    )


def test_a_request_is_here_until_it_has_ended() -> None:
    registry = RequestRegistry(Tenants({}))
    request = create(registry, 1)
    assert registry.get(request.id) is request
    registry.move(request, RequestEvent.CANCEL)
    assert request.state is RequestState.CANCELLED
    assert registry.get(request.id) is None
    assert len(registry) == 0


def test_nobody_ends_twice() -> None:
    registry = RequestRegistry(Tenants({}))
    request = create(registry, 1)
    registry.move(request, RequestEvent.REFUSE)
    for event in (RequestEvent.REFUSE, RequestEvent.CANCEL, RequestEvent.FAIL):
        with pytest.raises(IllegalTransition):
            registry.move(request, event)
    assert registry.waiting == 0


def test_an_id_is_never_used_twice() -> None:
    registry = RequestRegistry(Tenants({}))
    create(registry, 1)
    with pytest.raises(AssertionError, match="never reused"):
        create(registry, 1)


def test_it_is_walked_in_order_of_arrival_while_requests_end() -> None:
    registry = RequestRegistry(Tenants({}))
    for number in (3, 1, 2):
        create(registry, number)
    seen = []
    for request in registry:
        seen.append(request.id)
        registry.move(request, RequestEvent.CANCEL)
    assert seen == [3, 1, 2]
    assert len(registry) == 0


def test_a_prompt_counts_once_it_is_known_and_until_it_is_admitted() -> None:
    registry = RequestRegistry(Tenants({}))
    request = create(registry, 1)
    assert (registry.waiting, registry.waiting_prompt_tokens) == (1, 0)
    registry.price(request, prompt=(1, 2, 3), max_new_tokens=5)
    registry.move(request, RequestEvent.QUEUE)
    assert (registry.waiting, registry.waiting_prompt_tokens) == (1, 3)
    assert request.tokens_at_most == 8
    registry.move(request, RequestEvent.ADMIT)
    assert (registry.waiting, registry.waiting_prompt_tokens, len(registry)) == (0, 0, 1)


def test_a_prompt_is_priced_once_and_before_admission() -> None:
    registry = RequestRegistry(Tenants({}))
    request = create(registry, 1)
    registry.price(request, prompt=(1,), max_new_tokens=5)
    with pytest.raises(AssertionError):
        registry.price(request, prompt=(1,), max_new_tokens=5)
    registry.move(request, RequestEvent.QUEUE)
    registry.move(request, RequestEvent.ADMIT)
    request.prompt = ()
    with pytest.raises(AssertionError):
        registry.price(request, prompt=(1,), max_new_tokens=5)


def test_a_finishing_request_is_alive_until_its_lane_is_back() -> None:
    registry = RequestRegistry(Tenants({}))
    request = create(registry, 1)
    for event in TO_FINISHING:
        registry.move(request, event)
    assert len(registry) == 1
    registry.move(request, RequestEvent.RELEASED)
    assert request.state is RequestState.COMPLETED
    assert len(registry) == 0


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(RequestEvent)), max_size=80))
def test_the_totals_are_those_of_a_recount(moves: list[tuple[int, RequestEvent]]) -> None:
    tenants = Tenants({})
    registry = RequestRegistry(tenants)
    for number in range(6):
        request = create(registry, number)
        if number % 2:
            registry.price(request, prompt=tuple(range(number)), max_new_tokens=1)
    for number, event in moves:
        alive = registry.get(RequestId(number))
        if alive is not None and event in alive.table.rows[alive.state]:
            registry.move(alive, event)
        waiting = [request for request in registry if request.is_waiting]
        assert registry.waiting == len(waiting)
        assert registry.waiting_prompt_tokens == sum(len(request.prompt) for request in waiting)
        for tenant in "ab":
            own = [len(request.prompt) for request in waiting if request.tenant == tenant]
            assert tenants.of(tenant).waiting_prompt_tokens == sum(own)
