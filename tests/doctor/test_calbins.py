"""The check ``calbins`` on a really built package for the emulator, and on damaged and contradicting copies of it."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from calculet_trio.cli.board import make_emulated_package
from calculet_trio.doctor.finding import Mark
from calculet_trio.doctor.host_tree import HostTree
from calculet_trio.doctor.surroundings import Surroundings
from calculet_trio.packages.calbin_writer import EmulatedShape, write_calbin
from calculet_trio.packages.manifest import MANIFEST_FILE, Manifest
from calculet_trio.packages.manifest_parts import Defect, DeviceBinary, FileRecord
from tests.doctor.recorded import assert_found, found_by, surroundings
from tests.packages.tiny_package import write_package

SHAPE = EmulatedShape(name="small", batches=(1, 4), lanes=4, max_seq_len=64, vocab_size=300, kv_bytes_per_token=4)
REFERENCE_BYTES = (9_400_000_000, 8_780_000_000)
"""The two shards of the reference model (SPEC section 1)."""
ANY_SHA256 = "0" * 64


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As ``package build --emulated-calbin`` makes it: with every known defect, all overridden."""
    directory = tmp_path_factory.mktemp("calbins") / "small"
    make_emulated_package(SHAPE, directory, name="small", report=lambda _progress: None)
    return directory


@pytest.fixture
def package(built: Path, tmp_path: Path) -> Path:
    """A copy of it in the store."""
    directory = tmp_path / "packages" / "small"
    shutil.copytree(built, directory)
    return directory


@pytest.fixture
def around(tmp_path: Path) -> Surroundings:
    return surroundings(HostTree(tmp_path), tmp_path)


def change(package: Path, **binary: object) -> None:
    """Say something else in the manifest's part about the calbin."""
    manifest = Manifest.load(package)
    assert manifest.binary is not None
    attrs.evolve(manifest, binary=attrs.evolve(manifest.binary, **binary)).save(package)


def rewrite(package: Path, **shape: object) -> None:
    """Another calbin under the same names, which the manifest says to be as large as it is."""
    shards = write_calbin(attrs.evolve(SHAPE, **shape).calbin(), package)
    manifest = Manifest.load(package)
    records = {path.name: FileRecord(sha256=ANY_SHA256, size_bytes=path.stat().st_size) for path in shards}
    attrs.evolve(manifest, files={**manifest.files, **records}).save(package)


def shard(package: Path, index: int) -> Path:
    return package / f"small.{index}.calbin"


def cut(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1)


# ---- as they should be ----------------------------------------------------------------------------------


def test_each_known_defect_is_named_and_who_answers_for_it(package: Path, around: Surroundings) -> None:
    names = [defect.value for defect in Defect]
    assert_found("calbins", around, Mark.OK, "small: calbin 0.1, 2 shards, known defects, overridden: ", *names)


def test_a_package_of_the_configuration_is_looked_at_like_one_of_the_store(built: Path, around: Surroundings) -> None:
    assert_found("calbins", around, Mark.OK, "no package for a board")
    elsewhere = attrs.evolve(around, packages_elsewhere=(built,))
    assert_found("calbins", elsewhere, Mark.OK, f"{built}: calbin 0.1")


def test_a_calbin_without_defects_and_an_override_without_need(package: Path, around: Surroundings) -> None:
    rewrite(package, defects=False)
    assert_found("calbins", around, Mark.OK, "no known defect, overridden without need: prefill_typed_decode")
    change(package, overridden=())
    assert found_by("calbins", around).seen.endswith("no known defect")


def test_packages_of_this_machines_cpu_are_left_alone(around: Surroundings) -> None:
    write_package(around.store.root / "tiny", "tiny")
    assert_found("calbins", around, Mark.OK, "no package for a board")


def test_eighteen_gigabytes_are_not_read(package: Path, around: Surroundings) -> None:
    rewrite(package, parameter_bytes=REFERENCE_BYTES)
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert_found("calbins", around, Mark.OK, "2 shards")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 100_000


def test_a_calbin_of_the_vendors_is_not_read_and_that_is_said(package: Path, around: Surroundings) -> None:
    for index in (0, 1):
        content = b"CALBIN\0\1" + shard(package, index).read_bytes()[8:]
        shard(package, index).write_bytes(content)
    assert_found("calbins", around, Mark.FAILURE, "is not an emulated calbin", "'calrt-emulator'")
    attrs.evolve(Manifest.load(package), target="calculet").save(package)
    parts = ("2 shards of the vendor's format, which only the board's runtime reads", "overrides: prefill_typed_decode")
    assert_found("calbins", around, Mark.OK, *parts)
    cut(shard(package, 1))
    assert_found("calbins", around, Mark.FAILURE, f"{shard(package, 1)} has ", "its manifest says ")


# ---- what nobody answers for ----------------------------------------------------------------------------


