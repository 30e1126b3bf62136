"""The one table of exit codes; scripts and the system unit rely on it (README.md shows it to people).

Source: sysexits.h where it has a code; EX_CONFIG (78) and EX_TEMPFAIL (75) are what the unit's
``RestartPreventExitStatus`` and ``RestartForceExitStatus`` name.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from calculet_trio.errors import (
    CalculetError,
    ConfigurationRefused,
    DeviceLost,
    DeviceNotQuiet,
    LoadBroken,
    OperationFailed,
    OperationRefused,
    PackageError,
    Unavailable,
)


class ExitCode(IntEnum):
    DONE = 0
    """Done; a verdict is PASS."""
    FAIL = 1
    """A verdict is FAIL: a gate, a doctor's check, a verification."""
    USAGE = 2
    """The command line is wrong."""
    INCONCLUSIVE = 3
    """A gate whose measurements spread too far to say."""
    UNAVAILABLE = 69
    """A port is taken, a device locked, a disk full, a hub or an index out of reach."""
    DEFECT = 70
    """Something this program did not expect of itself."""
    RESTART = 75
    """The device's state is unknown or it hangs; a fresh process must begin anew."""
    NOT_QUIET = 76
    """After the restart the device still is not quiet."""
    REFUSED = 78
    """The configuration or a package is refused; starting again changes nothing."""
    INTERRUPTED = 130
    """Ctrl-C, as shells report it."""


CODES: Final[tuple[tuple[type[CalculetError], ExitCode], ...]] = (
    (ConfigurationRefused, ExitCode.REFUSED),
    (PackageError, ExitCode.REFUSED),
    (LoadBroken, ExitCode.FAIL),
    (Unavailable, ExitCode.UNAVAILABLE),
    (OperationRefused, ExitCode.UNAVAILABLE),
    (OperationFailed, ExitCode.FAIL),
    (DeviceLost, ExitCode.RESTART),
    (DeviceNotQuiet, ExitCode.NOT_QUIET),
)


def exit_code_of(error: CalculetError) -> ExitCode:
    """The code of the most special class in `CODES` that ``error`` is of; `ExitCode.DEFECT` if of none."""
    found = dict(CODES)
    return next((found[kind] for kind in type(error).__mro__ if kind in found), ExitCode.DEFECT)
