"""What a command line says, and that it can be said again."""

from __future__ import annotations

import shlex
from pathlib import Path

import attrs
import pytest
from click.testing import CliRunner

from calculet_trio.cli import simulate as command
from calculet_trio.core.fault_kinds import FaultKind
from calculet_trio.errors import ConfigurationRefused
from calculet_trio.runtimes.device_model import load_device
from calculet_trio.runtimes.faults import HARSH
from calculet_trio.sim.failure import Failure, try_scenario
from calculet_trio.sim.load import arrivals_per_s
from calculet_trio.sim.population import Poisson
from calculet_trio.sim.scenario import Scenario, rates_of, with_profiles
from calculet_trio.sim.shrinking import shrink


@pytest.mark.parametrize(
    "scenario",
    [
        Scenario(seed=4, seconds=12.5, faults="harsh", varied=True, visits_max=9, without=("reloads", "restarts")),
        Scenario(seed=4, seconds=0.1, load=0.3, tenants=2, profiles=(1, 4), chunked=True),
        Scenario(seed=5, seconds=0.1, load=0.3, tenants=2, profiles=(1, 4), reuse=True),
        Scenario(seed=4, seconds=60.0, faults="slow,timeout", trace=Path("a trace.csv"), stretch=16.0),
        Scenario(seed=4, seconds=60.0, device=Path("my board.yaml")),
    ],
)
def test_the_command_makes_the_same_scenario(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    again: list[Scenario] = []

    def catch(found: Scenario, _progress: object) -> None:
        again.append(found)
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_run", catch)
    monkeypatch.setattr(command, "quieten", lambda: None)
    words = shlex.split(scenario.command())
    assert words[:2] == ["calculet-trio", "simulate"]
    CliRunner().invoke(command.simulate, words[2:])
    assert again == [scenario]


def test_kinds_are_named_by_themselves_at_their_harsh_rates() -> None:
    assert rates_of("none") == {}
    rates = rates_of("timeout,cross_talk")
    assert list(rates) == [FaultKind.TIMEOUT, FaultKind.CROSS_TALK]
    assert rates[FaultKind.TIMEOUT] == HARSH[FaultKind.TIMEOUT]
    with pytest.raises(ConfigurationRefused, match="'meteor' is neither a mixture"):
        rates_of("timeout,meteor")


def test_a_batch_that_nobody_measured_is_marked_as_assumed() -> None:
    reference = load_device()
    device = with_profiles(reference, (1, 8))
    assert sorted(device.decode) == [1, 8]
    assert device.lanes == 8
    assert {"decode.8", "lanes"} <= set(device.assumed)
    assert "decode.1" not in device.assumed
    with pytest.raises(ConfigurationRefused, match="profiles"):
        with_profiles(reference, (0, 4))


def test_load_is_a_share_of_what_the_board_does() -> None:
    device = load_device()
    full = arrivals_per_s(device, Poisson(per_s=1.0))
    assert arrivals_per_s(with_profiles(device, (1, 4)), Poisson(per_s=1.0)) > 1.5 * full
    population = Scenario(seed=1, seconds=1.0, load=0.5).spec().population
    assert isinstance(population, Poisson)
    assert population.per_s == pytest.approx(full / 2)


def test_a_failure_shrinks_to_a_smaller_world_of_the_same_kind() -> None:
    scenario = Scenario(seed=7, seconds=30.0, faults="cross_talk,slow,device_busy", profiles=(1, 4))
    failure = try_scenario(scenario)
    while not isinstance(failure, Failure):  # the first seed whose world crosses two lanes
        scenario = attrs.evolve(scenario, seed=scenario.seed + 1)
        assert scenario.seed < 20
        failure = try_scenario(scenario)
    shrunk = shrink(failure, tries_max=12)
    small = shrunk.failure
    assert shrunk.tries <= 12
    assert small.kind == failure.kind
    assert small.scenario.seconds < 30.0 or (small.scenario.visits_max or 99) < 64 or "," not in small.scenario.faults
    again = try_scenario(small.scenario)
    assert isinstance(again, Failure)
    assert again.message == small.message
