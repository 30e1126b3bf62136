"""A world: a population of clients, the production daemon, and an emulated board that may fail.

The daemon is `calculet_trio.shell.lifecycle.run` as it is; only its clock, its runner, its runtime and its
surface are the world's. When it ends before its clients do, the world starts it again, as systemd would.

Source: SPEC section 3–9; S §17.3.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice
from typing import Final

import attrs
import numpy as np
import trio

from calculet_trio.core.evidence import (
    BATCH_CONDITIONS,
    CHUNKED_PREFILL_CONDITIONS,
    REPLY_REUSE_CONDITIONS,
    Combination,
    Evidence,
    EvidenceRecord,
)
from calculet_trio.core.fault_kinds import FaultKind
from calculet_trio.core.policy import Policy, TenantPolicy
from calculet_trio.core.retention import ReuseCounts
from calculet_trio.errors import DeviceLost
from calculet_trio.runtimes.device_model import DeviceModel
from calculet_trio.runtimes.emulated import EmulatedRuntime
from calculet_trio.runtimes.faults import FaultyRuntime, Rates
from calculet_trio.runtimes.pace import VirtualPace
from calculet_trio.runtimes.port import DeviceInfo
from calculet_trio.shell.daemon import Daemon
from calculet_trio.shell.executor import JobTimeout
from calculet_trio.shell.front_desk import FrontDesk
from calculet_trio.shell.lifecycle import run as run_daemon
from calculet_trio.shell.service import Service
from calculet_trio.sim.checkers.conservation import check_conservation
from calculet_trio.sim.checkers.diligence import DiligenceChecker
from calculet_trio.sim.checkers.drain import DrainChecker
from calculet_trio.sim.checkers.fairness import FairnessChecker
from calculet_trio.sim.checkers.generations import GenerationChecker
from calculet_trio.sim.checkers.histories import HistoryChecker
from calculet_trio.sim.checkers.lanes import LaneChecker
from calculet_trio.sim.checkers.leftovers import check_desk, check_device
from calculet_trio.sim.checkers.requests import RequestChecker
from calculet_trio.sim.checkers.violation import require
from calculet_trio.sim.checkers.watch import Watch
from calculet_trio.sim.determinism import Trace, seeded_scheduling
from calculet_trio.sim.models import Models, PackageShelf, operate
from calculet_trio.sim.population import Population
from calculet_trio.sim.record import Record
from calculet_trio.sim.virtual_time import LeapClock, VirtualRunner
from calculet_trio.sim.visitors import Visitors

_RESTART_S: Final = 1.0
_LINGER_S: Final = 0.5
"""A closed listener takes no connection; for so long those that are open may still send a request."""
_AFTER_S: Final = 900.0
"""How long after the last arrival the world may take to end: longer than any deadline, drain and job."""
_JOB_TIMEOUT: Final = JobTimeout()
_FAREWELL_S: Final = 10.0
"""How long after its drain's deadline, and its last job, a daemon may still be there."""


@attrs.frozen
class Reload:
    """SIGHUP at a moment: tenants have these policies from then on."""

    moment_s: float
    tenants: Mapping[str, TenantPolicy]


@attrs.frozen(kw_only=True)
class WorldSpec:
    """Everything that a run depends on.

    Args:
        seed: of arrivals, lengths, behaviour, faults, jitter and the order of tasks.
        seconds: how long clients come.
        device: the board.
        policy: the daemon's numbers.
        population: who comes.
        faults: kinds and rates per call.
        visits_max: only the first so many clients come; None for all.
        chunked: whether the package has earned prefill in pieces.
        reuse: whether it has earned prefix reuse, of prompts and replies.
        reloads: in order of their moments.
        restarts_s: moments of a SIGTERM in the middle, in order; the daemon drains and is started again.
        models: aliases, packages and what operators do with them; by default a single one that stays.
        drain_s: how long open streams may go on after a SIGTERM.
        backlog_bytes_max: unread output of one stream before it is given up.
    """

    seed: int
    seconds: float
    device: DeviceModel
    policy: Policy
    population: Population
    faults: Mapping[FaultKind, float]
    visits_max: int | None = None
    chunked: bool = False
    reuse: bool = False
    reloads: tuple[Reload, ...] = ()
    restarts_s: tuple[float, ...] = ()
    models: Models = attrs.field(factory=Models)
    drain_s: float = 20.0
    backlog_bytes_max: int = 1 << 20


