"""Garbage collection: what is live, held or gone back to stays; the rest goes, and a dry run only says so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from calculet_trio.errors import PackageError, Unavailable
from calculet_trio.packages.store import Store
from calculet_trio.packages.store_collection import Collection, Reason, collect
from calculet_trio.packages.store_lease import Lease, is_leased
from tests.packages.test_store import install

WAIT_S = 60
HOLDING = """
import sys
from pathlib import Path
from calculet_trio.packages.store_lease import Lease

lease = Lease(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "packages")


def kept(found: Collection) -> dict[str, Reason]:
    return {each.digest: each.reason for each in found.kept}


def test_what_names_stand_for_stays(store: Store) -> None:
    one, two = install(store, "one"), install(store, "two")
    found = collect(store, dry_run=False)
    assert kept(found) == {one.name: Reason.LIVE, two.name: Reason.LIVE}
    assert found.removed == ()
    assert store.names() == ("one", "two")


def test_what_was_replaced_goes_with_its_seal(store: Store) -> None:
    old = install(store, "one")
    new = install(store, "one", version="2.0", replace=True)
    size_bytes = sum(path.stat().st_size for path in old.iterdir())
    for dry_run in (True, False):
        assert old.exists()
        found = collect(store, dry_run=dry_run)
        [removed] = found.removed
        assert (removed.digest, removed.name, removed.size_bytes) == (old.name, "one", size_bytes)
        assert found.freed_bytes == size_bytes
    assert store.contents() == (new,)
    assert len(list((store.root / ".verified").iterdir())) == 1
    store.check(new, thorough=True)


def test_the_last_good_one_stays_and_the_one_before_it_goes(store: Store) -> None:
    versions = [install(store, "one", version=f"{number}.0", replace=True) for number in (1, 2, 3, 4)]
    for directory in versions[:3]:
        store.record_served(directory)
    found = collect(store, dry_run=False)
    assert kept(found) == {versions[3].name: Reason.LIVE, versions[2].name: Reason.LAST_GOOD}
    assert store.roll_back("one") == versions[2]


def test_the_last_good_one_of_a_name_that_was_removed_stays(store: Store) -> None:
    directory = install(store, "one")
    store.record_served(directory)
    (store.root / "one").unlink()
    assert kept(collect(store, dry_run=False)) == {directory.name: Reason.LAST_GOOD}


def test_what_a_process_holds_stays_until_it_ends(store: Store) -> None:
    old = install(store, "one")
    install(store, "one", version="2.0", replace=True)
    command = [sys.executable, "-c", HOLDING, str(old)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert kept(collect(store, dry_run=False))[old.name] is Reason.HELD
        process.kill()
        process.wait(WAIT_S)
    assert [each.digest for each in collect(store, dry_run=False).removed] == [old.name]


def test_an_unreadable_history_stops_it_before_anything_is_removed(store: Store) -> None:
    old = install(store, "one")
    install(store, "one", version="2.0", replace=True)
    (store.root / ".history" / "one.json").write_text("{")
    with pytest.raises(PackageError, match=r"one\.json"):
        collect(store, dry_run=False)
    assert old.exists()


def test_what_cannot_be_read_is_removed_under_its_digest(store: Store) -> None:
    install(store, "one")
    (store.root / ".content" / ("0" * 64)).mkdir()
    (store.root / ".content" / "notes.txt").write_text("not ours")
    [removed] = collect(store, dry_run=False).removed
    assert (removed.digest, removed.name) == ("0" * 64, "(unreadable)")
    assert (store.root / ".content" / "notes.txt").exists()


def test_it_waits_for_nobody(store: Store) -> None:
    install(store, "one")
    with store.staging(), pytest.raises(Unavailable):
        collect(store, dry_run=True)


def test_a_lease_is_shared_ends_once_and_needs_its_package(store: Store) -> None:
    directory = install(store, "one")
    assert not is_leased(directory)
    first, second = Lease(directory), Lease(directory)
    first.close()
    first.close()
    assert is_leased(directory)
    second.close()
    assert not is_leased(directory)
    with pytest.raises(PackageError, match="cannot be used"):
        Lease(store.root / ".content" / "gone")


def test_an_empty_store_is_collected(store: Store) -> None:
    assert collect(store, dry_run=False) == Collection((), ())
