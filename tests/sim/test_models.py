"""Worlds whose models take turns or are exchanged by operators; and what the checker of generations says of defects."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from calculet_trio.core import effects as ef
from calculet_trio.core.effects import Effect
from calculet_trio.core.events import Event
from calculet_trio.core.fleet import Fleet
from calculet_trio.core.policy import AdmissionPolicy, Policy
from calculet_trio.core.residency import Residency
from calculet_trio.ids import GenerationId
from calculet_trio.runtimes.emulated import EmulatedRuntime
from calculet_trio.sim.models import DAMAGED, Act, Models, Operation
from calculet_trio.sim.population import ALIAS, Poisson
from calculet_trio.sim.scenario import Scenario
from calculet_trio.sim.world import WorldSpec, run_world
from tests.sim.small import complaint, plant, small
from tests.sim.test_worlds import passes

ALIASES = (ALIAS, "n", "o")
SERVED = {"finished: length", "finished: stop", "refused: loading", "refused: draining"}
"""Who comes before the first model is there, or waits when the world ends, is refused in those words."""
PATIENT = Policy(admission=AdmissionPolicy(deadline_default_s=600.0))


def in_turns(**changes: Any) -> WorldSpec:
    """Three models share the small board by time."""
    models = Models(aliases=ALIASES, dwell_s=1.0, configure_s=0.1)
    population = Poisson(per_s=6.0, prompt_median=20.0, output_median=12.0, misbehaving=0.0, aliases=ALIASES)
    return attrs.evolve(small(policy=PATIENT, population=population, seconds=10.0), **{"models": models, **changes})


def exchanged(**changes: Any) -> WorldSpec:
    """Operators exchange the packages of one model."""
    operations = (
        Operation(1.0, Act.LOAD, ALIAS, "b"),
        Operation(2.0, Act.LOAD, ALIAS, DAMAGED),
        Operation(3.0, Act.ROLLBACK, ALIAS),
        Operation(4.0, Act.LOAD, ALIAS),
        Operation(5.0, Act.UNLOAD, ALIAS),
        Operation(5.5, Act.LOAD, ALIAS, "b"),
    )
    return small(policy=PATIENT, **{"models": Models(configure_s=0.05, operations=operations), **changes})


def test_models_in_turns_answer_everybody_with_their_own_voice_and_do_not_thrash() -> None:
    outcome = run_world(in_turns())
    assert set(outcome.clients) <= SERVED
    assert 5 <= outcome.switches <= outcome.ended_s + 1


def test_a_swap_loses_nobody_and_an_unload_is_said_in_words() -> None:
    outcome = run_world(exchanged())
    assert outcome.switches == 4
    assert set(outcome.clients) <= SERVED | {"refused: model_unloaded"}
    spec = exchanged()
    swaps = attrs.evolve(spec.models, operations=spec.models.operations[:4])
    outcome = run_world(attrs.evolve(spec, models=swaps))
    assert set(outcome.clients) <= SERVED


@pytest.mark.parametrize("faults", ["mixed", "harsh"])
def test_faults_and_operators_at_once(faults: str) -> None:
    for seed in (3, 27, 33):
        passes(Scenario(seed=seed, seconds=6.0, faults=faults, varied=True))


# ---- each objection is seen to be raised -----------------------------------------------------------------------------


def test_a_switch_that_loses_those_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fleet, "is_expected", lambda _self, _alias: False)
    assert "is refused, and" in complaint(in_turns())


def test_a_board_that_thrashes(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Residency.__init__

    def restless(self: Residency, *args: Any, dwell_s: float) -> None:
        begin(self, *args, dwell_s=dwell_s / 10)

    monkeypatch.setattr(Residency, "__init__", restless)
    assert "s after the last" in complaint(in_turns())


def test_a_request_that_is_placed_with_the_model_before(monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(effects: list[Effect], _event: Event, _now: float) -> list[Effect]:
        return [
            attrs.evolve(effect, generation=GenerationId(1)) if isinstance(effect, ef.Place) else effect
            for effect in effects
        ]

    plant(monkeypatch, stale)
    assert "is placed with" in complaint(in_turns())


def test_a_request_that_is_given_another_models_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(effects: list[Effect], _event: Event, _now: float) -> list[Effect]:
        return [
            attrs.evolve(effect, generation=GenerationId(1)) if isinstance(effect, ef.AllocateSequence) else effect
            for effect in effects
        ]

    plant(monkeypatch, wrong)
    assert "and is served by another" in complaint(exchanged())


def test_a_model_that_is_taken_away_while_somebody_is_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fleet, "_is_vacant", lambda _self, _generation: True)
    assert "is vacated while" in complaint(exchanged(population=Poisson(per_s=40.0, misbehaving=0.0)))


def test_a_board_that_speaks_with_the_voice_of_the_model_before(monkeypatch: pytest.MonkeyPatch) -> None:
    configure = EmulatedRuntime.configure

    def deaf(self: EmulatedRuntime, generation: GenerationId, package: Any) -> None:
        configure(self, generation, package)
        self.model = attrs.evolve(self.model, voice=0)

    monkeypatch.setattr(EmulatedRuntime, "configure", deaf)
    assert "a reply is not its own" in complaint(in_turns())
