"""``port``: free for the service to take, or taken by it."""

from __future__ import annotations

import errno

from calculet_trio.doctor.addresses import shown, try_bind
from calculet_trio.doctor.check import Check, Group
from calculet_trio.doctor.finding import Finding, failure, ok
from calculet_trio.doctor.service.probe import is_ours
from calculet_trio.doctor.surroundings import Surroundings


def _examine(surroundings: Surroundings) -> Finding:
    host, port = surroundings.host, surroundings.port
    where = shown(host, port)
    try:
        try_bind(host, port)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            return failure(
                f"{where} cannot be taken: {error.strerror or error}",
                todo="choose a port above 1023 and an address of this machine",
            )
        return _taken(host, port, where)
    return ok(f"{where} is free")


def _taken(host: str, port: int, where: str) -> Finding:
    todo = f"`ss -ltnp 'sport = :{port}'` names the program; end it, or serve with another --port"
    try:
        if is_ours(host, port):
            return ok(f"{where} is held by calculet-trio")
    except TimeoutError:
        return failure(f"{where} is taken by a program that does not answer", todo=todo)
    return failure(f"{where} is taken by another program", todo=todo)


CHECK = Check(
    name="port",
    group=Group.SERVICE,
    why="the service cannot start on a port that another program holds",
    examine=_examine,
)
