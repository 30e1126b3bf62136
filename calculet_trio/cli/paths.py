"""Where this program keeps its things: the XDG directories, which a system unit sets to /var/lib and /run.

Source: XDG Base Directory Specification 0.8; a relative path in its variables is to be ignored.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

PROGRAM: Final = "calculet-trio"


def _base(variable: str, fallback: str) -> Path:
    value = os.environ.get(variable, "")
    base = Path(value) if value.startswith("/") else Path.home() / fallback
    return base / PROGRAM


def package_store() -> Path:
    """Packages: data and no cache, since a rollback needs the one before."""
    return _base("XDG_DATA_HOME", ".local/share") / "packages"


def downloads() -> Path:
    """What was fetched and can be fetched again."""
    return _base("XDG_CACHE_HOME", ".cache") / "downloads"


def binding(kind: str) -> Path:
    """What ``calculet-trio binding build`` has built for one kind of library; it can be built again."""
    return _base("XDG_CACHE_HOME", ".cache") / "binding" / kind


def state() -> Path:
    """What must outlive a restart: faults, evidence, the audit log."""
    return _base("XDG_STATE_HOME", ".local/state")


def configuration() -> Path:
    """The service's configuration; it need not exist."""
    return _base("XDG_CONFIG_HOME", ".config") / "service.yaml"


def configuration_there() -> Path | None:
    """The same if anything has that name, be it a link to nothing: only where there is none the defaults hold."""
    path = configuration()
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        pass  # whoever reads it says why it cannot be read
    return path


def keys() -> Path:
    """This machine's signing key, and by custom the public keys that the configuration names."""
    return _base("XDG_CONFIG_HOME", ".config") / "keys"


def admin_socket() -> Path:
    """Where operators' commands reach the daemon; beside the state, where the session has no runtime directory."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    return (Path(runtime) / PROGRAM if runtime.startswith("/") else state()) / "admin.sock"
