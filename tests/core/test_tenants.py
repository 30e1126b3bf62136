"""Tenants: their limits, and accounts that are forgotten once a fresh one would do as well."""

from __future__ import annotations

import pytest

from calculet_trio.core.policy import TenantPolicy
from calculet_trio.core.tenants import Tenants
from tests.core.shapes import waiting_request


def test_an_account_is_opened_once_and_has_the_policy_of_its_name() -> None:
    tenants = Tenants({"paying": TenantPolicy(weight=3.0)})
    assert tenants.of("paying") is tenants.of("paying")
    assert tenants.of("paying").policy.weight == 3.0
    assert tenants.of("unheard of").policy == TenantPolicy()
    assert [tenant.name for tenant in tenants] == ["paying", "unheard of"]


def test_new_policies_count_for_open_accounts_and_for_those_to_come() -> None:
    tenants = Tenants({"a": TenantPolicy(weight=3.0), "b": TenantPolicy(weight=2.0)})
    first, second = tenants.of("a"), tenants.of("b")
    tenants.change({"b": TenantPolicy(weight=5.0), "c": TenantPolicy(weight=7.0)})
    assert [first.policy.weight, second.policy.weight, tenants.of("c").policy.weight] == [1.0, 5.0, 7.0]
    assert tenants.of("a") is first


@pytest.mark.parametrize(("limit", "active", "more"), [(None, 10**6, True), (2, 1, True), (2, 2, False), (2, 3, False)])
def test_a_limit_of_active_sequences_is_met_when_so_many_are_active(limit: int | None, active: int, more: bool) -> None:
    account = Tenants({"a": TenantPolicy(max_active_sequences=limit)}).of("a")
    account.active = active
    assert account.admits_more() == more


def test_arrivals_are_counted_only_where_there_is_a_rate() -> None:
    tenants = Tenants({"a": TenantPolicy(requests_per_s=2.0)})
    assert [tenants.of("a").arrival_wait_s(5.0) for _ in range(3)] == [None, None, 0.5]
    assert all(tenants.of("b").arrival_wait_s(5.0) is None for _ in range(100))
    assert tenants.of("b").rate is None


def test_a_new_rate_begins_afresh_and_the_same_one_goes_on() -> None:
    tenants = Tenants({"a": TenantPolicy(requests_per_s=1.0)})
    account = tenants.of("a")
    assert account.arrival_wait_s(0.0) is None
    tenants.change({"a": TenantPolicy(requests_per_s=1.0, weight=2.0)})
    assert account.arrival_wait_s(0.0) == 1.0
    tenants.change({"a": TenantPolicy(requests_per_s=4.0)})
    assert account.arrival_wait_s(0.0) is None
    tenants.change({})
    assert account.arrival_wait_s(0.0) is None


# ---- forgetting -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("debt", ["nothing", "waiting", "prompt", "active", "ahead", "rate"])
def test_an_account_is_kept_while_it_matters(debt: str) -> None:
    tenants = Tenants({"a": TenantPolicy(requests_per_s=1.0)})
    account = tenants.of("a")
    match debt:
        case "waiting":
            request = waiting_request(1)
            account.waiting[request.id] = request
        case "prompt":
            account.waiting_prompt_tokens = 1
        case "active":
            account.active = 1
        case "ahead":
            account.virtual_time = 11.0
        case "rate":
            account.arrival_wait_s(0.0)
    assert account.owes_nothing(0.5, global_time=10.0) == (debt == "nothing")


def test_idle_accounts_are_swept_before_there_are_twice_as_many_as_are_needed() -> None:
    tenants = Tenants({})
    for number in range(10):
        tenants.of(f"busy {number}").active = 1
    most = 0
    for number in range(5000):
        tenants.forget_idle(0.0, global_time=0.0)
        tenants.of(f"passing {number}")
        most = max(most, len(tenants))
    assert most <= 2 * 10 + 64 + 1
    assert sum(tenant.active for tenant in tenants) == 10
