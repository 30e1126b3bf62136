"""Checks of the groups Packages and Configuration, on a store and directories made for them."""

from __future__ import annotations

import os
from pathlib import Path

import attrs
import pytest

from calculet_trio.core.evidence import BATCH_CONDITIONS, Combination, Evidence, EvidenceRecord
from calculet_trio.doctor.finding import Mark
from calculet_trio.doctor.host_tree import HostTree
from calculet_trio.doctor.packages import digests
from calculet_trio.doctor.surroundings import Shown, Surroundings, free_bytes_at, nearest_existing
from calculet_trio.errors import ConfigurationRefused
from calculet_trio.packages import verification
from calculet_trio.packages.manifest import Manifest
from calculet_trio.packages.package_signature import sign_package
from calculet_trio.packages.signing import SigningKey
from calculet_trio.packages.trust import Trust
from tests.doctor.recorded import assert_found, found_by, surroundings
from tests.packages.tiny_package import write_package


@pytest.fixture
def around(tmp_path: Path) -> Surroundings:
    return surroundings(HostTree(tmp_path), tmp_path)


def put(around: Surroundings, name: str) -> Path:
    """A whole package in the store."""
    directory = around.store.root / name
    write_package(directory, name)
    return directory


def spoil(directory: Path) -> Path:
    """Change a byte of one of its files, and not its size."""
    file = next(path for path in sorted(directory.rglob("*")) if path.is_file() and path.name != "manifest.json")
    content = bytearray(file.read_bytes())
    content[0] ^= 1
    file.write_bytes(bytes(content))
    return file


# ---- store ----------------------------------------------------------------------------------------------


def test_packages_are_named(around: Surroundings) -> None:
    put(around, "one")
    put(around, "two")
    assert_found("store", around, Mark.OK, "2 packages: one, two")


def test_an_empty_store_is_a_warning_that_says_how_to_fill_it(around: Surroundings) -> None:
    assert_found("store", around, Mark.WARNING, "empty")
    assert "package pull" in (found_by("store", around).todo or "")


def test_a_manifest_that_cannot_be_read_is_a_failure(around: Surroundings) -> None:
    put(around, "one")
    (put(around, "two") / "manifest.json").write_text("{")
    assert_found("store", around, Mark.FAILURE, "two")


def test_a_package_without_golden_is_a_failure(around: Surroundings) -> None:
    directory = around.store.root / "one"
    attrs.evolve(write_package(directory, "one"), golden=None).save(directory)
    assert_found("store", around, Mark.FAILURE, "one", "golden")


def test_a_store_that_is_no_directory_is_a_failure(around: Surroundings) -> None:
    around.store.root.write_text("a file")
    assert_found("store", around, Mark.FAILURE, str(around.store.root))


# ---- signatures -----------------------------------------------------------------------------------------


@pytest.fixture
def key(tmp_path: Path) -> SigningKey:
    return SigningKey.local(tmp_path / "keys")


@pytest.fixture
def trusting(around: Surroundings, key: SigningKey) -> Surroundings:
    return attrs.evolve(around, trust=lambda: Trust(local=key.public))


def test_packages_that_are_signed_are_well_and_an_empty_store_too(trusting: Surroundings, key: SigningKey) -> None:
    assert_found("signatures", trusting, Mark.OK, "no package")
    sign_package(put(trusting, "one"), key)
    assert_found("signatures", trusting, Mark.OK, "1 package signed by somebody trusted")


def test_unsigned_and_foreign_packages_are_a_failure(
    trusting: Surroundings, around: Surroundings, key: SigningKey
) -> None:
    directory = put(trusting, "one")
    assert_found("signatures", trusting, Mark.FAILURE, "'one' is not signed")
    sign_package(directory, key)
    assert_found("signatures", around, Mark.FAILURE, "'one'", "which is not trusted for it")


def test_a_package_that_contradicts_itself_is_a_failure(trusting: Surroundings, key: SigningKey) -> None:
    directory = put(trusting, "one")
    manifest = Manifest.load(directory)
    attrs.evolve(manifest, kv=attrs.evolve(manifest.kv, bytes_per_token=1)).save(directory)
    sign_package(directory, key)
    assert_found("signatures", trusting, Mark.FAILURE, "kv.bytes_per_token is 1")


def test_a_key_that_cannot_be_read_is_a_failure(around: Surroundings, tmp_path: Path) -> None:
    broken = attrs.evolve(around, trust=lambda: Trust.load(tmp_path, [tmp_path / "gone.pem"]))
    assert_found("signatures", broken, Mark.FAILURE, "gone.pem cannot be read")


# ---- digests --------------------------------------------------------------------------------------------


def test_whole_packages_are_well_and_an_empty_store_too(around: Surroundings) -> None:
    assert_found("digests", around, Mark.OK, "no package")
    put(around, "one")
    assert_found("digests", around, Mark.OK, "1 package")


def test_a_changed_byte_is_found(around: Surroundings) -> None:
    directory = put(around, "one")
    assert_found("digests", around, Mark.OK)
    file = spoil(directory)
    assert_found("digests", around, Mark.FAILURE, "one", file.name, "sha256")


def test_damage_of_a_later_package_is_found_too(around: Surroundings) -> None:
    put(around, "one")
    spoil(put(around, "two"))
    assert_found("digests", around, Mark.FAILURE, "'two'")


def test_what_was_hashed_is_not_hashed_again(around: Surroundings, monkeypatch: pytest.MonkeyPatch) -> None:
    put(around, "one")
    assert_found("digests", around, Mark.OK)
    hashed: list[Path] = []
    monkeypatch.setattr(verification, "sha256_of", lambda path, *_more: hashed.append(path))
    assert_found("digests", around, Mark.OK)
    assert hashed == []


