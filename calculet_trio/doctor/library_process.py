"""The process that loads a library which nobody has looked into: its answer is one line of JSON, or its end is one.

Loading runs whatever the library's authors put into its constructors: it may crash, hang, print, take memory, or fork.
So it happens here, alone, under limits of the kernel's, and the doctor waits for a bounded time
(`calculet_trio.doctor.native_library`). No device is opened, with one exception: the emulator's, which is a piece of
this process's own memory, behind a lock file of its own. It alone can be asked for its versions and disturbs nobody.

    python -P -m calculet_trio.doctor.library_process LIBRARY LOCK SECONDS
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
from ctypes import byref, c_void_p
from pathlib import Path
from typing import Any, Final

from calculet_trio.runtimes import calrt_abi as abi

DATA_BYTES_MAX: Final = 1 << 30
"""What the process may have of writable memory; Python and the emulator take some 30 MB."""
BEGUN: Final = b"+"
"""Said before the library is loaded: what happens from then on is its doing."""
ADDRESSES: Final = Path("/proc/self/maps")
VENDOR: Final = "libcalrt"


def main() -> None:
    """Look at one library and say what was seen."""
    library, lock, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3])
    # The default action of an alarm ends the process, wherever in foreign code it is; nobody has to be there to do it.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(seconds)
    for limit, most in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_DATA, DATA_BYTES_MAX)):
        hard = resource.getrlimit(limit)[1]  # who has less already keeps that
        bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(limit, (bound, bound))
    answer = os.dup(1)  # what a constructor prints goes nowhere
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.write(answer, BEGUN)
    os.write(answer, json.dumps(look_at(library, lock)).encode() + b"\n")
    os._exit(0)  # destructors are foreign code, too


def look_at(path: str, lock: str) -> dict[str, Any]:
    """What the library is, as JSON; ``error`` is the loader's words where it cannot be loaded.

    Args:
        path: its file.
        lock: a file that the emulator may lock; empty where none could be made.
    """
    try:
        library = abi.load(ctypes.CDLL, path)
    except OSError as error:
        return {"error": str(error)}
    calls = [f"calculet_{name}" for name in abi.CALLS]
    seen: dict[str, Any] = {
        "missing": [call for call in calls if not abi.has(library, call)],
        "is_emulator": abi.has(library, abi.MARKER),
        "vendor": _vendor_file(),
    }
    if abi.has(library, "calculet_abi_version"):
        library.calculet_abi_version.restype = ctypes.c_uint32
        seen["abi"] = library.calculet_abi_version()
    if lock and seen["is_emulator"] and not seen["missing"] and seen["abi"] == abi.ABI_VERSION:
        seen["versions"] = _versions(path, lock)
    return seen


def _vendor_file() -> str | None:
    """The file of the vendor's library that the loader has taken; None where that cannot be seen."""
    try:
        lines = os.fsdecode(ADDRESSES.read_bytes()).splitlines()
    except OSError:  # no /proc is mounted
        return None
    files = (line.split(maxsplit=5)[5] for line in lines if "/" in line)
    return next((file for file in files if os.path.basename(file).startswith(VENDOR)), None)  # noqa: PTH119


def _versions(path: str, lock: str) -> dict[str, str]:
    """What the emulator's device says of itself; empty where it does not open."""
    calls = abi.bind(path)
    device = c_void_p()
    if calls.device_open(byref(abi.OpenOptions(lock_path=os.fsencode(lock))), byref(device)):
        return {}
    info = abi.DeviceInfo()
    if calls.device_inspect(device, byref(info)):
        return {}
    told = {"calrt": info.calrt_version, "driver": info.driver_version, "calcore_rt": info.calcore_version}
    return {component: text.decode("utf-8", "replace") for component, text in told.items() if text}


if __name__ == "__main__":
    main()
