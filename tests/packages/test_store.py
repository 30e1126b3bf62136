"""The store: whole or not there, found by name, and every damage named by its file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from calculet_trio.errors import PackageError, Unavailable
from calculet_trio.packages.digests import sha256_of
from calculet_trio.packages.manifest import MANIFEST_FILE
from calculet_trio.packages.store import Store, name_from_file, require_name
from tests.packages.tiny_package import write_package

WAIT_S = 60


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "data" / "packages")


def install(store: Store, name: str, *, version: str = "1.0", replace: bool = False) -> Path:
    with store.staging() as scratch:
        write_package(scratch / "built", name, version=version)
        return store.install(scratch / "built", replace=replace)


def hidden_leftovers(store: Store) -> list[str]:
    return sorted(path.name for path in store.root.iterdir() if path.name in (".staging", ".replaced"))


# ---- finding ----------------------------------------------------------------------------------------


def test_an_empty_store_says_how_to_fill_it(store: Store) -> None:
    assert store.names() == ()
    with pytest.raises(PackageError, match="is empty") as caught:
        store.only()
    assert "package pull smollm2" in (caught.value.hint or "")


def test_one_package_is_the_one_that_is_meant(store: Store) -> None:
    directory = install(store, "one")
    assert store.only() == directory == store.resolve("one")


def test_of_several_none_is_chosen_and_all_are_named(store: Store) -> None:
    install(store, "one")
    install(store, "two")
    with pytest.raises(PackageError, match="2 packages") as caught:
        store.only()
    assert caught.value.hint == "it has: one, two"


@pytest.mark.parametrize("reference", ["three", "", "..", "../one", "ONE", "one/../one/..", ".staging", "a" * 100_000])
def test_what_is_not_there_is_refused(store: Store, reference: str) -> None:
    install(store, "one")
    with pytest.raises(PackageError) as caught:
        store.resolve(reference)
    assert len(caught.value.message) < 100_300


def test_a_package_elsewhere_is_found_by_its_path(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_package(tmp_path / "elsewhere")
    assert store.resolve(str(tmp_path / "elsewhere")) == tmp_path / "elsewhere"
    monkeypatch.chdir(tmp_path)
    assert store.resolve("./elsewhere") == Path("elsewhere")


@pytest.mark.parametrize(("there", "why"), [(True, "it has no manifest.json"), (False, "there is no such directory")])
def test_a_path_that_leads_to_no_package_says_what_is_there(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool, why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if there:
        Path("place").mkdir()
    with pytest.raises(PackageError, match=f"./place is not a package: {why}"):
        store.resolve("./place")


def test_a_package_that_cannot_be_read_is_listed_with_its_problem(store: Store) -> None:
    install(store, "good")
    (install(store, "spoilt") / MANIFEST_FILE).write_text("{")
    good, spoilt = store.packages()
    assert good.problem is None
    assert good.manifest is not None
    assert spoilt.manifest is None
    assert "not valid JSON" in (spoilt.problem or "")


@pytest.mark.parametrize("name", ["", ".x", "-x", "A", "a/b", "a b", "ä", "x" * 65, "x\n"])
def test_names_are_bounded(name: str) -> None:
    with pytest.raises(PackageError, match="cannot be called"):
        require_name(name)


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("Qwen3 0.6B-Q8_0.gguf", "qwen3-0.6b-q8_0"),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m-instruct.q4_1"),
        ("模型.gguf", "model"),
        ("x" * 100 + ".gguf", "x" * 64),
    ],
)
def test_a_file_gives_a_name(file: str, name: str) -> None:
    assert name_from_file(Path(file)) == name


# ---- putting in ---------------------------------------------------------------------------------------


def test_nothing_is_left_beside_what_was_installed(store: Store) -> None:
    install(store, "one")
    assert store.names() == ("one",)
    assert not hidden_leftovers(store)


def test_a_package_lies_under_the_digest_of_its_manifest(store: Store) -> None:
    directory = install(store, "one")
    assert directory.name == store.digest_of("one") == sha256_of(directory / MANIFEST_FILE)
    assert store.contents() == (directory,)


def test_a_taken_name_is_refused_and_the_old_package_stays(store: Store) -> None:
    directory = install(store, "one")
    with pytest.raises(PackageError, match="already has a package 'one'"):
        install(store, "one", version="1.1")
    assert store.resolve("one") == directory
    store.check(directory, thorough=True)
    assert not hidden_leftovers(store)


def test_replacing_lets_the_name_stand_for_the_new_one_and_keeps_the_old(store: Store) -> None:
    before = install(store, "one")
    after = install(store, "one", version="1.1", replace=True)
    assert store.resolve("one") == after != before
    store.check(before, thorough=True)
    assert not hidden_leftovers(store)


def test_the_same_package_again_is_no_error_and_no_second_one(store: Store) -> None:
    directory = install(store, "one")
    before = directory.stat().st_ino
    assert install(store, "one") == directory
    assert directory.stat().st_ino == before
    assert len(list((store.root / ".verified").iterdir())) == 1


def test_a_damaged_one_gives_way_to_the_same_whole(store: Store) -> None:
    directory = install(store, "one")
    (directory / "model.onnx").unlink()
    assert install(store, "one") == directory
    store.check(directory, thorough=True)


@pytest.mark.parametrize("version", ["0.9", "1.0rc1", "1.0.dev3"])
def test_an_older_version_is_refused_even_by_force(store: Store, version: str) -> None:
    directory = install(store, "one")
    with pytest.raises(PackageError, match=rf"'one' is version {version}, and 1\.0 was here"):
        install(store, "one", version=version, replace=True)
    assert store.resolve("one") == directory


def test_what_was_removed_by_hand_is_remembered(store: Store) -> None:
    install(store, "one", version="2.0")
    (store.root / "one").unlink()
    with pytest.raises(PackageError, match=r"2\.0 was here"):
        install(store, "one")
    install(store, "other")
    install(store, "one", version="2.0")


def test_a_directory_that_somebody_put_there_is_a_package_until_it_is_replaced(store: Store) -> None:
    write_package(store.root / "one", "one")
    assert store.names() == ("one",)
    assert store.resolve("one") == store.root / "one"
    assert store.digest_of("one") is None
    with pytest.raises(PackageError, match="already has"):
        install(store, "one", version="1.1")
    directory = install(store, "one", version="1.1", replace=True)
    assert store.resolve("one") == directory
    assert not hidden_leftovers(store)


@pytest.mark.parametrize("target", ["../elsewhere", ".content/../../elsewhere", "/etc", ".content/0"])
def test_a_link_of_somebody_s_is_followed_as_what_it_is(store: Store, target: str) -> None:
    """It may be a package of its own; it is never taken for one of the store's."""
    store.root.mkdir(parents=True)
    (store.root / "one").symlink_to(target)
    assert store.digest_of("one") is None


