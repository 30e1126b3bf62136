"""Which versions were seen to work together: the compatibility matrix, as data.

Server, CalRT, driver, CalcoreRT, compiler and calbin schema are versioned apart from each other and do not check one
another. A combination that no row names may answer, and answer wrongly; it is refused unless the operator says so.

Source: SPEC section 14 (A §3, "a version list"; A §4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import attrs

BOARD: Final = "calculet"
EMULATOR: Final = "calrt-emulator"
"""Kinds of device that run calbins, as `DeviceInfo.kind` says them; each has rows below."""
HOST_COMPONENTS: Final = ("server", "calrt", "driver", "calcore_rt")
"""What is known without a package."""
COMPONENTS: Final = (*HOST_COMPONENTS, "compiler", "calbin_schema")


@attrs.frozen(kw_only=True)
class Tried:
    """One row: versions that were seen together.

    Args:
        board_kind: what it is about, as `DeviceInfo.kind` says it.
        server: this program's major and minor version.
        calrt, driver, calcore_rt, compiler, calbin_schema: exact versions; None where nobody has written down which
            one it was, so that any is taken.
        because: who saw it.
    """

    board_kind: str
    server: str
    calrt: str | None
    driver: str | None
    calcore_rt: str | None
    compiler: str | None
    calbin_schema: str | None
    because: str

    def first_difference(self, versions: Mapping[str, str], components: Sequence[str] = COMPONENTS) -> str | None:
        """The first of ``components`` in which ``versions`` are others than the row's; None if there is none."""
        for component in components:
            said, found = getattr(self, component), versions.get(component, "")
            if component == "server":
                found = ".".join(found.split(".")[:2])
            if said is not None and said != found:
                return component
        return None


MATRIX: Final = (
    Tried(
        board_kind=BOARD,
        server="0.1",
        calrt="0.7.6",
        driver="1.0.0",
        calcore_rt=None,
        compiler=None,
        calbin_schema="0.1",
        because="the board that the analysis A describes served with these; its CalcoreRT and compiler are not named "
        "there, and this server has not run on it",
    ),
    Tried(
        board_kind=EMULATOR,
        server="0.1",
        calrt="0.7.6",
        driver=None,
        calcore_rt=None,
        compiler=None,
        calbin_schema="0.1",
        because="the emulator library and its container, which are built from the same sources as this server",
    ),
)
"""Every row."""


def untried(board_kind: str, versions: Mapping[str, str], components: Sequence[str] = COMPONENTS) -> str | None:
    """Why the combination is none of `MATRIX`; None if it is one.

    Args:
        board_kind: of the device.
        versions: by `COMPONENTS`; one that is missing or empty is not known.
        components: those that are compared.
    """
    rows = [row for row in MATRIX if row.board_kind == board_kind]
    differences = [row.first_difference(versions, components) for row in rows]
    if None in differences:
        return None
    found = ", ".join(f"{component} {versions.get(component) or 'unknown'}" for component in components)
    if not rows:
        return f"no combination of versions was ever tried on a {board_kind}: {found}"
    tried = "; ".join(
        f"{component} {getattr(row, component)}" for row, component in zip(rows, differences, strict=True) if component
    )
    return f"this combination of versions was never tried: {found} (tried was {tried})"
