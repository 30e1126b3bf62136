"""Where ``conformance gate m4`` switches models: on the device itself, or for hours on an emulated board.

Conformance knows no simulator, and the simulator no conformance; here they meet.

Source: S §19; ARCHITECTURE.md "Time".
"""

from __future__ import annotations

from typing import Final

import attrs

from calculet_trio.cli.wiring_conformance import Subject, wire_second
from calculet_trio.conformance.milestone_m4 import Switching
from calculet_trio.conformance.switching import Traffic
from calculet_trio.conformance.two_models import TwoModels
from calculet_trio.settings.configuration import Configuration
from calculet_trio.shell.loading import ModelSource, ModelText
from calculet_trio.sim.scenario import Scenario
from calculet_trio.sim.virtual_life import VirtualLife

IN_REAL_TIME: Final = Traffic(clients=8, pause_s=0.0, dwell_s=5.0)
IN_A_HURRY: Final = Traffic(clients=8, pause_s=0.0, dwell_s=0.2)
IN_VIRTUAL_TIME: Final = Traffic(clients=4, pause_s=10.0, dwell_s=60.0)
"""Eight virtual hours of it take minutes."""


def two_models(configuration: Configuration, subject: Subject, second: str | None) -> TwoModels:
    """The subject and another model, in real time.

    Raises:
        calculet_trio.errors.PackageError: there is no such package.
        calculet_trio.errors.ConfigurationRefused: it does not fit, or nobody knows which one is meant.
    """
    first = attrs.evolve(subject.source, served=None)
    other = attrs.evolve(wire_second(configuration, second, alias=first.alias), served=None)
    return TwoModels(runtime=lambda: subject.runtime, sources=(first, other), policy=subject.policy)


def in_real_time(models: TwoModels, *, hours: float, short: bool) -> Switching:
    """Clients that never pause, on the device itself."""
    return Switching(models=models, traffic=IN_A_HURRY if short else IN_REAL_TIME, hours=hours, time="real")


def in_virtual_time(models: TwoModels, world: Scenario, *, hours: float) -> Switching:
    """The same two emulated models on a board whose hours take minutes."""
    life = VirtualLife(world.spec().device, seed=world.seed)
    first, second = (_without_template(source) for source in models.sources)
    virtual = TwoModels(
        runtime=lambda: life.runtime, sources=(first, second), policy=models.policy, runner=life.runner, run=life.run
    )
    return Switching(models=virtual, traffic=IN_VIRTUAL_TIME, hours=hours, time="virtual")


def _without_template(source: ModelSource) -> ModelSource:
    """Clients here send token ids, and a template's process knows no virtual time."""
    text = source.open_text()
    text.close()
    return attrs.evolve(source, open_text=lambda: ModelText(text.tokenizer, None))
