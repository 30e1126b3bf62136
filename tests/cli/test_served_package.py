"""ServedPackage: what a load asks of a package: held while it is used, refused in numbers where it does not fit."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog

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


def test_what_served_is_recorded_and_a_store_that_cannot_be_written_to_is_served_from(
    store: Store, served: ServedPackage
) -> None:
    served.record_served()
    lineage = store.histories.of("tiny")
    assert lineage is not None
    assert lineage.served == store.only().name
    history = store.root / ".history" / "tiny.json"
    history.write_text("{")
    with structlog.testing.capture_logs() as logs:
        served.record_served()
    assert [entry["event"] for entry in logs] == ["served_not_recorded"]
