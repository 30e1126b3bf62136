"""Everything that checks look at, so that each can be shown a machine that is not this one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import attrs

from calculet_trio.core.evidence import Evidence
from calculet_trio.doctor.account import Account
from calculet_trio.doctor.host_tree import HostTree
from calculet_trio.doctor.installation import Installation
from calculet_trio.doctor.native_library import NativeLibrary
from calculet_trio.errors import PackageError
from calculet_trio.packages.store import Store, StoredPackage
from calculet_trio.packages.trust import Trust
from calculet_trio.settings.timeout_order import TimeoutOrder


def free_bytes_at(path: Path) -> int:
    """What an unprivileged account may still write where ``path`` is, or will be made."""
    return shutil.disk_usage(nearest_existing(path)).free


def nearest_existing(path: Path) -> Path:
    """``path``, or the closest directory above it that is there."""
    # What lies in another account's directory cannot be seen, and Path.exists() raises there.
    return next((each for each in (path, *path.parents) if os.access(each, os.F_OK)), Path("/"))


@attrs.frozen
class Shown:
    """What is on record here.

    Args:
        by_combination: for each package, runtime and board that was tried.
        not_believed: a sentence for each record that earns nothing.
    """

    by_combination: tuple[Evidence, ...] = ()
    not_believed: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class Surroundings:
    """The machine and the service as the checks see them.

    Args:
        tree: the host's files.
        account: whose service it is.
        store: the packages.
        settings_file: the service's configuration; None if there is none.
        directories: where the service writes, by purpose.
        environment: the variables that say where those are.
        host: the address that the service listens on.
        port: its port.
        asks_for_keys: whether its clients must show one.
        timeouts: its own, for the model that it would serve.
        trust: whose signatures count; raises where a key cannot be read.
        histories: where what is remembered of faults is kept.
        shown: what conformance runs have shown; raises where a key cannot be read.
        native_library: the binding's library; without places where there is none to look at.
        needs_board: whether the service is configured to serve from a board.
        packages_elsewhere: packages that the configuration names by their directory.
        installation: the Python environment.
        free_bytes: room on the disk of a path.
    """

    tree: HostTree
    account: Account
    store: Store
    settings_file: Path | None
    directories: Mapping[str, Path]
    environment: Mapping[str, str]
    host: str
    port: int
    asks_for_keys: bool
    timeouts: TimeoutOrder
    trust: Callable[[], Trust]
    histories: Path
    shown: Callable[[], Shown] = Shown
    native_library: NativeLibrary = attrs.field(factory=NativeLibrary)
    needs_board: bool = False
    packages_elsewhere: tuple[Path, ...] = ()
    installation: Installation = attrs.field(factory=Installation)
    free_bytes: Callable[[Path], int] = free_bytes_at

    def packages(self) -> tuple[StoredPackage, ...]:
        """Those of the store; none where it cannot be read, of which the check `store` speaks, and no other."""
        try:
            return self.store.packages()
        except PackageError:
            return ()
