"""Daemon: everything that one is made of, as ``cli.wiring`` chooses it; `calculet_trio.shell.lifecycle` runs it.

Source: ARCHITECTURE.md "Rooms".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import attrs
import trio

from calculet_trio.core.device_reading import DeviceReading
from calculet_trio.core.effects import Effect
from calculet_trio.core.events import Event
from calculet_trio.core.fault_record import FaultMemory
from calculet_trio.core.policy import Policy, ResidencyPolicy, TenantPolicy
from calculet_trio.core.snapshot import CoreSnapshot
from calculet_trio.runtimes.port import Runtime
from calculet_trio.shell.blocking import BlockingRunner, ThreadRunner
from calculet_trio.shell.control import DumpSources
from calculet_trio.shell.executor import JobTimeout
from calculet_trio.shell.fault_history import FaultHistory
from calculet_trio.shell.loading import ModelSource
from calculet_trio.shell.model_manager import FindModel
from calculet_trio.shell.operations import Operations
from calculet_trio.shell.quiet import QUIET_S
from calculet_trio.shell.service import Service


class AdminServer(Protocol):
    """The admin socket, as the shell sees it: ``admin`` bound to its path."""

    async def __call__(self, operations: Operations, stop: trio.Event, *, task_status: trio.TaskStatus[None]) -> None:
        """Serve until ``stop``; long operations it began live in it, and end with it."""


class HttpServer(Protocol):
    """The surface, as the shell sees it: ``api.server`` bound to its address."""

    async def __call__(self, service: Service, stop: trio.Event, *, task_status: trio.TaskStatus[int]) -> None:
        """Serve until ``stop``: close the listener at once, let open replies end. Started with its port."""


class Observer(Protocol):
    """Who counts what happens; `calculet_trio.observe.metrics.ServiceMetrics` is the real one."""

    def watch(self, snapshot: Callable[[], CoreSnapshot], clock: Callable[[], float]) -> None:
        """Where counts can be read from now on."""

    def watch_device(self, reading: Callable[[], DeviceReading | None], memory: Callable[[], FaultMemory]) -> None:
        """Where the device's last reading, and what is remembered of its faults, can be read from now on."""

    def heard(self, event: Event, now: float) -> None:
        """The core was told this, then."""

    def saw(self, effect: Effect, now: float) -> None:
        """The core decided this."""

    def load_step(self, step: str, taken_s: float) -> None:
        """A step of a model's load, or of its unload, has ended."""


@attrs.frozen(kw_only=True)
class Daemon:
    """Everything that ``cli.wiring`` chose.

    Args:
        runtime: the device.
        source: the model to serve.
        beside: models that are served beside it, or in turns with it.
        residency: how they share the device.
        policies: of aliases that have their own: see `calculet_trio.core.policy.Policy`.
        find: finds packages for operators' loads and rollbacks; None where they come from no store.
        policy: the core's numbers.
        metrics: told of events, effects and jobs.
        serve_http: the surface.
        history: faults and resets across restarts; by default those of this process alone.
        reload_tenants: reads tenants' weights and limits anew; blocks; raises
            `calculet_trio.errors.ConfigurationRefused` if they are not valid. None where there is nothing to read.
        on_ready: called once, with the bound port, when a chat request would be answered.
        drain_s: how long open streams may go on after a SIGTERM.
        job_timeout: the bound of one device job.
        watchdog_s: how long nothing may go on before the process ends itself; None: for ever.
        quiet_s: how long a device that a process before left at work may take to become quiet.
        watches_device: whether the device is asked for status and memory now and then.
        backlog_bytes_max: unread output of one stream before it is given up.
        runner: how blocking calls run.
        serve_admin: the admin socket; None for none.
        dump: where debug dumps go, and what is in them; None for none.
    """

    runtime: Runtime
    source: ModelSource
    policy: Policy
    metrics: Observer
    serve_http: HttpServer
    history: FaultHistory = attrs.field(factory=FaultHistory)
    reload_tenants: Callable[[], Mapping[str, TenantPolicy]] | None = None
    on_ready: Callable[[int], None] = lambda _port: None
    drain_s: float = 30.0
    job_timeout: JobTimeout = attrs.field(factory=JobTimeout)
    watchdog_s: float | None = None
    quiet_s: float = QUIET_S
    watches_device: bool = False
    backlog_bytes_max: int = 1 << 20
    runner: BlockingRunner = attrs.field(factory=ThreadRunner)
    beside: tuple[ModelSource, ...] = ()
    residency: ResidencyPolicy = attrs.field(factory=ResidencyPolicy)
    policies: Mapping[str, Policy] = attrs.field(factory=dict)
    find: FindModel | None = None
    serve_admin: AdminServer | None = None
    dump: DumpSources | None = None

    @property
    def turn_s(self) -> float:
        """For how long open replies may go on when another model's turn has come: none of them is cut by it."""
        own_s = (tenant.deadline_s for tenant in self.policy.tenants.values() if tenant.deadline_s is not None)
        return max(self.drain_s, self.policy.admission.deadline_default_s, *own_s)