def test_too_much_to_hash_is_a_warning_that_names_the_command(
    around: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(around, "one")
    monkeypatch.setattr(digests, "HASHING_S", -1.0)
    assert_found("digests", around, Mark.WARNING, "one")
    assert "package verify one" in (found_by("digests", around).todo or "")
    around.store.check(around.store.root / "one", thorough=True)  # what that command does
    assert_found("digests", around, Mark.OK)


# ---- disk -----------------------------------------------------------------------------------------------


def with_room(around: Surroundings, free_bytes: int) -> Surroundings:
    return attrs.evolve(around, free_bytes=lambda _path: free_bytes)


def test_room_is_told(around: Surroundings) -> None:
    assert_found("disk", with_room(around, 123_000_000_000), Mark.OK, "123 GB free")


def test_a_full_disk_is_a_failure(around: Surroundings) -> None:
    assert_found("disk", with_room(around, 2**20 - 1), Mark.FAILURE, "nothing can be written")
    assert_found("disk", with_room(around, 2**20), Mark.OK)


def test_no_room_for_another_version_is_a_warning(around: Surroundings) -> None:
    directory = around.store.root / "large"
    manifest = write_package(directory, "large")
    files = {name: attrs.evolve(record, size_bytes=2**30) for name, record in manifest.files.items()}
    attrs.evolve(manifest, files=files).save(directory)
    assert_found("disk", with_room(around, 2**30), Mark.WARNING, "large")
    assert_found("disk", with_room(around, len(files) * 2**30), Mark.OK)


def test_room_is_looked_for_where_a_directory_will_be_made(tmp_path: Path) -> None:
    assert nearest_existing(tmp_path / "a" / "b") == tmp_path
    assert free_bytes_at(tmp_path / "a" / "b") > 0


# ---- settings -------------------------------------------------------------------------------------------


def test_no_configuration_is_well(around: Surroundings) -> None:
    assert_found("settings", around, Mark.OK, "defaults")


@pytest.mark.parametrize(
    ("text", "mark", "seen"),
    [
        ("schema: calculet-service/v1\nlisten: {port: 8081}\n", Mark.OK, "service.yaml"),
        ("schema: calculet-service/v1\nlisten: {port: 99999}\n", Mark.FAILURE, "listen.port"),
        ("schema: calculet-service/v1\nlisten: {prot: 8081}\n", Mark.FAILURE, "listen.prot"),
        ("", Mark.FAILURE, "service.yaml"),
        ("{", Mark.FAILURE, "service.yaml"),
        (None, Mark.FAILURE, "service.yaml"),
    ],
)
def test_a_configuration_is_checked(
    around: Surroundings, tmp_path: Path, text: str | None, mark: Mark, seen: str
) -> None:
    path = tmp_path / "service.yaml"
    if text is not None:
        path.write_text(text)
    assert_found("settings", attrs.evolve(around, settings_file=path), mark, seen)


# ---- directories ----------------------------------------------------------------------------------------


def test_directories_that_can_be_made_are_well(around: Surroundings, tmp_path: Path) -> None:
    assert_found("directories", around, Mark.OK, str(tmp_path / "downloads"))


def test_a_file_in_the_way_is_a_failure(around: Surroundings, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    directories = {"packages": tmp_path / "file" / "packages"}
    assert_found("directories", attrs.evolve(around, directories=directories), Mark.FAILURE, "not a directory")


def test_a_place_that_cannot_be_written_is_a_failure(
    around: Surroundings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "os.access", lambda path, mode: Path(path).exists() and not mode & os.W_OK
    )  # root may write anywhere
    assert_found("directories", around, Mark.FAILURE, "packages", "cannot be made")
    (tmp_path / "packages").mkdir()
    assert_found("directories", around, Mark.FAILURE, "packages", "is not writable")


def test_a_relative_variable_is_told(around: Surroundings) -> None:
    environment = {"XDG_DATA_HOME": "data", "XDG_CACHE_HOME": "/var/cache", "XDG_STATE_HOME": ""}
    around = attrs.evolve(around, environment=environment)
    assert_found("directories", around, Mark.WARNING, "XDG_DATA_HOME=data")
    assert "XDG_CACHE_HOME" not in found_by("directories", around).seen


# ---- evidence -----------------------------------------------------------------------------------------


def test_evidence_is_shown_with_its_level_and_what_is_not_believed_is_a_warning(around: Surroundings) -> None:
    here = Combination("ab" * 32, "onnxruntime 1.32.0", "cpu")
    batches = Evidence(here, [EvidenceRecord(here, frozenset(BATCH_CONDITIONS), "cpu-1")])
    shown = attrs.evolve(around, shown=lambda: Shown((batches, Evidence(here))))
    assert_found("evidence", shown, Mark.OK, "cpu, package abababababab: C0 batches", "nothing beyond the baseline")
    assert_found("evidence", around, Mark.OK, "nothing has been shown here yet")
    doubted = attrs.evolve(around, shown=lambda: Shown((batches,), ("x.json earns nothing: it is not signed",)))
    assert_found("evidence", doubted, Mark.WARNING, "x.json earns nothing: it is not signed")

    def unreadable() -> Shown:
        raise ConfigurationRefused("the key k cannot be read", hint="chmod 600 k")

    assert_found("evidence", attrs.evolve(around, shown=unreadable), Mark.FAILURE, "the key k cannot be read")
