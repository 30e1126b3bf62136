"""The fairness bound of ``core/tenant_queue.py``, held against what was really served.

For two tenants that both have requests waiting throughout an interval, neither with a limit of its own, the work
served to them, by weight, differs over any part of the interval by no more than ``(B + 1) (c_f/w_f + c_g/w_g)``.

Source: the proof in `calculet_trio.core.tenant_queue`; Sheng et al., OSDI'24.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from calculet_trio.core import effects as ef
from calculet_trio.core import events as ev
from calculet_trio.core.jobs import Job, PrefillJob
from calculet_trio.core.policy import Policy, TenantPolicy
from calculet_trio.ids import JobId, RequestId
from calculet_trio.sim.checkers.violation import require
from calculet_trio.sim.checkers.watch import Routes

_UNNAMED: Final = TenantPolicy()
_ROUNDING: Final = 1e-6


@attrs.define
class _Tenant:
    """One tenant's account: what it was served, by weight, and the dearest request it asked for, likewise."""

    weight: float
    lightest: float
    is_limited: bool
    served: float = 0.0
    dearest_tokens: float = 0.0
    waiting: set[RequestId] = attrs.field(factory=set)

    @property
    def dearest(self) -> float:
        """By the smallest weight it has had: what runs was charged by the weight of then."""
        return self.dearest_tokens / self.lightest


@attrs.define
class _Span:
    """How far two accounts have been apart, either way, since both began to wait."""

    least: float
    most: float


