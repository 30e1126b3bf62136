"""Wiring of conformance: the runtime and models that would be served, and what may be made to go wrong with them.

Source: SPEC section 13.
"""

from __future__ import annotations

from typing import Final

import attrs

from calculet_trio.cli.packaged_models import other_of_two, packaged
from calculet_trio.cli.proving import agreement_of
from calculet_trio.cli.runtime_choice import on_board, on_emulated_board, on_host
from calculet_trio.conformance.agreement import EXACT, Agreement
from calculet_trio.conformance.fault_control import NOTHING, EmulatorFaults, FaultControl, PlannedFaults
from calculet_trio.core.fault_kinds import FaultKind
from calculet_trio.core.policy import Policy
from calculet_trio.errors import ConfigurationRefused
from calculet_trio.runtimes.faults import FaultyRuntime
from calculet_trio.runtimes.pace import RealPace, VirtualPace
from calculet_trio.runtimes.port import Runtime
from calculet_trio.settings.configuration import Configuration
from calculet_trio.settings.service import RuntimeKind
from calculet_trio.shell.loading import ModelSource

EMULATED_FAULTS: Final = frozenset({FaultKind.TIMEOUT, FaultKind.CCU_FAULT, FaultKind.PCIE_ERROR})
"""A reset undoes all of them, as nobody knows of a board."""


@attrs.frozen(kw_only=True)
class Subject:
    """What conformance is tried on.

    Args:
        runtime: not opened yet.
        source: its model.
        agreement: what may differ where kernels do.
        policy: as configured.
        faults: what may be made to go wrong with it.
    """

    runtime: Runtime
    source: ModelSource
    agreement: Agreement
    policy: Policy
    faults: FaultControl


def wire_second(configuration: Configuration, package: str | None, *, alias: str) -> ModelSource:
    """Another model for the same alias and device, as it would be loaded into the place of the first.

    Args:
        configuration: what would be served.
        package: its name or path; None for the other one of a store of two, or the emulated board's other model.
        alias: of both.

    Raises:
        calculet_trio.errors.PackageError: there is no such package.
        calculet_trio.errors.ConfigurationRefused: it does not fit its policy, or nobody knows which one is meant.
    """
    served = configuration.served[0]
    policy = configuration.policy(served)
    if configuration.service.device.runtime is RuntimeKind.EMULATED:
        from calculet_trio.runtimes.emulated import OTHER_MODEL

        _, source = on_emulated_board(configuration, served, policy, VirtualPace(lambda: 0.0))
        return attrs.evolve(source, alias=alias, package=OTHER_MODEL)
    named = package or other_of_two(configuration, served)
    return packaged(
        configuration, attrs.evolve(served, model=attrs.evolve(served.model, alias=alias, package=named)), policy
    )


def wire_subject(configuration: Configuration, *, in_real_time: bool = False) -> Subject:
    """The runtime and model that `wire` would serve, for conformance.

    Args:
        configuration: what would be served.
        in_real_time: whether an emulated board takes its time; else it lets none pass.

    Raises:
        calculet_trio.errors.PackageError: no such package, or one without golden.
        calculet_trio.errors.ConfigurationRefused: what is asked for and what there is do not fit.
    """
    served = configuration.served[0]
    policy = configuration.policy(served)
    kind = configuration.service.device.runtime
    if kind is RuntimeKind.EMULATED:
        pace = RealPace() if in_real_time else VirtualPace(lambda: 0.0)
        board, source = on_emulated_board(configuration, served, policy, pace)
        planned, agreement = PlannedFaults(EMULATED_FAULTS), EXACT
        faults: FaultControl = planned
        runtime: Runtime = FaultyRuntime(board, planned, pace)
    elif kind is RuntimeKind.HOST:
        runtime, source = on_host(configuration, served, policy)
        agreement = agreement_of(source.package)
        faults = PlannedFaults(frozenset({FaultKind.TIMEOUT}))  # a run that is over its time is stopped, and is over
    elif kind is RuntimeKind.CALRT:
        calrt, source = on_board(configuration, served, policy)
        agreement = agreement_of(source.package)
        runtime = calrt  # of a board nobody knows what a fault leaves
        faults = NOTHING if calrt.emulator is None else EmulatorFaults(calrt.emulator.plan)
    else:
        raise ConfigurationRefused(f"conformance cannot be tried on the runtime {kind.value}; on host, calrt, emulated")
    return Subject(runtime=runtime, source=source, agreement=agreement, policy=policy, faults=faults)
