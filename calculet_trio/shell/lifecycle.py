"""The nursery tree: what lives inside what, and in which order it ends.

    daemon            signals, notify
    └ device plane    loop
      └ executor      engines, KV calls
        └ generations load
          └ control   the admin socket, and the long operations begun there
            └ http    the surface; its requests hold handles and nothing of the device

Drain is a state of the core, entered by an event; the nesting is the backstop. The listener closes at once,
what waits is refused, streams finish within the drain time, engines end their jobs, the device is closed.

Source: SPEC section 3, 9; ARCHITECTURE.md "Lifetimes: the nursery tree".
"""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterable, Sequence
from contextlib import ExitStack
from functools import partial

import structlog
import trio

from calculet_trio.core.effects import (
    Abandon,
    AllocateSequence,
    ContinueSequence,
    Deliver,
    Drained,
    Effect,
    PairDegraded,
    PairRestored,
    Quarantined,
    ReleaseSequence,
    ResetDevice,
    ResetRefused,
    SubmitJob,
    Vacated,
    Wanted,
)
from calculet_trio.core.events import CallStuck, DrainBegan, Event, FaultReason, TenantsChanged
from calculet_trio.core.jobs import EngineId
from calculet_trio.core.policy import Policy
from calculet_trio.core.serving import ServingCore
from calculet_trio.errors import ConfigurationRefused, DeviceLost
from calculet_trio.observe.trace import EventTrace
from calculet_trio.runtimes.port import DeviceInfo
from calculet_trio.shell.control import Control
from calculet_trio.shell.custody import Custody
from calculet_trio.shell.daemon import Daemon
from calculet_trio.shell.device_watch import DeviceWatch
from calculet_trio.shell.dispatcher import CompletionDispatcher
from calculet_trio.shell.executor import DeviceExecutor
from calculet_trio.shell.fault_history import FaultHistory
from calculet_trio.shell.fault_notes import FaultNotes
from calculet_trio.shell.front_desk import FrontDesk
from calculet_trio.shell.loading import Loader, LoadPhase
from calculet_trio.shell.loop import CoreLoop
from calculet_trio.shell.model_manager import ModelManager
from calculet_trio.shell.notify import Notifier
from calculet_trio.shell.progress import Progress
from calculet_trio.shell.quiet import see_quiet
from calculet_trio.shell.recovery import DeviceRecovery
from calculet_trio.shell.residents import Residents
from calculet_trio.shell.sampler_pool import SamplerPool
from calculet_trio.shell.switching import Switching
from calculet_trio.shell.watchdog import Watchdog

_log = structlog.get_logger(__name__)

_SWITCH_S = 0.0005
"""How long a thread that computes keeps others waiting; Python's own 5 ms would come between two decode steps."""
_FAREWELL_S = 2.0
"""After the drain time, or a lost device: for streams to be told and connections to be closed."""


async def run(daemon: Daemon, *, signals: AsyncIterable[int] | None = None) -> None:
    """Serve until a signal, then drain.

    Args:
        daemon: see `Daemon`.
        signals: where SIGTERM, SIGINT and SIGHUP come from; None for the process's own.

    Raises:
        calculet_trio.errors.PackageError: the model must not be served.
        calculet_trio.errors.DeviceLost: a job's fate is unknown; clients have been told.
        calculet_trio.errors.DeviceNotQuiet: a process before left the device at work, and it still is.

    **Cancellation**: drains jobs that were submitted; streams are cut.
    """
    sys.setswitchinterval(_SWITCH_S)
    device = await daemon.runner.run_whole(daemon.runtime.open, trio.CapacityLimiter(1))
    house = _House(daemon, device)
    try:
        await house.live(signals=signals)
    finally:
        if not house.is_lost:  # else a call may still be out there: nothing it uses may be freed
            daemon.runtime.close()
            house.custody.give_back()