@pytest.mark.parametrize("left", Defect)
def test_a_defect_that_the_manifest_does_not_override(package: Path, around: Surroundings, left: Defect) -> None:
    change(package, overridden=tuple(defect for defect in Defect if defect is not left))
    assert_found("calbins", around, Mark.FAILURE, f"the known defect {left.value}", "binary.overridden")
    assert f"overrides: [{left.value}]" in (found_by("calbins", around).todo or "")


@pytest.mark.parametrize(
    ("key", "value"), [("version", "0.2"), ("compiler", "another 1"), ("calcore_rt", "f00d"), ("compiler", "")]
)
def test_a_manifest_that_was_written_of_another_calbin(
    package: Path, around: Surroundings, key: str, value: str
) -> None:
    change(package, **{key: value})
    assert_found("calbins", around, Mark.FAILURE, f"binary.{key} is {value!r}; the calbin says")


def test_a_calbin_that_lacks_what_the_manifest_names(package: Path, around: Surroundings) -> None:
    rewrite(package, batches=(1,))
    assert_found("calbins", around, Mark.FAILURE, "no submodel of the exact name 'decode_b4'")


def test_a_calbin_of_the_emulator_is_for_no_board(package: Path, around: Surroundings) -> None:
    attrs.evolve(Manifest.load(package), target="calculet").save(package)
    assert_found("calbins", around, Mark.FAILURE, "its calbin is the emulator's")


def test_a_package_without_a_calbin(package: Path, around: Surroundings) -> None:
    change(package, shards=())
    assert_found("calbins", around, Mark.FAILURE, "binary.shards is empty")
    attrs.evolve(Manifest.load(package), binary=None).save(package)
    assert_found("calbins", around, Mark.FAILURE, "binary is null")


# ---- damaged --------------------------------------------------------------------------------------------


def loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def link(path: Path) -> None:
    path.rename(path.with_suffix(".kept"))
    path.symlink_to(path.with_suffix(".kept"))


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (Path.unlink, "No such file"),
        (cut, "its manifest says"),
        (lambda path: os.truncate(path, 0), "has 0 bytes"),
        (loop, "is not a regular file"),
        (link, "is not a regular file"),
        (fifo, "is not a regular file"),
        (directory, "is not a regular file"),
    ],
)
def test_a_shard_that_is_not_what_it_should_be(
    package: Path, around: Surroundings, damage: Callable[[Path], object], said: str, index: int
) -> None:
    damage(shard(package, index))
    assert_found("calbins", around, Mark.FAILURE, str(shard(package, index)), said)


def test_a_flipped_bit_of_the_metadata(package: Path, around: Surroundings) -> None:
    content = bytearray(shard(package, 0).read_bytes())
    content[100] ^= 1
    shard(package, 0).write_bytes(content)
    assert_found("calbins", around, Mark.FAILURE, "the metadata is damaged")


def test_shards_of_two_sets(package: Path, around: Surroundings) -> None:
    kept = shard(package, 1).read_bytes()
    rewrite(package, max_seq_len=128)
    shard(package, 1).write_bytes(kept)
    assert_found("calbins", around, Mark.FAILURE, "is of another set")


def test_every_damaged_package_is_named_and_the_whole_ones_are_no_excuse(
    package: Path, built: Path, around: Surroundings, tmp_path: Path
) -> None:
    shutil.copytree(built, tmp_path / "other")
    cut(shard(package, 0))
    cut(shard(tmp_path / "other", 0))
    found = attrs.evolve(around, packages_elsewhere=(tmp_path / "other", built))
    assert_found("calbins", found, Mark.FAILURE, str(shard(package, 0)), str(shard(tmp_path / "other", 0)))


@pytest.mark.parametrize("what", [fifo, loop, directory, Path.unlink])
def test_a_manifest_of_the_configuration_that_cannot_be_read(
    package: Path, around: Surroundings, tmp_path: Path, what: Callable[[Path], object]
) -> None:
    package.rename(tmp_path / "elsewhere")
    what(tmp_path / "elsewhere" / MANIFEST_FILE)
    found = attrs.evolve(around, packages_elsewhere=(tmp_path / "elsewhere",))
    assert_found("calbins", found, Mark.FAILURE, str(tmp_path / "elsewhere"))


def test_a_board_package_is_compared_with_its_calbins_schema(around: Surroundings) -> None:
    manifest = write_package(around.store.root / "q", "q")
    binary = DeviceBinary(version="0.1", compiler="", calcore_rt="", shards=("q.calbin",))
    (around.store.root / "q" / "q.calbin").write_bytes(b"of the vendor")
    record = FileRecord(sha256=ANY_SHA256, size_bytes=13)
    files = {**manifest.files, "q.calbin": record}
    attrs.evolve(manifest, target="calculet", binary=binary, files=files).save(around.store.root / "q")
    assert_found("calbins", around, Mark.OK, "q: 1 shard of the vendor's format", "overrides: none")