class FairnessChecker:
    """One daemon's tenants.

    Args:
        policy: weights and limits.
        lanes: of the device: requests that can be active together.
        context_tokens: of a lane: no reply is granted more.
    """

    def __init__(self, policy: Policy, *, lanes: int, context_tokens: int) -> None:
        self._policies: Mapping[str, TenantPolicy] = policy.tenants
        self._decode_cost = policy.fairness.decode_cost_weight
        self._lanes = lanes
        self._context_tokens = context_tokens
        self._tenants: dict[str, _Tenant] = {}
        self._names: dict[RequestId, str] = {}
        self._weights: dict[RequestId, float] = {}
        self._backlogged: dict[str, _Tenant] = {}
        self._spans: dict[tuple[str, str], _Span] = {}
        self._jobs: dict[JobId, Job] = {}
        self._prompts: dict[RequestId, int] = {}
        self._prefilled: dict[RequestId, int] = {}
        self.compared = 0
        """How often two tenants' accounts were held against the bound."""

    def routes(self) -> Routes:
        """See `calculet_trio.sim.checkers.watch.Checker`."""
        return {
            ev.Arrived: self._arrived,
            ev.Offered: self._offered,
            ev.SequenceRefused: self._waits_again,
            ev.TenantsChanged: self._tenants_changed,
            ev.JobFinished: self._job_finished,
            ef.AllocateSequence: self._goes,
            ef.ContinueSequence: self._goes,
            ef.Admit: self._admitted,
            ef.SubmitJob: self._submitted,
            ef.Deliver: self._delivered,
            ef.Refuse: self._ends,
            ef.Finish: self._ends,
            ef.Fail: self._ends,
            ef.Drop: self._ends,
        }

    def conclude(self, now: float, *, device_lost: bool) -> None:
        """Nothing is left to say: the bound was held at every instant."""

    # ---- who waits ------------------------------------------------------------------------------

    def _arrived(self, event: ev.Arrived, now: float) -> None:
        self._names[event.request] = event.tenant
        if event.tenant not in self._tenants:
            own = self._policies.get(event.tenant, _UNNAMED)
            self._tenants[event.tenant] = _Tenant(own.weight, own.weight, own.max_active_sequences is not None)

    def _offered(self, event: ev.Offered, now: float) -> None:
        name = self._names.get(event.request)
        if name is None:
            return  # ended while its prompt was prepared
        asked = self._context_tokens if event.max_new_tokens is None else event.max_new_tokens
        granted = min(asked, self._context_tokens - len(event.prompt))
        if granted < 1:
            return  # it will be refused
        tenant = self._tenants[name]
        cost = len(event.prompt) + self._decode_cost * granted
        tenant.dearest_tokens = max(tenant.dearest_tokens, cost)
        self._waits(name, event.request)

    def _waits_again(self, event: ev.SequenceRefused, now: float) -> None:
        if event.request in self._names:
            self._waits(self._names[event.request], event.request)

    def _waits(self, name: str, request: RequestId) -> None:
        tenant = self._tenants[name]
        tenant.waiting.add(request)
        if name in self._backlogged or tenant.is_limited:
            return
        for other_name, other in self._backlogged.items():
            apart = tenant.served - other.served
            self._spans[name, other_name] = _Span(apart, apart)
        self._backlogged[name] = tenant

    def _goes(self, effect: ef.AllocateSequence | ef.ContinueSequence, now: float) -> None:
        if effect.request not in self._prompts:  # else it is replayed, and was charged long ago
            self._weights[effect.request] = self._tenants[self._names[effect.request]].weight
        self._waits_no_more(effect.request)

    def _admitted(self, effect: ef.Admit, now: float) -> None:
        self._prompts[effect.request] = effect.prompt_tokens
        self._prefilled[effect.request] = effect.cached_tokens

    def _ends(self, effect: ef.Refuse | ef.Finish | ef.Fail | ef.Drop, now: float) -> None:
        self._waits_no_more(effect.request)
        self._names.pop(effect.request, None)
        self._weights.pop(effect.request, None)
        self._prompts.pop(effect.request, None)
        self._prefilled.pop(effect.request, None)

    def _waits_no_more(self, request: RequestId) -> None:
        name = self._names.get(request)
        if name is None:
            return
        tenant = self._tenants[name]
        tenant.waiting.discard(request)
        if not tenant.waiting and self._backlogged.pop(name, None) is not None:
            self._spans = {pair: span for pair, span in self._spans.items() if name not in pair}

    def _tenants_changed(self, event: ev.TenantsChanged, now: float) -> None:
        """New weights, for what is charged from now on; every comparison begins anew."""
        self._policies = event.tenants
        self._spans.clear()
        self._backlogged.clear()
        for name, tenant in self._tenants.items():
            own = self._policies.get(name, _UNNAMED)
            # A tenant that was held back by a limit may stand behind the global time: it is compared no more.
            tenant.is_limited = tenant.is_limited or own.max_active_sequences is not None
            tenant.weight, tenant.lightest = own.weight, min(tenant.lightest, own.weight)
        for name, tenant in self._tenants.items():
            for request in sorted(tenant.waiting):
                self._waits(name, request)

    # ---- what was served ------------------------------------------------------------------------

    def _submitted(self, effect: ef.SubmitJob, now: float) -> None:
        if isinstance(effect.job, PrefillJob):
            self._jobs[effect.job.job] = effect.job

    def _job_finished(self, event: ev.JobFinished, now: float) -> None:
        job = self._jobs.pop(event.job, None)
        if job is not None and not event.lost:
            for work in job.lanes:
                self._prefilled_to(work.request, work.position + len(work.tokens))

    def _prefilled_to(self, request: RequestId, tokens: int) -> None:
        """Prompts are served once: what is prefilled again after a reset is nobody's service."""
        before = self._prefilled.get(request, 0)
        tokens = min(tokens, self._prompts.get(request, 0))
        if tokens > before:
            self._prefilled[request] = tokens
            self._served(request, tokens - before)

    def _delivered(self, effect: ef.Deliver, now: float) -> None:
        self._served(effect.request, self._decode_cost)

    def _served(self, request: RequestId, tokens: float) -> None:
        name = self._names[request]
        tenant = self._tenants[name]
        tenant.served += tokens / self._weights[request]
        if name not in self._backlogged or len(self._backlogged) < 2:
            return
        for (first, second), span in self._spans.items():
            if name in (first, second):
                self._compare(first, second, span)

    def _compare(self, one: str, other: str, span: _Span) -> None:
        first, second = self._tenants[one], self._tenants[other]
        apart = first.served - second.served
        span.least, span.most = min(span.least, apart), max(span.most, apart)
        self.compared += 1
        gap, bound = span.most - span.least, (self._lanes + 1) * (first.dearest + second.dearest)
        require(
            gap <= bound * (1 + _ROUNDING),
            "the tenants {} and {} have both waited, and were served {:.0f} weighted tokens differently; "
            "the bound is {:.0f}",
            *(one, other, gap, bound),
        )
