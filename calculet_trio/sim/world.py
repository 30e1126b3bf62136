"""A world: a population of clients, the production daemon, and an emulated board that may fail.

The daemon is `calculet_trio.shell.lifecycle.run` as it is; only its clock, its runner, its runtime and its
surface are the world's. When it loses its device it ends, and the world starts it again, as systemd would.

Source: SPEC section 3–9; S §17.3.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import attrs
import numpy as np
import trio

from calculet_trio.core.policy import Policy
from calculet_trio.errors import CalculetError, DeviceLost, GenerationFailed, RequestRefused
from calculet_trio.runtimes.device_model import DeviceModel
from calculet_trio.runtimes.emulated import END_TOKEN, EmulatedRuntime, continuation
from calculet_trio.runtimes.faults import Fault, FaultyRuntime, Rates
from calculet_trio.runtimes.pace import VirtualPace
from calculet_trio.shell.lifecycle import Daemon
from calculet_trio.shell.lifecycle import run as run_daemon
from calculet_trio.shell.model_manager import ModelSource, ModelText
from calculet_trio.shell.service import InferenceRequest, RequestHandle, Service
from calculet_trio.sim.checkers import Ledger, Violated
from calculet_trio.sim.determinism import Trace, seeded_scheduling
from calculet_trio.sim.population import Population, Visit
from calculet_trio.sim.record import Record
from calculet_trio.sim.virtual_time import LeapClock, VirtualRunner
from calculet_trio.text.byte_tokenizer import ByteTokenizer
from calculet_trio.text.params import ReplyParams, SamplingParams, TokenPrompt

_RESTART_S = 5.0
_DRAIN_S = 20.0
_AFTER_S = 900.0
"""How long after the last arrival the world may take to end: longer than any deadline, drain and job."""


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
    """

    seed: int
    seconds: float
    device: DeviceModel
    policy: Policy
    population: Population
    faults: Mapping[Fault, float]


@attrs.frozen(kw_only=True)
class Outcome:
    """What a world came to.

    Args:
        spec: what was run.
        trace_hash: of every event and effect, in order: the same for the same spec.
        steps: events and effects.
        ended_s: virtual seconds.
        restarts: daemons that lost their device.
        clients: how the clients' requests ended, by kind.
        faults: how often each fault came about.
        record: measurements over time, for reports.
    """

    spec: WorldSpec
    trace_hash: str
    steps: int
    ended_s: float
    restarts: int
    clients: Counter[str]
    faults: Counter[Fault]
    record: Record


def run_world(spec: WorldSpec) -> Outcome:
    """Run one world from beginning to end, in this thread, as fast as it goes.

    Raises:
        calculet_trio.sim.checkers.Violated: a checker fired (perhaps inside an exception group).
    """
    world = _World(spec)
    with seeded_scheduling(spec.seed):
        trio.run(world.live, clock=LeapClock(), restrict_keyboard_interrupt_to_checkpoints=True)
    return world.outcome()


