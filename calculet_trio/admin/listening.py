"""The admin socket's place: a Unix socket of mode 0600, taken before the rest of the admin plane is there.

Source: API.md (two sockets); SPEC section 15.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from calculet_trio.errors import Unavailable

CONNECTIONS_MAX: Final = 16
"""Operators are few; one more is turned away by closing."""
PATH_BYTES_MAX: Final = 107
"""What a Unix socket's address holds."""


def bound_socket(path: Path) -> socket.socket:
    """A listening socket at ``path``, for this user alone; one that a dead process left behind is replaced.

    Raises:
        calculet_trio.errors.Unavailable: another daemon listens there, something else is there, or it is no place
            for a socket.
    """
    path_bytes = len(os.fsencode(path))
    if path_bytes > PATH_BYTES_MAX:
        raise Unavailable(
            f"the admin socket's path has {path_bytes} bytes; at most {PATH_BYTES_MAX} are possible: {path}",
            hint="set admin_socket to a shorter path",
        )
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _clear(path)
        before = os.umask(0o177)
        try:
            listening.bind(str(path))
        finally:
            os.umask(before)
        listening.listen(CONNECTIONS_MAX)
    except OSError as error:
        listening.close()
        raise Unavailable(f"cannot listen at {path}: {error.strerror or error}") from None
    except Unavailable:
        listening.close()
        raise
    return listening


def _clear(path: Path) -> None:
    """Take away a socket at which nobody listens."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise Unavailable(f"{path} is there and is no socket", hint="set admin_socket to another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise Unavailable(
        f"another daemon listens at {path}", hint="stop it, or give each its own admin_socket (and its own device)"
    )


@contextmanager
def held(listening: socket.socket) -> Iterator[None]:
    """Closes the socket at the end, and removes its file unless another daemon has put its own there."""
    path = Path(listening.getsockname())
    ours = path.lstat().st_ino
    try:
        yield
    finally:
        listening.close()
        with suppress(FileNotFoundError):
            if path.lstat().st_ino == ours:
                path.unlink()
