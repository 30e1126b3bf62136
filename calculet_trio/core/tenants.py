"""Tenants: what each may have, what it has now, and how far its virtual time has come.

Source: SPEC section 4 (S §5.3).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping

from calculet_trio.core.policy import TenantPolicy
from calculet_trio.core.rate_limit import RateLimit
from calculet_trio.core.request import Request
from calculet_trio.ids import RequestId


class Tenant:
    """One tenant's account.

    Attributes:
        waiting: its queued requests, first come first; charged to nobody yet.
        waiting_prompt_tokens: of all its requests that were not admitted.
        active: its admitted requests that have not ended.
        virtual_time: its served cost by weight; what is running is charged in full until it is settled.
    """

    __slots__ = ("active", "name", "policy", "rate", "ticket", "virtual_time", "waiting", "waiting_prompt_tokens")

    def __init__(self, name: str, policy: TenantPolicy) -> None:
        self.name = name
        self.policy = policy
        self.waiting: OrderedDict[RequestId, Request] = OrderedDict()
        self.waiting_prompt_tokens = 0
        self.active = 0
        self.virtual_time = 0.0
        self.rate: RateLimit | None = None
        self.ticket = 0  # the tenant queue's newest entry for it; older ones are void

    def admits_more(self) -> bool:
        """Whether its own limit lets one more of its requests become active."""
        limit = self.policy.max_active_sequences
        return limit is None or self.active < limit

    def arrival_wait_s(self, now: float) -> float | None:
        """Count an arrival against its rate; None if it may come, else the seconds until the next may."""
        per_s = self.policy.requests_per_s
        if per_s is None:
            return None
        if self.rate is None or self.rate.per_s != per_s:
            self.rate = RateLimit(per_s, now)
        return self.rate.take(now)

    def owes_nothing(self, now: float, global_time: float) -> bool:
        """Whether a fresh account would behave the same, so that this one may be forgotten."""
        return (
            not self.waiting
            and not self.active
            and not self.waiting_prompt_tokens
            and self.virtual_time <= global_time
            and (self.rate is None or self.rate.is_full(now))
        )


class Tenants:
    """The accounts of all tenants that have, or recently had, something here."""

    _FLOOR = 64

    def __init__(self, policies: Mapping[str, TenantPolicy]) -> None:
        self._policies = policies
        self._accounts: dict[str, Tenant] = {}
        self._sweep_at = self._FLOOR

    def __iter__(self) -> Iterator[Tenant]:
        return iter(self._accounts.values())

    def __len__(self) -> int:
        return len(self._accounts)

    def of(self, name: str) -> Tenant:
        """The tenant's account, opened if need be."""
        account = self._accounts.get(name)
        if account is None:
            account = self._accounts[name] = Tenant(name, self._policies.get(name, _UNNAMED))
        return account

    def change(self, policies: Mapping[str, TenantPolicy]) -> None:
        """New weights and limits for everybody, without losing anything that waits or runs."""
        self._policies = policies
        for account in self._accounts.values():
            account.policy = policies.get(account.name, _UNNAMED)

    def forget_idle(self, now: float, global_time: float) -> None:
        """Keep the table no larger than twice the tenants that have something here, plus a floor."""
        if len(self._accounts) >= self._sweep_at:
            self._accounts = {n: a for n, a in self._accounts.items() if not a.owes_nothing(now, global_time)}
            self._sweep_at = 2 * len(self._accounts) + self._FLOOR


_UNNAMED = TenantPolicy()