def test_what_fails_while_it_is_made_leaves_nothing(store: Store) -> None:
    def make_badly() -> None:
        with store.staging() as scratch:
            write_package(scratch / "half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_badly()
    assert store.names() == ()
    assert not hidden_leftovers(store)


def test_a_damaged_build_is_not_installed(store: Store) -> None:
    with store.staging() as scratch:
        write_package(scratch / "built")
        (scratch / "built" / "model.onnx").write_bytes(b"other")
        with pytest.raises(PackageError, match=r"model\.onnx"):
            store.install(scratch / "built")
    assert store.names() == ()


KILLED_WHILE_STAGING = """
import sys
from pathlib import Path
from calculet_trio.packages.store import Store

with Store(Path(sys.argv[1])).staging() as scratch:
    (scratch / "half").mkdir()
    print("staged", flush=True)
    sys.stdin.read()
"""


def staging_process(store: Store) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED_WHILE_STAGING, str(store.root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "staged\n"
    return process


def test_two_cannot_change_the_store_at_once(store: Store) -> None:
    with staging_process(store) as process:
        with pytest.raises(Unavailable, match="another command"), store.staging():
            pass
        assert hidden_leftovers(store) == [".staging"], "what the other one stages is not ours to remove"
        process.communicate("", timeout=WAIT_S)
    install(store, "one")


def test_what_a_killed_process_left_is_removed(store: Store) -> None:
    with staging_process(store) as process:
        process.send_signal(signal.SIGKILL)
        process.wait(WAIT_S)
    assert hidden_leftovers(store) == [".staging"]
    assert store.names() == ()
    with store.staging() as scratch:
        assert not list(scratch.iterdir())
    assert not hidden_leftovers(store)


def test_a_replacement_that_was_cut_off_is_undone(store: Store) -> None:
    write_package(store.root / "one", "one")
    (store.root / ".replaced").mkdir()
    (store.root / "one").rename(store.root / ".replaced" / "one")
    with store.staging():
        pass
    assert store.names() == ("one",)
    store.check(store.resolve("one"), thorough=True)


# ---- verifying ------------------------------------------------------------------------------------------


def hashed_files(store: Store, directory: Path, *, thorough: bool = False) -> list[str]:
    hashed: list[str] = []
    store.check(directory, thorough=thorough, on_file=lambda name, _size_bytes: hashed.append(name))
    return hashed


def test_a_start_after_installing_hashes_nothing(store: Store) -> None:
    directory = install(store, "one")
    assert hashed_files(store, directory) == []
    assert len(hashed_files(store, directory, thorough=True)) == 4


def test_what_was_hashed_once_is_not_hashed_again(store: Store, tmp_path: Path) -> None:
    manifest = write_package(tmp_path / "elsewhere")
    assert set(hashed_files(store, tmp_path / "elsewhere")) == set(manifest.files)
    assert hashed_files(store, tmp_path / "elsewhere") == []


def test_a_file_that_was_written_to_is_hashed_again(store: Store) -> None:
    directory = install(store, "one")
    path = directory / "model.onnx"
    content = path.read_bytes()
    path.write_bytes(content)
    assert hashed_files(store, directory) == ["model.onnx"]
    status = path.stat()
    path.write_bytes(bytes(reversed(content)))  # the same size, and its old modification time
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(PackageError, match=r"model\.onnx: its sha256 is"):
        store.check(directory, thorough=False)


def test_a_damaged_file_stays_damaged_at_the_second_look(store: Store) -> None:
    directory = install(store, "one")
    path = directory / "model.onnx"
    path.write_bytes(bytes(reversed(path.read_bytes())))
    for _ in range(2):
        with pytest.raises(PackageError, match="model"):
            store.check(directory, thorough=False)


def test_each_kind_of_damage_names_its_file(store: Store) -> None:
    directory = install(store, "one")
    path = directory / "model.onnx"
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(PackageError, match=rf"model\.onnx: it has {len(content) - 1} bytes"):
        store.check(directory, thorough=True)
    path.unlink()
    with pytest.raises(PackageError, match=r"model\.onnx cannot be used: No such file"):
        store.check(directory, thorough=True)
    path.symlink_to("/dev/zero")
    with pytest.raises(PackageError, match=r"model\.onnx is not a regular file"):
        store.check(directory, thorough=True)
    path.unlink()
    path.write_bytes(content)
    store.check(directory, thorough=True)
    (directory / "extra.bin").write_bytes(b"")
    with pytest.raises(PackageError, match=r"extra\.bin is not named"):
        store.check(directory, thorough=True)


def test_a_seal_that_is_nonsense_costs_one_hashing(store: Store) -> None:
    directory = install(store, "one")
    [seal] = (store.root / ".verified").iterdir()
    for nonsense in (b"[1]", b"{", b"\xff", b"{" * 2_000_000, b'{"model.onnx": 3}'):
        seal.write_bytes(nonsense)
        assert "model.onnx" in hashed_files(store, directory)
        assert hashed_files(store, directory) == []


def test_a_store_that_cannot_be_written_to_can_be_served_from(store: Store) -> None:
    directory = install(store, "one")
    for seal in (store.root / ".verified").iterdir():
        seal.unlink()
    (store.root / ".verified").rmdir()
    (store.root / ".verified").touch()  # where nothing can be written, even by root
    assert hashed_files(store, directory)
    assert hashed_files(store, directory)
