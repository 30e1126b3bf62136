"""Fairness: the queue against a reference that works everything out anew, and the bound that its docstring proves."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from calculet_trio.core.policy import BatchPolicy, DecodeOrder, DecodePolicy, Policy, QueuePolicy, TenantPolicy
from calculet_trio.core.request import Request
from calculet_trio.core.tenant_queue import TenantQueue
from calculet_trio.core.tenants import Tenant, Tenants
from tests.core.naive_queue import NAMES, NaiveQueue
from tests.core.shapes import GENERATION, evidence_of, small_shape, waiting_request
from tests.core.world import World

picks = st.integers(0, 99)
weights = st.sampled_from([0.5, 1.0, 2.0, 7.0])
limits = st.none() | st.integers(1, 3)
policies = st.fixed_dictionaries(
    {}, optional={name: st.builds(TenantPolicy, weight=weights, max_active_sequences=limits) for name in NAMES}
)

# ---- the rule, worked out anew at every step ----------------------------------------------------------------


class Pair:
    """The queue and its reference, told the same."""

    def __init__(self, chosen: dict[str, TenantPolicy]) -> None:
        self.tenants = Tenants(chosen)
        self.queue = TenantQueue(self.tenants)
        self.naive = NaiveQueue(chosen)
        self.waiting: list[Request] = []
        self.active: list[Request] = []
        self.aside: list[Request] = []
        self._numbers = count(1)

    def push(self, pick: int, cost: int) -> None:
        request = waiting_request(next(self._numbers), tenant=NAMES[pick % len(NAMES)])
        self.queue.push(request, cost=cost)
        self.naive.wait(request.tenant, request.id, cost, front=False)
        self.waiting.append(request)

    def pop(self, pick: int, cost: int) -> None:
        candidates = self.naive.candidates()
        shown = self.queue.peek()
        assert (shown is None) == (not candidates)
        if shown is None:
            return
        assert candidates[shown.id] == pytest.approx(min(candidates.values())), "the least virtual finish"
        assert self.queue.pop() is shown
        assert shown.virtual_start == pytest.approx(self.naive.time[shown.tenant])
        self.naive.charge(shown.id)
        assert shown.virtual_finish == pytest.approx(self.naive.time[shown.tenant])
        self.waiting.remove(shown)
        self.active.append(shown)

    def settle(self, pick: int, cost: int) -> None:
        request = take(self.active, pick)
        if request is not None:
            used = min(request.cost, float(cost))
            self.queue.settle(request, used=used)
            self.naive.settle(request.id, used)

    def put_back(self, pick: int, cost: int) -> None:
        request = take(self.active, pick)
        if request is not None:
            self.queue.put_back(request)
            self.naive.settle(request.id, 0.0)
            self.naive.wait(request.tenant, request.id, request.cost, front=True)
            self.waiting.append(request)

    def discard(self, pick: int, cost: int) -> None:
        request = take(self.waiting, pick)
        if request is not None:
            self.queue.discard(request)
            self.naive.line[request.tenant].remove((request.id, request.cost))

    def set_aside(self, pick: int, cost: int) -> None:
        request = take(self.waiting, pick)
        if request is not None:
            self.queue.set_aside(request)
            self.naive.line[request.tenant].remove((request.id, request.cost))
            self.aside.append(request)

    def bring_back(self, pick: int, cost: int) -> None:
        self.queue.bring_back(GENERATION)
        for request in reversed(self.aside):
            self.naive.wait(request.tenant, request.id, request.cost, front=True)
        self.waiting += self.aside
        self.aside.clear()

    def reweigh(self, chosen: dict[str, TenantPolicy]) -> None:
        self.tenants.change(chosen)
        self.queue.reweigh()
        self.naive.policies = chosen

    def compare(self) -> None:
        assert len(self.queue) == len(self.waiting)
        assert self.queue.global_time == pytest.approx(self.naive.global_time)
        for name in NAMES:
            tenant = self.tenants.of(name)
            assert tenant.virtual_time == pytest.approx(self.naive.time[name], abs=1e-9)
            assert tenant.active == sum(request.tenant == name for request in self.active)
            assert list(tenant.waiting) == [request for request, _ in self.naive.line[name]]
            assert 0 <= self.queue.ahead_of(tenant) <= len(self.queue) + 1e-9


def take(requests: list[Request], pick: int) -> Request | None:
    return requests.pop(pick % len(requests)) if requests else None


STEPS: list[Callable[[Pair, int, int], None]] = [
    Pair.push,
    Pair.push,
    Pair.push,
    Pair.pop,
    Pair.pop,
    Pair.settle,
    Pair.put_back,
    Pair.discard,
    Pair.set_aside,
    Pair.bring_back,
]


@settings(max_examples=150)
@given(policies, st.lists(st.tuples(st.sampled_from(STEPS), picks, st.integers(1, 60)) | policies, max_size=60))
def test_the_queue_is_what_the_rule_says(
    chosen: dict[str, TenantPolicy],
    steps: list[tuple[Callable[[Pair, int, int], None], int, int] | dict[str, TenantPolicy]],
) -> None:
    pair = Pair(chosen)
    for step in steps:
        if isinstance(step, dict):
            pair.reweigh(step)
        else:
            act, pick, cost = step
            act(pair, pick, cost)
        pair.compare()


# ---- the bound -------------------------------------------------------------------------------------------------


class Gap:
    """How far the service of f has gone away from that of g, by weight: between any two instants since it began."""

    def __init__(self) -> None:
        self.least = self.most = 0.0
        self.is_begun = False

    def see(self, difference: float) -> None:
        if not self.is_begun:
            self.least = self.most = difference
            self.is_begun = True
        self.least, self.most = min(self.least, difference), max(self.most, difference)

    @property
    def widest(self) -> float:
        return self.most - self.least


def bound(lanes: int, f: tuple[float, float], g: tuple[float, float]) -> float:
    """The claim of `tenant_queue`; each tenant is its largest cost and its weight."""
    return (lanes + 1) * (f[0] / f[1] + g[0] / g[1])


class Backlog:
    """Tenants f and g that always have somebody waiting, a guest h that comes and goes, and lanes that work."""

    def __init__(self, lanes: int, f: tuple[int, float], g: tuple[int, float]) -> None:
        self.lanes = lanes
        self.dear = {"f": f[0], "g": g[0], "h": 50}
        self.weight = {"f": f[1], "g": g[1], "h": 1.0}
        self.tenants = Tenants({name: TenantPolicy(weight=weight) for name, weight in self.weight.items()})
        self.queue = TenantQueue(self.tenants)
        self.served = dict.fromkeys(NAMES, 0.0)
        self.running: list[tuple[Request, int]] = []
        self._numbers = count(1)

    def push(self, tenant: str, cost: int) -> None:
        self.queue.push(waiting_request(next(self._numbers), tenant=tenant), cost=1 + cost % self.dear[tenant])

    def keep_waiting(self, tenants: str, *costs: int) -> None:
        """Each of the tenants has at least two requests waiting."""
        for tenant in tenants:
            for cost in costs:
                if len(self.tenants.of(tenant).waiting) < 2:
                    self.push(tenant, cost)

    def admit(self) -> None:
        if len(self.running) < self.lanes and self.queue.peek() is not None:
            self.running.append((self.queue.pop(), 0))

    def work(self, pick: int, amount: int) -> None:
        """Some lane works, and ends what it was asked for."""
        if not self.running:
            return
        request, done = self.running.pop(pick % len(self.running))
        step = min(amount, int(request.cost) - done)
        self.served[request.tenant] += step
        if done + step == request.cost:
            self.queue.settle(request, used=request.cost)
        else:
            self.running.append((request, done + step))

    def stop(self, pick: int) -> None:
        """Some reply ends before it has used what it was granted."""
        if self.running:
            request, done = self.running.pop(pick % len(self.running))
            self.queue.settle(request, used=done)

    def refuse(self, pick: int) -> None:
        """The runtime has no room after all for one that has not begun."""
        begun = [entry for entry in self.running if entry[1] == 0]
        if begun:
            entry = begun[pick % len(begun)]
            self.running.remove(entry)
            self.queue.put_back(entry[0])

    @property
    def difference(self) -> float:
        return self.served["f"] / self.weight["f"] - self.served["g"] / self.weight["g"]


@settings(max_examples=150)
@given(
    st.integers(1, 4),
    st.tuples(st.integers(1, 60), weights),
    st.tuples(st.integers(1, 60), weights),
    st.lists(st.tuples(st.sampled_from("wwwwwwsrh"), picks, st.integers(1, 60)), min_size=30, max_size=150),
    st.integers(0, 20),
)
def test_two_backlogged_tenants_are_never_further_apart_than_the_bound(
    lanes: int, f: tuple[int, float], g: tuple[int, float], steps: list[tuple[str, int, int]], alone: int
) -> None:
    """For the first ``alone`` steps g is not there; from then on both always wait."""
    line, gap = Backlog(lanes, f, g), Gap()
    for number, (step, pick, amount) in enumerate(steps):
        match step:
            case "w":
                line.work(pick, amount)
            case "s":
                line.stop(pick)
            case "r":
                line.refuse(pick)
            case _:
                line.push("h", amount)
        present = "f" if number < alone else "fg"
        line.keep_waiting(present, pick, amount)
        if number >= alone:
            gap.see(line.difference)
        line.admit()
        line.keep_waiting(present, amount, pick)
        assert gap.widest <= bound(lanes, f, g) + 1e-9
    event(f"{10 * gap.widest // bound(lanes, f, g):.0f} tenths of the bound")


def test_the_bound_is_not_a_mile_away() -> None:
    """Worked out by hand: f has all lanes to itself, g comes, and then each in turn works off what it was charged."""
    lanes, cost = 3, 60
    line, gap = Backlog(lanes, (cost, 1.0), (cost, 1.0)), Gap()
    line.keep_waiting("f", cost - 1, cost - 1)
    for _ in range(lanes):
        line.admit()
        line.keep_waiting("f", cost - 1, cost - 1)
    line.keep_waiting("fg", cost - 1, cost - 1)
    gap.see(line.difference)
    for _ in range(lanes):
        line.work(0, cost)
        line.admit()
        line.keep_waiting("fg", cost - 1, cost - 1)
        gap.see(line.difference)
    assert gap.widest == lanes * cost
    assert bound(lanes, (cost, 1.0), (cost, 1.0)) == 2 * (lanes + 1) * cost


# ---- through the whole core ---------------------------------------------------------------------------------------


def served_tokens(world: World, tenant: str) -> float:
    """Tokens of prompt and reply that were computed for the tenant."""
    return sum(s.prefilled + len(s.tokens) for s in world.streams.values() if s.tenant == tenant)


def account_of(world: World, tenant: str) -> Tenant:
    return world.core._tenants.of(tenant)


@settings(max_examples=25)
@given(
    st.integers(1, 4),
    st.tuples(st.integers(1, 30), weights),
    st.tuples(st.integers(1, 30), weights),
    st.sampled_from(DecodeOrder),
    st.booleans(),
    st.lists(st.tuples(picks, st.integers(1, 8)), min_size=30, max_size=60),
)
def test_the_bound_holds_through_the_whole_core(
    lanes: int,
    f: tuple[int, float],
    g: tuple[int, float],
    order: DecodeOrder,
    chunked: bool,
    steps: list[tuple[int, int]],
) -> None:
    """Random answers of a device, random lengths, replies that stop early; each charged once and settled once."""
    policy = Policy(
        queues=QueuePolicy(prefill_chunk_tokens=4),
        decode=DecodePolicy(order=order, tenant_lane_share=0.5),
        batch=BatchPolicy(),
        tenants={"f": TenantPolicy(weight=f[1]), "g": TenantPolicy(weight=g[1])},
    )
    evidence = evidence_of("incremental_prefill") if chunked else None
    world, gap = World(small_shape(lanes), policy=policy, evidence=evidence), Gap()

    def keep_waiting(tenant: str, pick: int, new_tokens: int) -> None:
        longest, _ = f if tenant == "f" else g
        world.ask(tenant=tenant, prompt_tokens=1 + pick % longest, max_new_tokens=new_tokens)

    for tenant in "fg":  # f takes all lanes before g comes
        for _ in range(2 * lanes + 2):
            keep_waiting(tenant, 7, 3)
    begun_at = {tenant: account_of(world, tenant).virtual_time for tenant in "g"} | {"f": 0.0}
    for pick, new_tokens in steps:
        for tenant in "fg":
            if len(account_of(world, tenant).waiting) < lanes + 1:
                keep_waiting(tenant, pick, new_tokens)
        if world.allocations:
            world.allocate(next(iter(world.allocations)))
        elif world.releases and pick % 2:
            world.release(next(iter(world.releases)))
        elif world.jobs:
            world.pass_time(0.001 * new_tokens)
            stop = [work.request for work in world.job.lanes if (pick + work.index) % 10 == 0]
            world.finish(world.job.job, stop=stop)
        elif world.releases:
            world.release(next(iter(world.releases)))
        gap.see(served_tokens(world, "f") / f[1] - served_tokens(world, "g") / g[1])
        assert gap.widest <= bound(lanes, (f[0] + 8, f[1]), (g[0] + 8, g[1])) + 1e-9
    world.run()
    for tenant, (_, weight) in (("f", f), ("g", g)):
        charged = account_of(world, tenant).virtual_time - begun_at[tenant]
        assert account_of(world, tenant).active == 0
        assert charged * weight == pytest.approx(served_tokens(world, tenant)), "what was used, once"