class _World:
    def __init__(self, spec: WorldSpec) -> None:
        self._spec = spec
        self._rng = np.random.default_rng(spec.seed)
        self._trace = Trace()
        self._tokenizer = ByteTokenizer()
        self._clients: Counter[str] = Counter()
        self._faults: Counter[Fault] = Counter()
        self._record = Record()
        self._restarts = 0
        self._ended_s = 0.0
        self._service: Service | None = None
        self._visits = spec.population.visits(self._rng)
        self._next_visit = next(self._visits, None)

    def outcome(self) -> Outcome:
        return Outcome(
            spec=self._spec,
            trace_hash=self._trace.digest(),
            steps=self._trace.length,
            ended_s=self._ended_s,
            restarts=self._restarts,
            clients=self._clients,
            faults=self._faults,
            record=self._record,
        )

    async def live(self) -> None:
        with trio.fail_after(self._spec.seconds + _AFTER_S):
            async with trio.open_nursery() as clients:
                await self._supervise(clients)
        self._ended_s = trio.current_time()

    async def _supervise(self, clients: trio.Nursery) -> None:
        """Start the daemon, again after each lost device, until the last one has drained."""
        life = 0
        while True:
            signals, arriving = trio.open_memory_channel[int](8)
            ledger = Ledger(self._trace, deadline_s=self._spec.policy.admission.deadline_default_s)
            runtime, daemon = self._new_daemon(life, ledger, signals, clients)
            life += 1
            is_lost = False
            try:
                await run_daemon(daemon, signals=arriving)
            except* DeviceLost:
                is_lost = True
            self._service = None
            self._faults.update(runtime.happened)
            ledger.conclude(device_lost=is_lost)
            if not is_lost:
                return
            self._restarts += 1
            self._record.restarted(trio.current_time())
            await trio.sleep(_RESTART_S)

    def _new_daemon(
        self, life: int, ledger: Ledger, signals: trio.MemorySendChannel[int], clients: trio.Nursery
    ) -> tuple[FaultyRuntime, Daemon]:
        spec = self._spec
        pace = VirtualPace(trio.current_time)
        emulated = EmulatedRuntime(spec.device, pace, seed=spec.seed + life)
        runtime = FaultyRuntime(emulated, Rates(spec.faults, seed=spec.seed + 7919 * life), pace)
        source = ModelSource(
            alias="m",
            package=Path("emulated"),
            verify=lambda: None,
            open_text=lambda: ModelText(self._tokenizer, None),
            meta={},
        )
        daemon = Daemon(
            runtime=runtime,
            source=source,
            policy=spec.policy,
            metrics=self._record.beside(ledger),
            serve_http=partial(self._surface, signals, clients),
            drain_s=_DRAIN_S,
            runner=VirtualRunner(pace),
        )
        return runtime, daemon

    async def _surface(
        self,
        signals: trio.MemorySendChannel[int],
        clients: trio.Nursery,
        service: Service,
        stop: trio.Event,
        *,
        task_status: trio.TaskStatus[int],
    ) -> None:
        """In place of HTTP: clients come to the service at their times."""
        task_status.started(0)
        self._service = service
        with trio.CancelScope() as coming:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_when, stop, coming)
                await self._let_them_come(clients)
                signals.send_nowait(signal.SIGTERM)
                coming.cancel()
        await stop.wait()

    async def _let_them_come(self, clients: trio.Nursery) -> None:
        while self._next_visit is not None and self._next_visit.arrival_s < self._spec.seconds:
            await trio.sleep_until(self._next_visit.arrival_s)
            visit, self._next_visit = self._next_visit, next(self._visits, None)
            clients.start_soon(self._visit, visit, int(self._rng.integers(1 << 62)))

    # ---- one client -----------------------------------------------------------------------------

    async def _visit(self, visit: Visit, seed: int) -> None:
        service = self._service
        if service is None:
            self._clients["unreachable"] += 1
            return
        draw = np.random.default_rng(seed)
        prompt = tuple(int(token) for token in draw.integers(97, 123, visit.prompt_tokens))
        request = InferenceRequest(
            alias="m",
            tenant=visit.tenant,
            prompt=TokenPrompt(prompt),
            reply=ReplyParams(sampling=SamplingParams(temperature=0.0)),
            max_new_tokens=visit.output_tokens,
            deadline_s=visit.deadline_s,
        )
        ended = "left"
        with trio.move_on_after(float("inf") if visit.patience_s is None else visit.patience_s):
            try:
                async with service.open(request) as handle:
                    ended = await self._read(handle, visit, prompt)
            except RequestRefused as refused:
                ended = refused.code
            except GenerationFailed as failed:
                ended = f"failed: {failed.reason}"
            except CalculetError as error:
                ended = type(error).__name__
        self._clients[ended] += 1

    async def _read(self, handle: RequestHandle, visit: Visit, prompt: tuple[int, ...]) -> str:
        """Read the reply and hold it against what the model says after exactly this prompt."""
        text = ""
        async for output in handle:
            text += output.text
            if visit.read_pause_s:
                await trio.sleep(visit.read_pause_s)
        tokens = handle.timings.predicted_tokens
        said = continuation(prompt, tokens)
        expected = self._tokenizer.decode(token for token in said if token != END_TOKEN)
        if text != expected:
            raise Violated(f"a reply is not its own: {text[:40]!r} after {len(prompt)} tokens, not {expected[:40]!r}")
        ending = handle.ending
        self._record.replied(trio.current_time(), visit, handle.timings)
        return "truncated" if ending.truncated_by else ending.reason.value


async def _cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()
