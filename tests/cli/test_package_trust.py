"""``calculet-trio package sign|verify|import|gc``: who is believed, what comes in, and what goes."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from calculet_trio.cli import paths
from calculet_trio.packages.manifest import Manifest
from calculet_trio.packages.package_signature import sign_package
from calculet_trio.packages.signing import SigningKey
from calculet_trio.packages.store import Store
from tests.cli.test_package import answer, install
from tests.packages.tiny_package import write_package


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for variable in ("XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    before = signal.getsignal(signal.SIGTERM)
    yield tmp_path
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def store(home: Path) -> Store:
    assert paths.package_store().is_relative_to(home)
    return Store(paths.package_store())


# ---- signing --------------------------------------------------------------------------------------------


def test_an_unsigned_package_is_refused_until_it_is_signed(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    (install(store, "one") / "model.sig").unlink()
    assert "one: the package 'one' is not signed" in answer(capsys, "verify", code=1)
    assert "nobody who is trusted: the package 'one' is not signed" in answer(capsys, "show", "one")
    assert "one is signed by the key" in answer(capsys, "sign", "one")
    assert "whole, signed by this machine's key" in answer(capsys, "verify")
    assert "signed by       this machine's key" in answer(capsys, "show", "one")


def test_what_is_damaged_or_contradicts_itself_is_not_signed(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    directory = install(store, "one")
    (directory / "model.sig").unlink()
    manifest = Manifest.load(directory)
    attrs.evolve(manifest, kv=attrs.evolve(manifest.kv, bytes_per_token=1)).save(directory)
    assert "kv.bytes_per_token is 1" in answer(capsys, "sign", "one", code=78)
    manifest.save(directory)
    path = directory / "model.onnx"
    path.write_bytes(bytes(reversed(path.read_bytes())))
    assert "model.onnx: its sha256 is" in answer(capsys, "sign", "one", code=78)
    assert not (directory / "model.sig").exists()


def test_a_signature_that_is_trusted_is_not_replaced_unasked(
    store: Store, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(store, "one")
    SigningKey.local(home / "vendor")
    key = home / "vendor" / "local.pem"
    assert "signed already, by this machine's key" in answer(capsys, "sign", "one", "--key", str(key), code=78)
    answer(capsys, "sign", "one", "--key", str(key), "--force")
    assert "which is not trusted for it" in answer(capsys, "verify", code=1)
    paths.configuration().write_text(
        "schema: calculet-service/v1\ntrusted_keys: [../../vendor/local.pub.pem]\n", encoding="utf-8"
    )
    assert "whole, signed by a trusted key" in answer(capsys, "verify")
    (home / "vendor" / "local.pub.pem").unlink()
    assert "local.pub.pem cannot be read" in answer(capsys, "verify", code=78)


def test_the_configured_store_is_the_one(store: Store, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install(Store(home / "other"), "one")
    paths.configuration().write_text("schema: calculet-service/v1\nstore: ../../other\n", encoding="utf-8")
    assert store.names() == ()
    assert "one: whole" in answer(capsys, "verify")


# ---- bringing in, and removing ----------------------------------------------------------------------------


def test_import_and_gc(store: Store, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = SigningKey.local(paths.keys())
    for version in ("1.0", "1.1"):
        write_package(home / version, "one", version=version)
        sign_package(home / version, key)
    assert "one is ready" in answer(capsys, "import", str(home / "1.0"))
    assert "--force" in answer(capsys, "import", str(home / "1.1"), code=78)
    answer(capsys, "import", str(home / "1.1"), "--force")
    assert "1.1 was here" in answer(capsys, "import", str(home / "1.0"), "--force", code=78)
    assert Manifest.load(store.resolve("one")).package_version == "1.1"
    assert "would go one" in answer(capsys, "gc", "--dry-run")
    shown = json.loads(answer(capsys, "gc", "--json"))
    assert [each["reason"] for each in shown["kept"]] == ["live"]
    assert [each["name"] for each in shown["removed"]] == ["one"]
    assert shown["freed_bytes"] > 0
    assert answer(capsys, "gc").endswith("0 MB freed\n")


def test_an_unsigned_package_is_not_imported(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_package(home / "one")
    shown = answer(capsys, "import", str(home / "one"), code=78)
    assert "the package 'tiny' is not signed" in shown
    assert "package sign" in shown
