"""Hosts for the checks to look at: recorded trees, and surroundings in which everything else is well."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from calculet_trio.doctor.account import Account
from calculet_trio.doctor.finding import Finding, Mark
from calculet_trio.doctor.host_tree import HostTree
from calculet_trio.doctor.installation import Installation
from calculet_trio.doctor.registry import CHECKS
from calculet_trio.doctor.surroundings import Surroundings
from calculet_trio.packages.store import Store
from calculet_trio.packages.trust import Trust
from calculet_trio.settings.surface import TimeoutSettings
from calculet_trio.settings.timeout_order import TimeoutOrder

TREES: Final = Path(__file__).parent / "trees"
ACCOUNTS: Final = {"board": "calculet", "board_today": "user2", "no_board": "ann", "board_gone": "calculet"}
"""The account that serves on the host of each tree."""
NODE_MODES: Final = {"board": 0o660, "board_today": 0o666, "board_gone": 0o660}
"""The mode of ``/dev/calculet0``, which git does not keep."""

OPEN_TO_MEMBERS: Final = 0o660


@attrs.frozen
class FakeInstallation(Installation):
    """An environment that has what it is said to have."""

    python: str = "3.11.7"
    bounds: str = ">=3.11"
    wanted: tuple[str, ...] = ("trio<0.36,>=0.35", "numpy>=2.0", 'onnxruntime<1.33,>=1.32; extra == "host"')
    present: Mapping[str, str] = attrs.field(
        factory=lambda: {"trio": "0.35.0", "numpy": "2.4.1", "onnxruntime": "1.32.0"}
    )

    def python_version(self) -> str:
        return self.python

    def python_bounds(self) -> str:
        return self.bounds

    def requirements(self) -> list[str]:
        return list(self.wanted)

    def version_of(self, distribution: str) -> str | None:
        return self.present.get(distribution)


def copy_of(tree: str, place: Path) -> HostTree:
    """A recorded tree below ``place``, to be changed, with its node's mode."""
    root = place / tree
    shutil.copytree(TREES / tree, root, symlinks=True)
    if tree in NODE_MODES:
        (root / "dev/calculet0").chmod(NODE_MODES[tree])
    return HostTree(root)


def surroundings(tree: HostTree, place: Path, **changes: Any) -> Surroundings:
    """The tree's host with its account, an empty store, room, and nothing on the service's port."""
    well = Surroundings(
        tree=tree,
        account=member(Account.named(ACCOUNTS.get(tree.root.name, "ann"), tree), tree),
        store=Store(place / "packages"),
        settings_file=None,
        directories={"packages": place / "packages", "downloads": place / "downloads"},
        environment={},
        host="127.0.0.1",
        port=1,
        asks_for_keys=False,
        timeouts=TimeoutOrder(settings=TimeoutSettings(), longest_job_s=65.0),
        trust=Trust,
        histories=place / "faults",
        installation=FakeInstallation(),
        free_bytes=lambda _path: 10**12,
    )
    return attrs.evolve(well, **changes)


def member(account: Account, tree: HostTree) -> Account:
    """The account in the group that owns the tree's node; copied files belong to whoever runs the tests."""
    node = tree.status("dev/calculet0")
    return account if node is None else attrs.evolve(account, gids=account.gids | {node.st_gid})


def write(tree: HostTree, path: str, text: str) -> None:
    """Change a file of a copied tree."""
    target = tree.root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


def remove(tree: HostTree, path: str) -> None:
    """Take a file or a directory out of a copied tree."""
    target = tree.root / path
    if target.is_dir():
        shutil.rmtree(target)
    else:
        target.unlink()


def found_by(name: str, around: Surroundings) -> Finding:
    """What the registered check ``name`` finds."""
    [check] = [check for check in CHECKS if check.name == name]
    return check.examine(around)


def assert_found(name: str, around: Surroundings, mark: Mark, *parts: str) -> None:
    """The check's mark, and each of ``parts`` in what it saw; what is not well says what to do."""
    finding = found_by(name, around)
    assert finding.mark is mark, finding
    for part in parts:
        assert part in finding.seen, finding
    assert (finding.todo is None) == (mark is Mark.OK), finding
