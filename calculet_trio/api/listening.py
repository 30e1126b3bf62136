"""The socket that the service listens at; taken before the rest of the surface is there.

Source: reports B50, B64.
"""

from __future__ import annotations

import socket
from typing import Final

from calculet_trio.api.settings import ConnectionLimits
from calculet_trio.errors import Unavailable

KEEPALIVE_PROBE_S: Final = 60
"""Silence after which the kernel asks whether a peer still exists: one that lost its network never says goodbye."""


def bound_socket(host: str, port: int, limits: ConnectionLimits) -> socket.socket:
    """A listening socket at ``host:port``; port 0 takes any free one.

    Raises:
        calculet_trio.errors.Unavailable: the address is taken, not ours, or not allowed.
    """
    shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # "localhost" may mean both families, and what people type after it is 127.0.0.1.
        family, kind, protocol, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        raise Unavailable(f"{shown} is no address to listen at: {error.strerror or error}") from None
    try:
        # Accepted connections inherit both of the timeouts.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(limits.write_stall_s * 1e3))
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_PROBE_S)
        listening.bind(address)
        listening.listen(limits.backlog)
    except OSError as error:
        listening.close()
        hint = "stop what listens there, or choose another port with --port"
        raise Unavailable(f"cannot listen at {shown}: {error.strerror or error}", hint=hint) from None
    return listening
