"""Import: only what is whole, signed by somebody trusted, and named is copied; the source is not believed."""

from __future__ import annotations

import os
from pathlib import Path

import attrs
import pytest

from calculet_trio.errors import PackageError, Unavailable
from calculet_trio.packages import store_import
from calculet_trio.packages.manifest import MANIFEST_FILE, SIGNATURE_FILE, Manifest
from calculet_trio.packages.package_signature import sign_package
from calculet_trio.packages.signing import SignatureRefused, SigningKey
from calculet_trio.packages.store import Store
from calculet_trio.packages.store_import import take_in
from calculet_trio.packages.trust import Trust
from tests.packages.tiny_package import write_package


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def key(tmp_path: Path) -> SigningKey:
    return SigningKey.local(tmp_path / "keys")


@pytest.fixture
def trust(key: SigningKey) -> Trust:
    return Trust(local=key.public)


@pytest.fixture
def source(tmp_path: Path, key: SigningKey) -> Path:
    write_package(tmp_path / "source")
    sign_package(tmp_path / "source", key)
    return tmp_path / "source"


def test_a_package_comes_in_as_it_is(store: Store, source: Path, trust: Trust) -> None:
    manifest = Manifest.load(source)
    copied: list[int] = []
    directory = take_in(store, source, trust, on_bytes=copied.append)
    assert store.resolve("tiny") == directory
    for name in (*manifest.files, MANIFEST_FILE, SIGNATURE_FILE):
        assert (directory / name).read_bytes() == (source / name).read_bytes()
        assert (directory / name).stat().st_ino != (source / name).stat().st_ino
    assert sum(copied) == 2 * sum(record.size_bytes for record in manifest.files.values())
    hashed: list[str] = []
    store.check(directory, thorough=False, on_file=lambda name, _size_bytes: hashed.append(name))
    assert hashed == []


def test_a_newer_one_needs_leave_and_an_older_one_gets_none(
    store: Store, source: Path, trust: Trust, key: SigningKey, tmp_path: Path
) -> None:
    take_in(store, source, trust)
    for version in ("2.0", "0.5"):
        write_package(tmp_path / version, version=version)
        sign_package(tmp_path / version, key)
    with pytest.raises(PackageError, match="already has a package"):
        take_in(store, tmp_path / "2.0", trust)
    newer = take_in(store, tmp_path / "2.0", trust, replace=True)
    with pytest.raises(PackageError, match=r"is version 0\.5, and 2\.0 was here"):
        take_in(store, tmp_path / "0.5", trust, replace=True)
    assert store.resolve("tiny") == newer


def test_what_is_refused_leaves_no_trace(store: Store, source: Path, trust: Trust) -> None:
    path = source / "model.onnx"
    path.write_bytes(bytes(reversed(path.read_bytes())))
    with pytest.raises(PackageError, match=r"model\.onnx: its sha256 is"):
        take_in(store, source, trust)
    assert store.names() == ()
    assert store.contents() == ()
    assert not (store.root / ".staging").exists()


def test_nobody_s_package_is_not_even_copied(store: Store, source: Path) -> None:
    with pytest.raises(SignatureRefused, match="not trusted"):
        take_in(store, source, Trust())
    assert not store.root.exists()


def test_no_link_is_followed(store: Store, source: Path, trust: Trust, tmp_path: Path) -> None:
    (source / "golden.json").rename(tmp_path / "golden.json")
    (source / "golden.json").symlink_to(tmp_path / "golden.json")
    with pytest.raises(PackageError, match=r"golden\.json cannot be copied: it is a link"):
        take_in(store, source, trust)


def test_a_pipe_is_not_waited_for(store: Store, source: Path, trust: Trust) -> None:
    (source / "golden.json").unlink()
    os.mkfifo(source / "golden.json")
    with pytest.raises(PackageError, match=r"golden\.json is not a regular file"):
        take_in(store, source, trust)


def test_a_file_that_grows_is_not_copied_past_its_size(store: Store, source: Path, trust: Trust) -> None:
    with (source / "model.onnx").open("ab") as file:
        file.truncate(1 << 40)
    with pytest.raises(PackageError, match=r"model\.onnx has more than \d+ bytes, which is what its manifest says"):
        take_in(store, source, trust)


def test_what_is_not_named_is_refused(store: Store, source: Path, trust: Trust) -> None:
    (source / "run_me.py").write_text("import os")
    with pytest.raises(PackageError, match=r"run_me\.py is not named"):
        take_in(store, source, trust)


def test_a_full_disk_is_said_before_copying(
    store: Store, source: Path, trust: Trust, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = store_import.shutil.disk_usage(source)
    monkeypatch.setattr(store_import.shutil, "disk_usage", lambda _path: usage._replace(free=1 << 20))
    with pytest.raises(Unavailable, match="has 1 MiB free; the package takes 64 MiB"):
        take_in(store, source, trust)


def test_a_board_s_package_needs_a_named_key(store: Store, source: Path, trust: Trust, key: SigningKey) -> None:
    attrs.evolve(Manifest.load(source), target="calculet").save(source)
    sign_package(source, key)
    with pytest.raises(SignatureRefused, match="not trusted"):
        take_in(store, source, trust)