class _House:
    """One run of a daemon: its parts, connected, and the nurseries they live in."""

    def __init__(self, daemon: Daemon, device: DeviceInfo) -> None:
        self._daemon = daemon
        self._begun_stopping = trio.Event()
        self._drained = trio.Event()
        self._patience = trio.CancelScope()  # with open replies; a second signal or a lost device shortens it
        self._lost: FaultReason | None = None
        engines = _usable(device.engines, daemon.policy)
        core = ServingCore(
            daemon.policy,
            engines,
            policies=daemon.policies,
            dwell_s=daemon.residency.dwell_s,
            past_resets_s=_past_resets_s(daemon.history),
        )
        self._trace = EventTrace()
        self._loop = CoreLoop(core, begin=self._begin, perform=self._perform)
        post = self._loop.post
        self._samplers = SamplerPool()
        self._dispatcher = CompletionDispatcher(self._samplers, post=post, backlog_bytes_max=daemon.backlog_bytes_max)
        self._executor = DeviceExecutor(
            daemon.runtime,
            engines,
            settle=self._samplers.settle,
            post=post,
            decide=self._loop.decide,
            announce=self._loop.announce,
            runner=daemon.runner,
            timeout=daemon.job_timeout,
            synchronous=daemon.policy.executor.synchronous,
            on_stuck=self._call_stuck,
        )
        self._desk = FrontDesk(
            post=post,
            snapshot=self._loop.snapshot,
            dispatcher=self._dispatcher,
            samplers=self._samplers,
            aliases=tuple(source.alias for source in (daemon.source, *daemon.beside)),
            overdue=self._overdue,
            notes=lambda: daemon.history.notes,
            slots=self._loop.slots,
            device=lambda: self._device_watch.reading,
        )
        self._models = self._make_models(daemon, device)
        self._switching = Switching(self._models, post)
        look = partial(self._executor.call, daemon.runtime.status, bound_s=daemon.quiet_s)
        self.custody = Custody(daemon.history, look, quiet_s=daemon.quiet_s, runner=daemon.runner, post=post)
        self._recovery = DeviceRecovery(
            daemon.runtime,
            models=self._models.residents,
            call=self._executor.call,
            see_quiet=partial(see_quiet, look, within_s=daemon.quiet_s),
            post=post,
            history=daemon.history,
            runner=daemon.runner,
        )
        self._fault_notes = FaultNotes(daemon.history, snapshot=self._loop.snapshot, runner=daemon.runner)
        self._device_watch = DeviceWatch(daemon.runtime, self._executor.call, post=post)
        self._progress = Progress(self._loop, self._executor, self._models)
        seen = Progress(self._loop, self._executor, self._models)  # its own: it counts the rounds between two looks
        self._watchdog = None if daemon.watchdog_s is None else Watchdog(daemon.watchdog_s, seen.hindrance)
        self._notifier = Notifier.from_environment(hindrance=self._progress.hindrance, doing=self._doing)
        daemon.metrics.watch(self._loop.snapshot, trio.current_time)
        daemon.metrics.watch_device(lambda: self._device_watch.reading, lambda: daemon.history.memory)
        self._control = self._make_control()

    def _make_control(self) -> Control:
        return Control(
            models=self._models,
            recovery=self._recovery,
            prompts=self._loop.prompts,
            snapshot=self._loop.snapshot,
            post=self._loop.post,
            trace=self._trace,
            begin_drain=lambda: self._begin_drain(self._daemon.drain_s),
            reload=self._reload_tenants,
            runtime=self._daemon.runtime,
            dump=self._daemon.dump,
            runner=self._daemon.runner,
        )

    def _make_models(self, daemon: Daemon, device: DeviceInfo) -> ModelManager:
        loader = Loader(
            daemon.runtime,
            device=device,
            call=self._executor.call,
            call_for_load=self._executor.call_for_load,
            runner=daemon.runner,
            on_phase=self._load_phase_ended,
        )
        return ModelManager(
            loader,
            Residents(loader, post=self._loop.post, desk=self._desk, runner=daemon.runner),
            memory=daemon.runtime.memory,
            post=self._loop.post,
            desk=self._desk,
            drain_s=daemon.drain_s,
            strategy=daemon.residency.strategy,
            turn_s=daemon.turn_s,
            find=daemon.find,
        )

    @property
    def is_lost(self) -> bool:
        """A device call's fate is unknown: the device belongs to whatever that call still does."""
        return self._lost is not None

    async def live(self, *, signals: AsyncIterable[int] | None = None) -> None:
        try:
            async with trio.open_nursery() as daemon:
                daemon.start_soon(self._notifier.run)
                if self._watchdog is not None:
                    daemon.start_soon(self._watchdog.run)
                daemon.start_soon(self._watch_signals, signals)
                async with trio.open_nursery() as device_plane:
                    device_plane.start_soon(self._loop.run)
                    async with trio.open_nursery() as executor:
                        executor.start_soon(self._executor.run)
                        # The synchronous baseline has one thread for everything: nothing may come between its jobs.
                        if self._daemon.watches_device and not self._daemon.policy.executor.synchronous:
                            executor.start_soon(self._device_watch.run)
                        executor.start_soon(self._recovery.run)
                        executor.start_soon(self._fault_notes.run)
                        async with trio.open_nursery() as generations:
                            generations.start_soon(self._switching.run)
                            await self._serve(generations)
                            generations.cancel_scope.cancel()
                        executor.cancel_scope.cancel()
                    device_plane.cancel_scope.cancel()
                daemon.cancel_scope.cancel()
        finally:
            self._desk.close()
            self._notifier.close()
        if self._lost is not None:
            await self.custody.leave_behind()
            raise DeviceLost(
                f"a device job's fate is unknown ({self._lost.value}); only a new process may use the device",
                hint="the service manager restarts it; see the log for the fault",
            )

    async def _serve(self, generations: trio.Nursery) -> None:
        """The control and http nurseries: open before a model is ready, ended by a drain, never waited for in vain."""
        async with trio.open_nursery() as control:
            if self._daemon.serve_admin is not None:
                await control.start(self._daemon.serve_admin, self._control, self._drained)
            async with trio.open_nursery() as http:
                port = await http.start(self._daemon.serve_http, self._desk, self._begun_stopping)
                generations.start_soon(self._load, port)
                await self._begun_stopping.wait()
                generations.start_soon(self._cut, http.cancel_scope)
            await self._drained.wait()
            control.cancel_scope.deadline = trio.current_time() + _FAREWELL_S

    async def _cut(self, http: trio.CancelScope) -> None:
        """End the surface in time: a reply's client hears of its end, and that is when its last job has ended."""
        with self._patience:
            await trio.sleep_forever()
        await self._drained.wait()
        await trio.sleep(_FAREWELL_S)
        http.cancel()

    async def _load(self, port: int) -> None:
        await self.custody.take()
        await self._models.load(self._daemon.source)
        for source in self._daemon.beside:
            if self._daemon.residency.is_by_time:
                self._models.park(source)
            else:
                await self._models.load(source)
        self._notifier.ready(f"serving {self._daemon.source.alias} on port {port}")
        self._daemon.on_ready(port)

    async def _watch_signals(self, given: AsyncIterable[int] | None) -> None:
        with ExitStack() as own:
            if given is None:
                given = own.enter_context(trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
            async for number in given:
                if number == signal.SIGHUP:
                    try:
                        await self._reload_tenants()
                    except ConfigurationRefused as refused:
                        _log.error("reload_refused", error=str(refused))
                    continue
                again = self._begun_stopping.is_set()
                _log.info("signal", name=signal.Signals(number).name, again=again)
                self._begin_drain(0.0 if again else self._daemon.drain_s)

    async def _reload_tenants(self) -> int:
        """New weights, limits and keys, without losing a request; returns how many tenants there are.

        Raises:
            calculet_trio.errors.ConfigurationRefused: the file is bad; nothing has changed.
        """
        if self._daemon.reload_tenants is None:
            return 0
        tenants = await self._daemon.runner.run_whole(self._daemon.reload_tenants, trio.CapacityLimiter(1))
        self._loop.post(TenantsChanged(tenants))
        _log.info("tenants_reloaded", tenants=len(tenants))
        return len(tenants)

    def _begin_drain(self, within_s: float, status: str = "letting open replies end") -> None:
        deadline_s = trio.current_time() + within_s
        self._patience.deadline = min(self._patience.deadline, deadline_s)
        self._loop.post(DrainBegan(deadline_s))
        self._executor.hurry(deadline_s)
        self._models.leave()
        self._notifier.stopping(status, within_s=within_s + _FAREWELL_S + self._progress.outstanding_s())
        self._begun_stopping.set()

    def _call_stuck(self, reason: FaultReason) -> None:
        """A call beside the jobs did not return: the core tells everybody why, and nothing is waited for any more."""
        self._loop.post(CallStuck(reason))
        self._lose_device(reason)

    def _lose_device(self, reason: FaultReason, engine: EngineId | None = None) -> None:
        """Tell everybody and leave: only a new process may use the device, and this one waits for it no more."""
        if self._lost is not None:  # and why, is known
            return
        self._lost = reason
        self._recovery.given_up(reason)
        self.custody.lose(reason, engine, self._loop.snapshot())
        self._drained.set()
        self._begin_drain(0.0, f"leaving: the fate of a device call is unknown ({reason.value})")

    def _doing(self) -> str | None:
        """For the service manager: what is being loaded, or waited for."""
        if self.custody.waits_for is not None:
            return self.custody.waits_for
        step = self._models.step
        return None if step is None else f"{step.doing}, for {trio.current_time() - step.began_s:.0f} s so far"

    def _load_phase_ended(self, alias: str, phase: LoadPhase, took_s: float) -> None:
        self._models.board.phase_ended(alias, phase, took_s)
        self._daemon.metrics.load_step(phase.value, took_s)

    def _overdue(self) -> str | None:
        return self._progress.overdue()

    # ---- events and effects ---------------------------------------------------------------------

    def _begin(self, effect: SubmitJob, now: float) -> None:
        self._executor.submit(effect, now)

    def _perform(self, event: Event, effects: Sequence[Effect], heard_s: float) -> None:
        """Carry out what the core made of an event; its jobs are begun already."""
        self._daemon.metrics.heard(event, heard_s)
        self._trace.heard(event, heard_s)
        self._fault_notes.heard(event)
        now = trio.current_time()
        for effect in effects:
            self._daemon.metrics.saw(effect, now)
            self._trace.decided(effect, heard_s)
            if isinstance(effect, Deliver):  # by far the most
                self._dispatcher.perform(effect)
            else:
                self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        self._fault_notes.saw(effect)
        match effect:
            case SubmitJob():
                self._executor.watch(effect)
            case Quarantined() | PairDegraded() | PairRestored():
                pass  # noted already
            case AllocateSequence() | ContinueSequence() | ReleaseSequence():
                self._executor.control(effect)
            case ResetDevice():
                self._fault_notes.reset_follows(effect)
                self._recovery.begin(effect)
            case ResetRefused():
                self._recovery.refused(effect)
            case Abandon(reason, engine):
                self._lose_device(reason, engine)
            case Vacated():
                self._models.residents.vacated(effect)
            case Wanted():
                self._switching.begin(effect)
            case Drained():
                self._drained.set()
            case _:
                self._dispatcher.perform(effect)


def _past_resets_s(history: FaultHistory) -> list[float]:
    """Moments of resets by earlier processes that still count, on this process's clock."""
    now = trio.current_time()
    return [now - age_s for age_s in history.reset_ages_s()]


def _usable(engines: tuple[EngineId, ...], policy: Policy) -> tuple[EngineId, ...]:
    """The engines that the policy lets the core use."""
    return engines[: 1 if policy.executor.fixed_engine else policy.admission.max_inflight_jobs]
