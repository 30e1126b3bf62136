"""What a name has stood for: no step back but a rollback, and that to what has served."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from calculet_trio.errors import PackageError
from calculet_trio.packages.store import Store
from tests.packages.test_store import hidden_leftovers, install
from tests.packages.tiny_package import write_package


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "data" / "packages")


def test_a_history_that_cannot_be_read_guards_still(store: Store) -> None:
    install(store, "one")
    (store.root / ".history" / "one.json").write_text("{")
    with pytest.raises(PackageError, match=r"one\.json is not valid JSON"):
        install(store, "one", version="3.0", replace=True)
    (store.root / ".history" / "one.json").write_text('{"schema": "x", "newest_version": "1"}')
    with pytest.raises(PackageError, match="schema is 'x'"):
        install(store, "one", version="3.0", replace=True)


def test_only_what_has_served_is_gone_back_to(store: Store) -> None:
    first = install(store, "one")
    with pytest.raises(PackageError, match="no other package has served under the store's name 'one'"):
        store.roll_back("one")
    store.record_served(first)
    with pytest.raises(PackageError, match="no other package has served"):
        store.last_good("one")
    second = install(store, "one", version="2.0", replace=True)
    assert store.last_good("one") == first, "the new one was never proven"
    store.record_served(second)
    assert store.last_good("one") == first
    assert store.roll_back("one") == first == store.resolve("one")
    assert store.last_good("one") == second
    assert not hidden_leftovers(store)


def test_before_a_package_serves_it_is_known_what_a_rollback_of_it_would_go_back_to(store: Store) -> None:
    first = install(store, "one")
    with pytest.raises(PackageError, match="no other package has served"):
        store.last_good("one", once_served=first.name)
    store.record_served(first)
    second = install(store, "one", version="2.0", replace=True)
    assert store.last_good("one", once_served=second.name) == first
    store.record_served(second)
    assert store.last_good("one", once_served=second.name) == first
    assert store.last_good("one", once_served=first.name) == second, "a rollback, before the name is moved"


def test_a_rollback_is_no_licence_for_a_downgrade(store: Store) -> None:
    store.record_served(install(store, "one"))
    store.record_served(install(store, "one", version="2.0", replace=True))
    store.roll_back("one")
    with pytest.raises(PackageError, match=r"2\.0 was here"):
        install(store, "one", version="1.5", replace=True)


def test_serving_again_and_again_forgets_nothing(store: Store) -> None:
    first = install(store, "one")
    store.record_served(first)
    second = install(store, "one", version="2.0", replace=True)
    for _ in range(3):
        store.record_served(second)
    assert store.last_good("one") == first


def test_what_is_gone_is_not_gone_back_to(store: Store) -> None:
    first = install(store, "one")
    store.record_served(first)
    install(store, "one", version="2.0", replace=True)
    shutil.rmtree(first)
    with pytest.raises(PackageError, match="is not in the store any more"):
        store.roll_back("one")


def test_packages_of_elsewhere_are_not_recorded(store: Store, tmp_path: Path) -> None:
    write_package(tmp_path / "elsewhere")
    store.record_served(tmp_path / "elsewhere")
    assert store.histories.names() == ()
