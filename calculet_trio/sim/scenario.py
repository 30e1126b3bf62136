"""Scenario: a world as a command line says it, so that whatever was run can be run again.

Source: CLI.md "Commands".
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import attrs

from calculet_trio.core.fault_kinds import FaultKind
from calculet_trio.core.policy import AdmissionPolicy, Policy
from calculet_trio.errors import ConfigurationRefused
from calculet_trio.runtimes.device_model import REFERENCE, DeviceModel, load_device
from calculet_trio.runtimes.faults import HARSH, MIXED
from calculet_trio.sim.load import arrivals_per_s
from calculet_trio.sim.population import Poisson, Population, Recorded
from calculet_trio.sim.variety import draw_world
from calculet_trio.sim.world import WorldSpec

MIXTURES: Final[Mapping[str, Mapping[FaultKind, float]]] = {"none": {}, "mixed": MIXED, "harsh": HARSH}
_RARE: Final = 0.001
"""Rate per call of a kind that no mixture has, where it is named by itself."""
HAPPENINGS: Final = ("reloads", "restarts", "operations")
"""What a varied world may be without."""
SECONDS_MAX: Final = 32 * 86_400.0


@attrs.frozen(kw_only=True)
class Scenario:
    """The options of ``calculet-trio simulate``.

    Args:
        seed: of everything.
        seconds: how long clients come.
        faults: a mixture of `MIXTURES`, or kinds with commas between them.
        varied: whether the seed also draws board, policy and clients; then only the three above and the two
            below count.
        visits_max: only the first so many clients come; None for all.
        without: of `HAPPENINGS`.
        trace: arrivals and lengths as recorded; None for a Poisson process.
        stretch: a trace's arrival times are multiplied by this.
        profiles: compiled batches; None for those of the device file.
        device: the device file; None for the reference model.
        chunked: as if the package had earned chunked prefill.
        reuse: as if it had earned prefix reuse; then half of the clients come back with their conversation.
        load: what clients ask for, as a share of what the board can do, where no trace is given.
        tenants: how many, likewise; the first sends as much as all others.
    """

    seed: int
    seconds: float
    faults: str = "none"
    varied: bool = False
    visits_max: int | None = None
    without: tuple[str, ...] = ()
    trace: Path | None = None
    stretch: float = 1.0
    profiles: tuple[int, ...] | None = None
    device: Path | None = None
    chunked: bool = False
    reuse: bool = False
    load: float = 0.8
    tenants: int = 3

    def spec(self) -> WorldSpec:
        """The world.

        Raises:
            calculet_trio.errors.ConfigurationRefused: a kind of fault or the device file is not valid.
        """
        rates = rates_of(self.faults)
        if self.varied:
            drawn = draw_world(seed=self.seed, seconds=self.seconds, faults=rates)
            return attrs.evolve(
                drawn,
                visits_max=self.visits_max,
                reloads=() if "reloads" in self.without else drawn.reloads,
                restarts_s=() if "restarts" in self.without else drawn.restarts_s,
                models=attrs.evolve(drawn.models, operations=()) if "operations" in self.without else drawn.models,
            )
        device = self._device()
        return WorldSpec(
            seed=self.seed,
            seconds=self.seconds,
            device=device,
            policy=Policy(admission=AdmissionPolicy(max_inflight_jobs=device.engines)),
            population=self._population(device),
            faults=rates,
            visits_max=self.visits_max,
            chunked=self.chunked,
            reuse=self.reuse,
        )

    def command(self) -> str:
        """The command line that runs this world again."""
        words = ["calculet-trio", "simulate", "--seed", str(self.seed), "--seconds", repr(self.seconds)]
        words += ["--faults", self.faults]
        if self.varied:
            words.append("--varied")
        for name in self.without:
            words += ["--without", name]
        if self.visits_max is not None:
            words += ["--visits", str(self.visits_max)]
        if not self.varied:
            words += self._board_words()
        return shlex.join(words)

    def _board_words(self) -> list[str]:
        words: list[str] = []
        if self.trace is not None:
            words += ["--trace", str(self.trace), "--stretch", repr(self.stretch)]
        else:
            words += ["--load", repr(self.load), "--tenants", str(self.tenants)]
        if self.profiles is not None:
            words += ["--profiles", ",".join(map(str, self.profiles))]
        if self.chunked:
            words.append("--chunked")
        if self.reuse:
            words.append("--reuse")
        if self.device is not None:
            words += ["--device", str(self.device)]
        return words

    def _device(self) -> DeviceModel:
        device = load_device(REFERENCE if self.device is None else self.device)
        return device if self.profiles is None else with_profiles(device, self.profiles)

    def _population(self, device: DeviceModel) -> Population:
        if self.trace is not None:
            return Recorded(path=self.trace, stretch=self.stretch)
        tenants = tuple(f"tenant-{number}" for number in range(1, self.tenants + 1))
        nominal = Poisson(per_s=1.0, tenants=tenants)
        chatty = 0.5 if self.reuse else 0.0
        return attrs.evolve(nominal, per_s=self.load * arrivals_per_s(device, nominal), chatty=chatty)


def rates_of(faults: str) -> Mapping[FaultKind, float]:
    """Rates per call of a mixture, or of kinds with commas between them: each at its harsh rate.

    Raises:
        calculet_trio.errors.ConfigurationRefused: there is no such mixture or kind.
    """
    if faults in MIXTURES:
        return MIXTURES[faults]
    known = {fault.value: fault for fault in FaultKind}
    names = faults.split(",")
    if strangers := [name for name in names if name not in known]:
        raise ConfigurationRefused(
            f"faults: {strangers[0]!r} is neither a mixture ({', '.join(MIXTURES)}) nor a kind",
            hint=f"kinds are {', '.join(known)}",
        )
    return {known[name]: HARSH.get(known[name], _RARE) for name in names}


def with_profiles(device: DeviceModel, profiles: tuple[int, ...]) -> DeviceModel:
    """The board with these compiled batches.

    One that the device file does not have is assumed to take as long a step as the file's largest: a step reads
    the same weights. Nobody measured that, and the report says so.

    Raises:
        calculet_trio.errors.ConfigurationRefused: a batch that no board has.
    """
    if not profiles or min(profiles) < 1 or max(profiles) > 64:
        raise ConfigurationRefused(f"profiles: {profiles} must be batches from 1 to 64, at least one")
    known = dict(device.decode)
    largest = known[max(known)]
    added = tuple(f"decode.{batch}" for batch in profiles if batch not in known)
    lanes = max(device.lanes, *profiles)
    if lanes > device.lanes:
        added = (*added, "lanes")
    return attrs.evolve(
        device,
        decode={batch: known.get(batch, largest) for batch in profiles},
        lanes=lanes,
        assumed=tuple(dict.fromkeys((*device.assumed, *added))),
    )