@attrs.frozen(kw_only=True)
class Outcome:
    """What a world came to, if no checker objected.

    Args:
        spec: what was run.
        trace_hash: of every event and effect, in order: the same for the same spec; None if nobody asked.
        steps: events and effects.
        ended_s: virtual seconds.
        lives: daemons, one after the other.
        losses: those that lost their device.
        resets, replays: of the device, and of sequences after them.
        reuse: what retained lanes came to.
        clients: how the clients' requests ended, in words.
        faults: how often each fault came about.
        switches: how often a model took another's place.
        compared: how often two tenants' accounts were held against the fairness bound.
        record: measurements over time, for reports.
    """

    spec: WorldSpec
    trace_hash: str | None
    steps: int
    ended_s: float
    lives: int
    losses: int
    resets: int
    replays: int
    reuse: ReuseCounts
    clients: Counter[str]
    faults: Counter[FaultKind]
    switches: int
    compared: int
    record: Record


def run_world(
    spec: WorldSpec, *, hashed: bool = False, on_progress: Callable[[float], None] = lambda _moment_s: None
) -> Outcome:
    """Run one world from beginning to end, in this thread, as fast as it goes.

    Args:
        spec: the world.
        hashed: whether to hash everything that happens, to compare runs; it costs a tenth.
        on_progress: told the virtual moment now and then.

    Raises:
        calculet_trio.sim.checkers.violation.Violated: a checker fired; perhaps inside an exception group, as
            is any error of the daemon.
    """
    world = _World(spec, Trace() if hashed else None, on_progress)
    with seeded_scheduling(spec.seed):
        trio.run(world.live, clock=world.clock, restrict_keyboard_interrupt_to_checkpoints=True)
    return world.outcome()


class _Life:
    """One daemon, from its start to its end, with its device and those who watch it."""

    def __init__(self, spec: WorldSpec, number: int, trace: Trace | None, clock: LeapClock) -> None:
        self._spec = spec
        pace = VirtualPace(clock.current_time)
        models = spec.models
        self.device = EmulatedRuntime(spec.device, pace, seed=spec.seed + number, models=models.on(spec.device))
        self.runtime = FaultyRuntime(self.device, Rates(spec.faults, seed=spec.seed + 7919 * number), pace)
        self.runner = VirtualRunner(pace, clock)
        self.desk: FrontDesk | None = None
        device = spec.device
        self.requests = RequestChecker(spec.policy)
        self.lanes = LaneChecker(isolation=device.lane_fault_isolation)
        self.fairness = FairnessChecker(spec.policy, lanes=device.lanes, context_tokens=device.context_tokens)
        longest_job_s = _JOB_TIMEOUT.base_s + _JOB_TIMEOUT.per_token_s * device.context_tokens
        drain = DrainChecker(farewell_s=longest_job_s + _FAREWELL_S)
        diligence = DiligenceChecker(spec.policy, lanes=device.lanes)
        self.generations = GenerationChecker(dwell_s=models.dwell_s)
        checkers = (self.requests, self.lanes, HistoryChecker(), drain, self.generations)
        # These two know one model that is always there.
        steady = () if models.are_exchanged else (self.fairness, diligence)
        self.watch = Watch((*checkers, *steady), trace)
        self.shelf = PackageShelf(models, device, partial(_evidence, spec))

    def conclude(self, now: float, *, device_lost: bool) -> None:
        """Hold everything that can be held once the daemon has ended."""
        self.watch.conclude(now, device_lost=device_lost)
        self.lanes.compare(self.watch.snapshot())
        if self.desk is not None:
            check_desk(self.desk)
        if not device_lost:
            check_device(self.device, unknown_lanes=self.lanes.unknown)


