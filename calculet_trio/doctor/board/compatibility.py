"""``compatibility``: whether this server, CalRT, driver and each package for the device were seen together.

The device is the board; or, without one, the emulator, where its library is what a daemon would load. What only the
running board tells (its own CalcoreRT) is asked when a package is loaded.

Source: SPEC section 14 (A §3, "a version list").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final

import attrs

from calculet_trio import __version__
from calculet_trio.doctor.board.calrt_library import found_libraries
from calculet_trio.doctor.board.device_holder import is_held
from calculet_trio.doctor.board.pci import DRIVER_MODULE, NO_BOARD, boards_of
from calculet_trio.doctor.check import Check, Group
from calculet_trio.doctor.finding import Finding, ok, warning
from calculet_trio.doctor.native_library import PROCESS_S, Sighting
from calculet_trio.doctor.surroundings import Surroundings
from calculet_trio.errors import PackageError
from calculet_trio.packages.compatibility import BOARD, EMULATOR, HOST_COMPONENTS, untried
from calculet_trio.packages.manifest import Manifest

CALLED: Final = {"server": "calculet-trio", "calrt": "CalRT", "driver": "driver", "calcore_rt": "CalcoreRT"}
ADVICE: Final = (
    "install versions that were tried; or set device.accept_untried, and run "
    "`calculet-trio conformance run --runtime calrt` before serving"
)


@attrs.frozen
class Device:
    """What packages would run on.

    Args:
        kind: as `calculet_trio.runtimes.port.DeviceInfo.kind` says it.
        hosts: versions by component; several where several libraries lie side by side, and any may be loaded.
    """

    kind: str
    hosts: tuple[Mapping[str, str], ...]


def _device(surroundings: Surroundings) -> Device | None:
    """The board, or the emulator where no board is; None where there is neither."""
    tree = surroundings.tree
    seen = surroundings.native_library.look(is_held=is_held(tree)) if tree.is_live else Sighting()
    usable = seen.place is not None and seen.unusable is None
    server = {"server": __version__}
    if not boards_of(tree):
        return Device(EMULATOR, ({**server, **seen.versions},)) if usable and seen.is_emulator else None
    driver = {"driver": tree.text(f"{DRIVER_MODULE}/version") or ""}
    if usable and not seen.is_emulator and "calrt" in seen.versions:
        return Device(BOARD, ({**server, **driver, **seen.versions},))
    versions = sorted(set(found_libraries(tree).values())) or [""]
    return Device(BOARD, tuple({**server, **driver, "calrt": version} for version in versions))


def _manifests(surroundings: Surroundings, kind: str) -> list[Manifest]:
    """Of the packages for that kind; other checks say what is wrong with one that cannot be read."""
    found = [each.manifest for each in surroundings.packages() if each.manifest is not None]
    for directory in surroundings.packages_elsewhere:
        with suppress(PackageError):
            found.append(Manifest.load(directory))
    return [manifest for manifest in found if manifest.target == kind]


def _problems(device: Device, manifests: list[Manifest]) -> Iterator[str]:
    for host in device.hosts:
        # Which CalcoreRT a board has, only the board says; a row that names one is for the load to compare.
        components = [each for each in HOST_COMPONENTS if each != "calcore_rt" or each in host]
        problem = untried(device.kind, host, components)
        if problem is not None:
            yield problem
            continue
        for manifest in manifests:
            versions = dict(host)
            if manifest.binary is not None:
                versions |= {"compiler": manifest.binary.compiler, "calbin_schema": manifest.binary.version}
                versions.setdefault("calcore_rt", manifest.binary.calcore_rt)
            problem = untried(device.kind, versions)
            if problem is not None:
                yield f"{manifest.name}: {problem}"


def _examine(surroundings: Surroundings) -> Finding:
    device = _device(surroundings)
    if device is None:
        return ok(NO_BOARD)
    manifests = _manifests(surroundings, device.kind)
    problem = next(_problems(device, manifests), None)
    if problem is not None:
        return warning(problem, todo=ADVICE)
    host = device.hosts[0]
    versions = ", ".join(f"{called} {host[component]}" for component, called in CALLED.items() if host.get(component))
    whose = "the board" if device.kind == BOARD else f"the emulator ({EMULATOR})"
    count = f"{len(manifests)} for {whose}" if manifests else f"no package for {whose}"
    return ok(f"{count}; {versions}: versions that were seen together")


CHECK = Check(
    name="compatibility",
    group=Group.BOARD,
    why="the parts are versioned apart and do not check one another; another combination may answer wrongly",
    examine=_examine,
    extra_s=2 * PROCESS_S,
)
