"""A small world that several tests change, and what a checker says of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import pytest

from calculet_trio.core.effects import Effect
from calculet_trio.core.events import Event
from calculet_trio.core.fault_kinds import FaultKind
from calculet_trio.core.policy import AdmissionPolicy, Policy
from calculet_trio.core.serving import ServingCore
from calculet_trio.runtimes.device_model import PrefillCurve, StepCurve, load_device
from calculet_trio.sim.failure import Failure, failure_of
from calculet_trio.sim.population import Poisson
from calculet_trio.sim.scenario import Scenario
from calculet_trio.sim.world import WorldSpec, run_world

DEVICE = load_device(
    lanes=4,
    context_tokens=256,
    vocab_size=259,
    engines=1,
    decode={1: StepCurve(0.01), 4: StepCurve(0.012)},
    prefill=PrefillCurve(0.0, 0.0005),
)
POPULATION = Poisson(per_s=8.0, prompt_median=20.0, output_median=12.0, misbehaving=0.0)
SMALL = WorldSpec(seed=11, seconds=6.0, device=DEVICE, policy=Policy(), population=POPULATION, faults={})


def small(*, faults: Mapping[FaultKind, float] | None = None, deadline_s: float = 120.0, **changes: Any) -> WorldSpec:
    """The small world with these changes; ``deadline_s`` is every request's."""
    policy = changes.pop("policy", Policy(admission=AdmissionPolicy(deadline_default_s=deadline_s)))
    return attrs.evolve(SMALL, faults=faults or {}, policy=policy, **changes)


def complaint(spec: WorldSpec) -> str:
    """The first objection to a world that must fail."""
    try:
        run_world(spec)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what the test is about
        found = failure_of(Scenario(seed=spec.seed, seconds=spec.seconds), error)
        assert isinstance(found, Failure)
        return found.message
    pytest.fail("no checker objected")


Change = Callable[[list[Effect], Event, float], list[Effect]]


def plant(monkeypatch: pytest.MonkeyPatch, change: Change) -> None:
    """From now on the core's decisions are changed before anybody performs them."""
    handle = ServingCore.handle

    def changed(core: ServingCore, event: Event, now: float) -> list[Effect]:
        return change(handle(core, event, now), event, now)

    monkeypatch.setattr(ServingCore, "handle", changed)


def mishear(monkeypatch: pytest.MonkeyPatch, change: Callable[[Event, float], Event | None]) -> None:
    """From now on the core hears something else than what happened; nothing at all where ``change`` says None."""
    handle = ServingCore.handle

    def misheard(core: ServingCore, event: Event, now: float) -> list[Effect]:
        other = change(event, now)
        return [] if other is None else handle(core, other, now)

    monkeypatch.setattr(ServingCore, "handle", misheard)
