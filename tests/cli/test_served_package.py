"""ServedPackage: what a load asks of a package: held while it is used, refused in numbers where it does not fit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from calculet_trio.cli import served_package
from calculet_trio.cli.served_package import ServedPackage
from calculet_trio.errors import PackageError
from calculet_trio.packages.capacity import CapacityPlan, CapacityRefused
from calculet_trio.packages.manifest import Manifest
from calculet_trio.packages.package_signature import sign_package
from calculet_trio.packages.signing import SigningKey
from calculet_trio.packages.store import Store
from calculet_trio.packages.store_lease import is_leased
from calculet_trio.packages.trust import Trust
from calculet_trio.runtimes.port import MemoryUse
from tests.packages.tiny_package import write_package


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def served(store: Store, tmp_path: Path) -> ServedPackage:
    key = SigningKey.local(tmp_path / "keys")
    with store.staging() as scratch:
        write_package(scratch / "tiny")
        sign_package(scratch / "tiny", key)
        directory = store.install(scratch / "tiny")
    return ServedPackage(store, directory, Trust(local=key.public))


def test_it_is_held_from_its_verification_to_its_release(store: Store, served: ServedPackage) -> None:
    assert not is_leased(store.only())
    served.verify()
    served.verify()
    assert is_leased(store.only())
    served.release()
    served.release()
    assert not is_leased(store.only())


def test_what_is_refused_is_not_held(store: Store, served: ServedPackage) -> None:
    (store.only() / "model.sig").unlink()
    with pytest.raises(PackageError, match="is not signed"):
        served.verify()
    assert not is_leased(store.only())


def test_what_does_not_fit_is_refused_in_numbers(store: Store, served: ServedPackage) -> None:
    needed_bytes = CapacityPlan.of(Manifest.load(store.only())).total_bytes
    served.require_room(MemoryUse(used_bytes=0, total_bytes=needed_bytes))
    served.require_room(MemoryUse(used_bytes=1, total_bytes=None))
    with pytest.raises(CapacityRefused) as caught:
        served.require_room(MemoryUse(used_bytes=1, total_bytes=needed_bytes))
    assert caught.value.missing_bytes == 1


def test_what_served_is_recorded_and_what_cannot_be_is_told(store: Store, served: ServedPackage) -> None:
    served.record_served()
    lineage = store.histories.of("tiny")
    assert lineage is not None
    assert lineage.served == store.only().name
    history = store.root / ".history" / "tiny.json"
    history.write_text("{")
    with pytest.raises(PackageError, match="not valid JSON"):
        served.record_served()


def test_what_is_held_because_it_serves_stays_held_when_it_is_refused_for_being_loaded_again(
    store: Store, served: ServedPackage
) -> None:
    served.verify()
    (store.only() / "model.sig").unlink()
    with pytest.raises(PackageError, match="is not signed"):
        served.verify()
    assert is_leased(store.only())


def _rewrite(path: Path) -> None:
    path.write_bytes(path.read_bytes())


def _replace(path: Path) -> None:
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)


def _link(path: Path) -> None:
    path.symlink_to(path.rename(path.parent.parent.parent / "elsewhere"))


@pytest.mark.parametrize("touch", [_rewrite, _replace, _link, Path.unlink])
@pytest.mark.parametrize("name", ["vocabulary.json", "model.onnx"])
def test_what_was_touched_after_it_was_verified_is_not_served(
    store: Store, served: ServedPackage, touch: Callable[[Path], None], name: str
) -> None:
    served.verify()
    served.require_unchanged()
    touch(store.only() / name)
    with pytest.raises(PackageError, match=f"{name} was touched after"):
        served.require_unchanged()


def test_another_manifest_than_the_verified_one_is_not_served(store: Store, served: ServedPackage) -> None:
    served.verify()
    _rewrite(store.only() / "manifest.json")
    with pytest.raises(PackageError, match=r"manifest\.json was touched after it had been verified"):
        served.require_unchanged()


def test_a_load_begins_with_what_an_earlier_one_left_given_back(
    served: ServedPackage, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_back: list[bool] = []
    monkeypatch.setattr(served_package, "give_back_freed", lambda: given_back.append(True))
    served.verify()
    assert given_back == [True]
