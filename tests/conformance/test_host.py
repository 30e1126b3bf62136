"""The suite on the CPU runtime, with a tiny real model: every case that applies passes, chunked prefill's five too."""

from __future__ import annotations

from pathlib import Path

import pytest

from calculet_trio.conformance.agreement import Agreement
from calculet_trio.conformance.fault_control import PlannedFaults
from calculet_trio.conformance.result import Verdict
from calculet_trio.conformance.rig import Rig
from calculet_trio.conformance.suite import CASES
from calculet_trio.core.fault_kinds import FaultKind
from calculet_trio.ids import GenerationId
from calculet_trio.packages.build import build_package
from calculet_trio.packages.build_options import BuildOptions
from calculet_trio.packages.manifest import Manifest
from calculet_trio.packages.manifest_parts import WeightForm
from tests.conformance.test_suite import tried
from tests.models import TinyModel

GENERATION = GenerationId(1)
NO_FAULTS_OF_A_BOARD = {"ccu_fault", "pcie_error"}


@pytest.fixture(params=[WeightForm.FP32, WeightForm.Q8Z], ids=lambda form: form.value)
def package(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    pytest.importorskip("onnxruntime", reason="needs the host extra")
    from calculet_trio.runtimes.host_golden import record_golden

    gguf = TinyModel().write(tmp_path / "model.gguf")
    options = BuildOptions(weight_form=request.param, batches=(1, 4), lanes=4, max_seq=160)
    build_package(
        gguf, tmp_path / "package", name="tiny", options=options, report=lambda _step: None, prove=record_golden
    )
    return tmp_path / "package"


def test_every_case_that_applies_passes(package: Path) -> None:
    from calculet_trio.runtimes.host import HostRuntime

    golden = Manifest.load(package).golden
    assert golden is not None
    runtime = HostRuntime()
    device = runtime.open()
    runtime.configure(GENERATION, package)
    rig = Rig(
        runtime,
        GENERATION,
        package=package,
        engines=device.engines,
        faults=PlannedFaults(frozenset({FaultKind.TIMEOUT})),
        agreement=Agreement(golden.logit_tolerance, golden.decisive_gap),
        chunk_tokens=256,  # no prompt is longer: speed, which a test must not judge, plays no part
    )
    results = tried(rig)
    runtime.close()
    missing = {result.case: result.why for result in results if result.verdict is Verdict.NOT_APPLICABLE}
    assert missing.keys() == NO_FAULTS_OF_A_BOARD | {"reply_reuse"}
    assert "decode computes otherwise than prefill" in missing["reply_reuse"]
    assert [(result.case, result.why) for result in results if result.verdict is Verdict.FAIL] == []
    assert len(results) == len(CASES)