class _World:
    def __init__(self, spec: WorldSpec, trace: Trace | None, on_progress: Callable[[float], None]) -> None:
        self.clock = LeapClock()
        self._spec = spec
        self._trace = trace
        self._on_progress = on_progress
        self._rng = np.random.default_rng(spec.seed)
        self._record = Record()
        self._visitors = Visitors(self._record, spec.models.voices())
        self._operations = list(spec.models.operations)
        self._all_came = trio.Event()
        self._reloads = list(spec.reloads)
        self._restarts_s = list(spec.restarts_s)
        self._tenants = spec.policy.tenants
        self._faults: Counter[FaultKind] = Counter()
        self._said: Counter[str] = Counter()
        self._arrived = self._steps = self._lives = self._losses = 0
        self._compared = self._switches = self._resets = self._replays = 0
        self._reuse = ReuseCounts()
        self._ended_s = 0.0

    def outcome(self) -> Outcome:
        return Outcome(
            spec=self._spec,
            trace_hash=None if self._trace is None else self._trace.digest(),
            steps=self._steps,
            ended_s=self._ended_s,
            lives=self._lives,
            losses=self._losses,
            resets=self._resets,
            replays=self._replays,
            reuse=self._reuse,
            clients=self._visitors.endings,
            faults=self._faults,
            switches=self._switches,
            compared=self._compared,
            record=self._record,
        )

    async def live(self) -> None:
        tasks_before = trio.lowlevel.current_statistics().tasks_living
        with trio.move_on_after(self._spec.seconds + _AFTER_S) as world:
            async with trio.open_nursery() as clients:
                clients.start_soon(self._let_them_come, clients)
                while True:
                    await self._live_once()
                    if self._all_came.is_set():
                        break
                    await trio.sleep(_RESTART_S)
        self._ended_s = trio.current_time()
        require(not world.cancelled_caught, f"the world has not ended {_AFTER_S:g} s after its last client came")
        tasks = trio.lowlevel.current_statistics().tasks_living - tasks_before
        require(tasks == 0, f"{tasks} tasks are left of the world")
        check_conservation(came=self._visitors.came, heard=self._visitors.heard, arrived=self._arrived, said=self._said)

    async def _live_once(self) -> None:
        """One life of the daemon."""
        signals, arriving = trio.open_memory_channel[int](8)
        spec = attrs.evolve(self._spec, policy=attrs.evolve(self._spec.policy, tenants=self._tenants))
        life = _Life(spec, self._lives, self._trace, self.clock)
        self._lives += 1
        device_lost = False
        try:
            await run_daemon(self._daemon(life, spec, signals), signals=arriving)
        except* DeviceLost:
            device_lost = True
        self._visitors.service = None
        self._faults.update(life.runtime.happened)
        self._said.update(life.requests.endings)
        self._arrived += life.requests.arrived
        self._steps += life.watch.steps
        self._compared += life.fairness.compared
        self._switches += life.generations.switches
        counts = life.watch.snapshot()
        self._resets += counts.resets
        self._replays += counts.replays
        self._reuse = self._reuse.with_more(counts.reuse)
        now = trio.current_time()
        life.conclude(now, device_lost=device_lost)
        if device_lost:
            self._losses += 1
            self._record.restarted(now)

    def _daemon(self, life: _Life, spec: WorldSpec, signals: trio.MemorySendChannel[int]) -> Daemon:
        first, *others = (life.shelf.first_of(alias) for alias in spec.models.aliases)
        return Daemon(
            runtime=life.runtime,
            source=first,
            beside=tuple(others),
            residency=spec.models.residency,
            find=life.shelf.find,
            serve_admin=partial(operate, due=self._operations) if spec.models.operations else None,
            policy=spec.policy,
            metrics=self._record.beside(life.watch),
            serve_http=partial(self._surface, life, signals),
            reload_tenants=lambda: self._tenants,
            drain_s=spec.drain_s,
            job_timeout=_JOB_TIMEOUT,
            backlog_bytes_max=spec.backlog_bytes_max,
            runner=life.runner,
        )

    async def _surface(
        self,
        life: _Life,
        signals: trio.MemorySendChannel[int],
        service: Service,
        stop: trio.Event,
        *,
        task_status: trio.TaskStatus[int],
    ) -> None:
        """In place of HTTP: clients find the service here, and signals come at their moments."""
        assert isinstance(service, FrontDesk)
        task_status.started(0)
        life.desk = self._visitors.service = service
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._reload, signals)
            nursery.start_soon(self._restart, signals)
            nursery.start_soon(self._end_when_all_came, signals)
            await stop.wait()
            await trio.sleep(_LINGER_S)
            nursery.cancel_scope.cancel()
        self._visitors.service = None

    async def _let_them_come(self, clients: trio.Nursery) -> None:
        """Clients come at their times, whether or not a daemon is there."""
        for visit in islice(self._spec.population.visits(self._rng), self._spec.visits_max):
            if visit.arrival_s >= self._spec.seconds:
                break
            await trio.sleep_until(visit.arrival_s)
            clients.start_soon(self._visitors.visit, visit, int(self._rng.integers(1 << 62)))
            self._on_progress(trio.current_time())
        self._all_came.set()

    async def _reload(self, signals: trio.MemorySendChannel[int]) -> None:
        """SIGHUP at its moments; one that fell between two daemons is read by the second when it starts."""
        while self._reloads:
            await trio.sleep_until(self._reloads[0].moment_s)
            self._tenants = self._reloads.pop(0).tenants
            signals.send_nowait(signal.SIGHUP)

    async def _restart(self, signals: trio.MemorySendChannel[int]) -> None:
        if self._restarts_s:
            await trio.sleep_until(self._restarts_s[0])
            del self._restarts_s[0]
            signals.send_nowait(signal.SIGTERM)

    async def _end_when_all_came(self, signals: trio.MemorySendChannel[int]) -> None:
        await self._all_came.wait()
        signals.send_nowait(signal.SIGTERM)


def _evidence(spec: WorldSpec, device: DeviceInfo) -> Evidence | None:
    """A record that the world makes up, so that what it is to have earned is tried, and batches still are."""
    earned = (*(CHUNKED_PREFILL_CONDITIONS if spec.chunked else ()), *(REPLY_REUSE_CONDITIONS if spec.reuse else ()))
    if not earned:
        return None
    combination = Combination("emulated", "emulated", device.kind)
    return Evidence(combination, [EvidenceRecord(combination, frozenset((*earned, *BATCH_CONDITIONS)), "made up")])
