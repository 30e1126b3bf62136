"""The suite on the emulator of the board's runtime: every case passes, and the faults came from the library itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from calculet_trio.cli.board import TRIAL, make_emulated_package
from calculet_trio.conformance.agreement import EXACT
from calculet_trio.conformance.fault_control import NOTHING, EmulatorFaults, FaultControl
from calculet_trio.conformance.result import Verdict
from calculet_trio.conformance.rig import Rig
from calculet_trio.conformance.suite import CASES
from calculet_trio.core.fault_kinds import FaultKind
from calculet_trio.ids import GenerationId
from calculet_trio.runtimes.calrt import BoardOptions, CalrtRuntime
from calculet_trio.runtimes.calrt_library import load
from tests.conformance.test_suite import BY_NAME, tried
from tests.emulator import emulator_library

GENERATION = GenerationId(1)
PROVOKED = ("timeout", "ccu_fault", "pcie_error")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    package = tmp_path_factory.mktemp("trial") / "package"
    make_emulated_package(TRIAL, package, name="trial", report=lambda _progress: None)
    return package


@pytest.fixture
def runtime(tmp_path: Path, package: Path) -> Iterator[CalrtRuntime]:
    runtime = CalrtRuntime(load(emulator_library(), ()), BoardOptions(lock=tmp_path / "board.lock"))
    runtime.open()
    runtime.configure(GENERATION, package)
    yield runtime
    assert runtime.emulator is not None
    runtime.emulator.clear()
    runtime.close()


def rig_of(runtime: CalrtRuntime, package: Path, faults: FaultControl) -> Rig:
    engines = tuple(runtime._configured(GENERATION).engines)
    return Rig(runtime, GENERATION, package=package, engines=engines, agreement=EXACT, chunk_tokens=256, faults=faults)


def test_every_case_passes_but_those_of_what_nobody_claims(runtime: CalrtRuntime, package: Path) -> None:
    emulator = runtime.emulator
    assert emulator is not None
    before = {fault: emulator.happened(fault) for fault in PROVOKED}
    results = tried(rig_of(runtime, package, EmulatorFaults(emulator.plan)))
    others = {result.case: result.verdict for result in results if result.verdict is not Verdict.PASS}
    unclaimed = ("incremental_prefill_supported", "prefix_reuse", "reply_reuse")
    assert others == dict.fromkeys(unclaimed, Verdict.NOT_APPLICABLE)
    assert len(results) == len(CASES)
    assert {fault: emulator.happened(fault) - before[fault] for fault in PROVOKED} == dict.fromkeys(PROVOKED, 2)


@pytest.mark.parametrize("case", PROVOKED)
def test_where_nothing_may_be_provoked_nothing_is(runtime: CalrtRuntime, package: Path, case: str) -> None:
    emulator = runtime.emulator
    assert emulator is not None
    before = emulator.happened(case)
    result, _ = BY_NAME[case].tried(rig_of(runtime, package, NOTHING))
    assert result.verdict is Verdict.NOT_APPLICABLE
    assert emulator.happened(case) == before


def test_a_fault_that_does_not_come_about_fails_its_case(runtime: CalrtRuntime, package: Path) -> None:
    result, _ = BY_NAME["ccu_fault"].tried(rig_of(runtime, package, EmulatorFaults(lambda _fault: None)))
    assert result.verdict is Verdict.FAIL
    assert "as if nothing had been" in result.why


def test_the_drivers_own_timeout_leaves_a_transfer_unknown() -> None:
    planned: list[str] = []
    provoked = EmulatorFaults(planned.append).provoke(FaultKind.TIMEOUT)
    assert (planned, provoked.reason.value) == (["timeout"], "unknown_dma")
