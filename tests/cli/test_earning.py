"""Earning at the build: with a real tiny package, on the real CPU runtime."""

from __future__ import annotations

from pathlib import Path

import pytest

from calculet_trio.cli import paths
from calculet_trio.cli.main import run
from calculet_trio.cli.trusted_store import evidence_store, own_configuration, recorded
from calculet_trio.conformance.result import Verdict
from calculet_trio.conformance.run_record import RunRecord
from calculet_trio.core.evidence import BATCH_CONDITIONS, batch_capability
from calculet_trio.packages.manifest import MANIFEST_FILE
from tests.models import TinyModel


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("onnxruntime", reason="needs the host extra")
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in ("XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    TinyModel().write(tmp_path / "model.gguf")
    return tmp_path


def build(home: Path, *options: str) -> Path:
    output = home / "package"
    small = ("--weights", "fp32", "--lanes", "4", "--max-seq", "64")
    assert run(["package", "build", str(home / "model.gguf"), "-o", str(output), *small, *options]) == 0
    return output


def records() -> tuple[RunRecord, ...]:
    return evidence_store(own_configuration()).found().records


def test_what_was_built_has_earned_its_batches_before_its_first_start(
    home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    package = build(home)
    assert "build: what it may do here …" in capfd.readouterr().err
    [record] = records()
    assert record.cases(Verdict.PASS) == set(BATCH_CONDITIONS)
    from calculet_trio.runtimes.host import HostRuntime

    runtime = HostRuntime()
    device = runtime.open()
    runtime.close()
    evidence = recorded(own_configuration(), package / MANIFEST_FILE, device)
    assert evidence.standing(batch_capability(4)).earned


def test_a_build_may_leave_it_to_the_first_start(home: Path) -> None:
    build(home, "--no-earn")
    assert records() == ()


def test_a_build_whose_record_cannot_be_kept_is_whole_all_the_same(
    home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    state = paths.state()
    state.parent.mkdir(parents=True, exist_ok=True)
    state.write_text("in the way")
    assert (build(home) / MANIFEST_FILE).exists()
    assert "its first start will show it: " in capfd.readouterr().err
