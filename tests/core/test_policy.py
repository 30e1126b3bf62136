"""Policy: a tenant that nobody named has the defaults."""

from __future__ import annotations

from calculet_trio.core.policy import Policy, TenantPolicy


def test_a_tenant_has_what_it_was_given_and_any_other_the_defaults() -> None:
    policy = Policy(tenants={"paying": TenantPolicy(weight=3.0)})
    assert policy.tenant("paying").weight == 3.0
    assert policy.tenant("unheard of") == TenantPolicy()
