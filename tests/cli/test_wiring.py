"""Wiring: the emulated board as it is served, and where evidence comes from."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from calculet_trio.cli.runtime_choice import by_script
from calculet_trio.cli.trusted_store import evidence_store
from calculet_trio.cli.wiring import wire
from calculet_trio.cli.wiring_conformance import wire_subject
from calculet_trio.conformance.agreement import EXACT
from calculet_trio.conformance.result import Result, Verdict
from calculet_trio.conformance.run_record import RunRecord, combination_of
from calculet_trio.core.evidence import CHUNKED_PREFILL_CONDITIONS
from calculet_trio.core.policy import Policy, ReusePolicy
from calculet_trio.errors import ConfigurationRefused
from calculet_trio.packages.digests import sha256_of
from calculet_trio.runtimes.device_model import REFERENCE
from calculet_trio.settings.configuration import Configuration, Override, load
from calculet_trio.settings.service import SCHEMA


@pytest.fixture(autouse=True)
def _own_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("STATE", "DATA", "CONFIG"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind))


def configured(**device: str) -> Configuration:
    overrides = [Override(SCHEMA, ("device", key), value, f"--{key}") for key, value in device.items()]
    return load(None, overrides)


def device_file(directory: Path, **numbers: object) -> Path:
    """The reference board's file with other numbers."""
    lines = REFERENCE.read_text("utf-8").splitlines()
    changed = [
        next((f"{key}: {numbers[key]}" for key in numbers if line.startswith(f"{key}:")), line) for line in lines
    ]
    path = directory / "board.yaml"
    path.write_text("\n".join(changed), encoding="utf-8")
    return path


def test_the_emulated_board_is_served_with_a_token_for_every_id(tmp_path: Path) -> None:
    daemon = wire(configured(runtime="emulated"), on_ready=lambda _port: None)
    assert daemon.source.alias == "emulated"
    assert "lanes" in daemon.source.meta["assumed"], "what nobody measured is shown to everybody"
    text = daemon.source.open_text()
    assert text.tokenizer.vocab_size == 151_936
    assert text.tokenizer.decode([104, 105, 151_935]) == "hi[151935]"
    assert text.template is not None
    text.template.close()
    assert daemon.runtime.open().kind == "emulated"


@pytest.mark.parametrize(("vocab_size", "is_enough"), [(258, False), (259, True)])
def test_a_vocabulary_must_hold_the_bytes_and_what_ends_a_reply(
    tmp_path: Path, vocab_size: int, is_enough: bool
) -> None:
    path = device_file(tmp_path, vocab_size=vocab_size)
    configuration = configured(runtime="emulated", emulated_board=str(path))
    if is_enough:
        assert wire_subject(configuration).agreement is EXACT
        return
    with pytest.raises(ConfigurationRefused, match=f"vocab_size is {vocab_size}; allowed: 259"):
        wire(configuration, on_ready=lambda _port: None)


def test_evidence_on_record_is_found_for_the_very_board_it_is_about(tmp_path: Path) -> None:
    configuration = configured(runtime="emulated")
    source = wire(configuration, on_ready=lambda _port: None).source
    device = wire_subject(configuration).runtime.open()
    assert not source.evidence(device).allows("incremental_prefill")
    results = tuple(Result(name, Verdict.PASS, "seen", 0.1) for name in CHUNKED_PREFILL_CONDITIONS)
    begun = RunRecord.begin(combination_of(sha256_of(REFERENCE), device), device, model="emulated", short=False)
    evidence_store(configuration).keep(attrs.evolve(begun, results=results))
    assert source.evidence(device).allows("incremental_prefill")
    other = configured(runtime="emulated", emulated_board=str(device_file(tmp_path, lanes=3)))
    assert not wire(other, on_ready=lambda _port: None).source.evidence(device).allows("incremental_prefill")


def test_a_damaged_record_is_no_reason_not_to_serve(tmp_path: Path) -> None:
    configuration = configured(runtime="emulated")
    store = evidence_store(configuration)
    store.root.mkdir(parents=True)
    (store.root / "emulated.json").write_text("{")
    device = wire_subject(configuration).runtime.open()
    assert not wire(configuration, on_ready=lambda _port: None).source.evidence(device).allows("incremental_prefill")


def test_the_state_directory_is_the_configured_one(tmp_path: Path) -> None:
    configuration = load(None, [Override(SCHEMA, ("state",), str(tmp_path / "mine"), "--state")])
    assert evidence_store(configuration).root == tmp_path / "mine" / "evidence"


def test_a_script_cannot_be_conformant() -> None:
    with pytest.raises(ConfigurationRefused, match="conformance cannot be tried on the runtime scripted"):
        wire_subject(configured(runtime="scripted"))


def test_a_script_cannot_earn_prefix_reuse(tmp_path: Path) -> None:
    script = tmp_path / "script.yaml"
    script.write_text("schema: calculet-script/v1\nreplies: [{tokens: [x]}]\n")
    configuration = load(None, [Override(SCHEMA, ("device", "runtime"), "scripted", "--runtime")], model=str(script))
    [served] = configuration.served
    asks = Policy(reuse=ReusePolicy(enabled=True))
    with pytest.raises(ConfigurationRefused, match=r"prefix_reuse\.enabled: a scripted model can earn nothing"):
        by_script(configuration, served, asks)
    by_script(configuration, served, Policy())
