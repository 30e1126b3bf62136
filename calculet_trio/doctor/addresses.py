"""The service's address, as the system's resolver sees it."""

from __future__ import annotations

import errno
import ipaddress
import socket
from typing import Final

LOOPBACK_OF: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def resolved(host: str) -> list[tuple[socket.AddressFamily, str]]:
    """The numeric addresses of ``host``, in the resolver's order.

    Raises:
        OSError: nobody knows the name, or it cannot be one.
    """
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except UnicodeError as error:
        raise OSError(f"{host!r} cannot be a host's name") from error
    return [(family, str(address[0])) for family, _, _, _, address in found]


def try_bind(host: str, port: int) -> list[str]:
    """Take the port and let it go at once, without listening.

    Returns:
        The addresses of ``host`` where that works: a name may have one of a family that this machine has not.

    Raises:
        OSError: the port is taken on one of them, or none works: what the system says against it.
    """
    taken: list[str] = []
    refusal: OSError | None = None
    for family, address in resolved(host):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                # As the server does: connections of a service that just ended do not block its port.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((address, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise
            refusal = error
        else:
            taken.append(address)
    if not taken and refusal is not None:
        raise refusal
    return taken


def is_loopback(address: str) -> bool:
    """Whether a numeric address is reached from this machine alone."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def to_connect(host: str) -> str:
    """Where a client on this machine reaches a server that listens on ``host``."""
    return LOOPBACK_OF.get(host, host)


def shown(host: str, port: int) -> str:
    """``host:port`` as it stands in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
