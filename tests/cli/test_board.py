"""The commands about a board: binding, calbins, their packages, conformance; on the emulator library."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from calculet_trio.cli import board
from calculet_trio.cli.main import run
from calculet_trio.conformance.result import Verdict
from calculet_trio.packages.calbin_writer import EmulatedShape, write_calbin
from calculet_trio.packages.manifest import Manifest
from tests.conformance.stores import store_in
from tests.emulator import emulator_library
from tests.packages.tiny_tokenizer import write_tokenizer

SHAPE = EmulatedShape(batches=(1, 4), max_seq_len=64, vocab_size=300, kv_bytes_per_token=64, name="q")
OVERRIDES = ["prefill_typed_decode", "workload_zero", "target_chips_empty"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for kind in ("STATE", "DATA", "CONFIG", "CACHE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind))
    return tmp_path


def answer(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> str:
    found = run([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    assert found == code, captured.err
    return captured.err if code else captured.out


# ---- calbins ------------------------------------------------------------------------------------------


def test_show_names_every_known_defect_of_a_calbin(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, _ = write_calbin(SHAPE.calbin(), home)
    shown = answer(capsys, "package", "show", first)
    for words in ("calbin version    0.1", "largest batch     4", "longest sequence  64 tokens", "2 (MCHIP)"):
        assert words in shown
    assert "submodel prefill: typed llm_decode, batch 1, workload 0, no target chips" in shown
    for defect in OVERRIDES:
        assert f"known defect {defect}: " in shown
    found = json.loads(answer(capsys, "package", "show", first, "--json"))
    assert [each["defect"] for each in found["defects"]] == OVERRIDES


def test_show_refuses_what_is_no_calbin(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "cannot be read" in answer(capsys, "package", "show", home / "none.calbin", code=78)


def test_a_package_of_shards_and_a_tokenizer(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shards = write_calbin(SHAPE.calbin(), home)
    tokenizer = write_tokenizer(home / "tokenizer")
    command = ["package", "build", "-o", home / "p", "--calbin", *shards, "--tokenizer", tokenizer]
    refused = answer(capsys, *command, code=78)
    assert "known defect prefill_typed_decode" in refused
    assert "say it in --roles FILE" in refused
    roles = home / "roles.yaml"
    decode = [{"submodel": "decode"}, {"submodel": "decode_b4", "lane_mask": "lane_valid"}]
    plan = {"schema": "calculet-roles/v1", "prefill": {"submodel": "prefill"}, "decode": decode}
    roles.write_text(yaml.safe_dump({**plan, "overrides": OVERRIDES}))
    answer(capsys, *command, "--roles", roles)
    manifest = Manifest.load(home / "p")
    assert (manifest.target, manifest.architecture.family) == ("calrt-emulator", "qwen3moe")
    assert manifest.golden is not None
    answer(capsys, "package", "build", "-o", home / "again", *command[4:], "--roles", roles, "--golden", home / "p")
    assert (home / "again" / "golden.json").read_bytes() == (home / "p" / "golden.json").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--calbin", "{shard}"], "--calbin needs --tokenizer DIR"),
        (["--emulated-calbin", "--calbin", "{shard}"], "--emulated-calbin takes no SOURCE"),
        ([], "name one SOURCE, or --calbin with its shards, or --emulated-calbin"),
    ],
)
def test_options_that_do_not_go_together(
    home: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shard = write_calbin(SHAPE.calbin(), home)[0]
    given = [each.format(shard=shard) for each in arguments]
    assert words in answer(capsys, "package", "build", "-o", home / "p", *given, code=2)


def test_an_emulated_board_file_gives_shape_and_times(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from calculet_trio.runtimes.device_model import REFERENCE

    shape = board.shape_of_device(REFERENCE)
    assert (shape.lanes, shape.max_seq_len, shape.vocab_size) == (4, 40_960, 151_936)
    assert (shape.prefill.unit_ns, shape.decode[1].base_ns) == (5_427_000, 17_167_000)
    answer(capsys, "package", "build", "-o", home / "p", "--emulated-calbin", "--device", REFERENCE)
    assert Manifest.load(home / "p").architecture.vocab_size == 151_936


# ---- the binding ----------------------------------------------------------------------------------------


def test_binding_build_needs_to_know_for_what(capsys: pytest.CaptureFixture[str]) -> None:
    assert "name one of --calrt DIR and --emulator" in answer(capsys, "binding", "build", code=2)


def test_without_sources_binding_build_says_where_to_get_them(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused = answer(capsys, "binding", "build", "--emulator", "--source", home, code=78)
    assert "has no CMakeLists.txt" in refused
    assert "take a checkout" in refused


def test_a_compiler_that_fails_is_heard(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    emulator_library()  # or the tools are not there
    (home / "CMakeLists.txt").write_text('message(FATAL_ERROR "no such thing")\n')
    assert "no such thing" in answer(capsys, "binding", "build", "--emulator", "--source", home, code=69)


def test_without_a_library_everything_says_where_it_looked(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from calculet_trio.runtimes import calrt_library

    monkeypatch.setattr(calrt_library, "STANDARD", ())
    monkeypatch.delenv("CALCULET_CALRT_LIBRARY", raising=False)
    answer(capsys, "package", "build", "-o", home / "p", "--emulated-calbin", "--lanes", "4", "--max-seq", "64")
    for command in (["binding", "show"], ["conformance", "run", "--runtime", "calrt"]):
        said = answer(capsys, *command, code=69)
        assert f"{home}/CACHE/calculet-trio/binding/emulator/lib/libcalculet_calrt.so" in said
        assert "binding build --calrt DIR" in said
    assert "binding/calrt/lib" in answer(capsys, "serve", "--runtime", "calrt", "--model", home / "p", code=69)


# ---- conformance ----------------------------------------------------------------------------------------


def test_conformance_makes_its_own_small_package_and_its_evidence_is_the_emulators(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CALCULET_CALRT_LIBRARY", str(emulator_library()))
    said = answer(capsys, "conformance", "run", "--runtime", "calrt", "--short", "--html", home / "page.html")
    assert "PASS (emulated)" in said
    [record] = (
        store_in(home / "STATE" / "calculet-trio" / "evidence", keys=home / "CONFIG" / "calculet-trio" / "keys")
        .found()
        .records
    )
    assert record.combination.board_kind == "calrt-emulator"
    assert "calrt 0.7.6" in record.combination.runtime_version
    passed = record.cases(Verdict.PASS)
    assert {"timeout", "ccu_fault", "pcie_error", "device_busy", "ping_pong_two_jobs"} <= passed
    assert {"golden", "lanes_1_to_b", "inactive_lane_writes_no_kv", "remove_tail_boundaries"} <= passed
    assert "emulated" in (home / "page.html").read_text()
