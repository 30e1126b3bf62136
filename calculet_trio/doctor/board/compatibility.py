"""``compatibility``: whether this server, CalRT, driver and each board package were seen together.

What only the running device tells (its own CalcoreRT) is asked when a package is loaded.

Source: SPEC section 14 (A §3, "a version list").
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from calculet_trio import __version__
from calculet_trio.doctor.board.calrt_library import found_libraries
from calculet_trio.doctor.board.pci import DRIVER_MODULE, NO_BOARD, boards_of
from calculet_trio.doctor.check import Check, Group
from calculet_trio.doctor.finding import Finding, ok, warning
from calculet_trio.doctor.surroundings import Surroundings
from calculet_trio.errors import PackageError
from calculet_trio.packages.compatibility import untried
from calculet_trio.packages.store import StoredPackage

BOARD_KIND: Final = "calculet"


def _packages(surroundings: Surroundings) -> list[StoredPackage]:
    try:
        found = surroundings.store.packages()
    except PackageError:  # the check `store` says so
        return []
    return [each for each in found if each.manifest is not None and each.manifest.target == BOARD_KIND]


def _problems(surroundings: Surroundings, packages: list[StoredPackage]) -> Iterator[str]:
    tree = surroundings.tree
    host = {"server": __version__, "driver": tree.text(f"{DRIVER_MODULE}/version") or ""}
    for calrt in sorted(set(found_libraries(tree).values())) or [""]:
        for stored in packages:
            assert stored.manifest is not None, "chosen so"
            binary = stored.manifest.binary
            versions = {**host, "calrt": calrt}
            if binary is not None:
                versions |= {"compiler": binary.compiler, "calbin_schema": binary.version}
                versions["calcore_rt"] = binary.calcore_rt
            problem = untried(BOARD_KIND, versions)
            if problem is not None:
                yield f"{stored.name}: {problem}"


def _examine(surroundings: Surroundings) -> Finding:
    if not boards_of(surroundings.tree):
        return ok(NO_BOARD)
    packages = _packages(surroundings)
    if not packages:
        return ok("no package for the board, so there is nothing to compare")
    problem = next(_problems(surroundings, packages), None)
    if problem is not None:
        return warning(
            problem,
            todo="install versions that were tried; or set device.accept_untried, and run "
            "`calculet-trio conformance run --runtime calrt` before serving",
        )
    return ok(f"{len(packages)} for the board, with versions that were seen together")


CHECK = Check(
    name="compatibility",
    group=Group.BOARD,
    why="the parts are versioned apart and do not check one another; another combination may answer wrongly",
    examine=_examine,
)
