"""``listen``: whether the address to listen on is this machine's, and who can reach it."""

from __future__ import annotations

from calculet_trio.doctor.addresses import is_loopback, try_bind
from calculet_trio.doctor.check import Check, Group
from calculet_trio.doctor.finding import Finding, failure, ok, warning
from calculet_trio.doctor.surroundings import Surroundings


def _examine(surroundings: Surroundings) -> Finding:
    host = surroundings.host
    try:
        found = try_bind(host, 0)
    except OSError as error:
        return failure(
            f"{host} cannot be listened on: {error.strerror or error}",
            todo="serve on 127.0.0.1, or on an address that `ip address` shows",
        )
    remote = [address for address in found if not is_loopback(address)]
    if remote and surroundings.asks_for_keys:
        return ok(f"{host} ({remote[0]}) can be reached from other machines; clients must show a key")
    if remote:
        return warning(
            f"{host} ({remote[0]}) can be reached from other machines, and the service asks for no key",
            todo="give the tenants keys in the configuration, or serve on 127.0.0.1 behind a proxy that asks",
        )
    return ok(f"{host} is reachable from this machine alone")


CHECK = Check(
    name="listen",
    group=Group.CONFIGURATION,
    why="whoever reaches the address can use the model",
    examine=_examine,
)
