"""A living daemon, without HTTP, over a shelf of scripted models."""

from __future__ import annotations

from contextlib import asynccontextmanager

import attrs
import trio

from calculet_trio.core.policy import Policy, ResidencyPolicy
from calculet_trio.errors import PackageError
from calculet_trio.observe.metrics import ServiceMetrics
from calculet_trio.shell import lifecycle
from calculet_trio.shell.daemon import Daemon
from calculet_trio.shell.executor import JobTimeout
from calculet_trio.shell.operations import Unheard
from tests.shell.house import asking, silence
from tests.shell.shelf import Shelf

SCRIPTS = {
    "old": {"replies": [{"when": "gated", "tokens": [{"text": "old", "gate": "g"}, " end"]}, {"tokens": ["old"]}]},
    "new": {"replies": [{"tokens": ["new"]}]},
    "other": {"replies": [{"tokens": ["other"]}]},
}


class Heard(Unheard):
    def __init__(self):
        self.lines = []
        self.returns = True

    def __call__(self, line):
        self.lines.append(line)

    def past_return(self):
        self.returns = False


@attrs.frozen
class House:
    shelf: Shelf
    service: object
    alive: lifecycle._House
    nursery: trio.Nursery
    port: int

    @property
    def models(self):
        return self.alive._models

    def status(self, alias="m"):
        return next(status for status in self.models.board.statuses() if status.alias == alias)

    def snapshot(self):
        return self.alive._loop.snapshot()

    async def ask(self, alias, prompt="hi", **kwargs):
        """The whole reply of one request."""
        async with self.service.open(attrs.evolve(asking(prompt, **kwargs), alias=alias)) as handle:
            return "".join([output.text async for output in handle])

    async def load(self, package, report=None):
        return await self.models.load_named("m", package, report or Heard())


@asynccontextmanager
async def living(
    *,
    holds_several=False,
    beside=(),
    residency=None,
    policy=None,
    surface=None,
    drain_s=5.0,
    job_s=10.0,
    templates=None,
    serves=None,
):
    """A daemon that serves ``m`` from ``old``, and aliases ``beside`` it that are called like their packages.

    ``surface`` serves it over HTTP; without one a test holds the service itself.
    """
    shelf = Shelf(SCRIPTS, holds_several=holds_several)
    shelf.templates.update(templates or {})
    shelf.serves.update(serves or {})
    ready, ended, seen, ports = trio.Event(), trio.Event(), [], []

    async def serve_http(service, stop, *, task_status):
        seen.append(service)
        if surface is not None:
            await surface(service, stop, task_status=task_status)
            return
        task_status.started(0)
        await stop.wait()

    def is_ready(port):
        ports.append(port)
        ready.set()

    def find(alias, package):
        if package is not None and package not in SCRIPTS:
            raise PackageError(f"there is no package {package!r}")
        return shelf.source(alias, package or "old")

    daemon = Daemon(
        runtime=shelf,
        source=shelf.source("m", "old"),
        beside=tuple(shelf.source(name, name) for name in beside),
        residency=residency or ResidencyPolicy(),
        policy=policy or Policy(),
        metrics=ServiceMetrics(),
        serve_http=serve_http,
        on_ready=is_ready,
        drain_s=drain_s,
        job_timeout=JobTimeout(base_s=job_s, per_token_s=0.0),
        find=find,
    )
    alive = lifecycle._House(daemon, shelf.open())

    async def live():
        try:
            await alive.live(signals=silence())
        finally:
            shelf.close()
            ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(live)
        await ready.wait()
        yield House(shelf, seen[0], alive, nursery, ports[0])
        alive._begin_drain(drain_s)
        with trio.fail_after(30):
            await ended.wait()
    assert len(alive._dispatcher) == len(alive._samplers) == 0
