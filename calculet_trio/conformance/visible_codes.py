"""Visible codes: each fault that a device can have shows in the metrics under its reason code.

Faults are put between the daemon and the device, one a life; the device itself is not harmed. A life begins on a
device that the one before has left clean, or that was configured anew, and ends when the code is there and what
followed from the fault has ended.

Source: S §19 ("every error code visible"); SPEC section 11.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final, cast

import attrs
import numpy as np
import trio

from calculet_trio.conformance.clients import ask, errands
from calculet_trio.conformance.gate import Criterion
from calculet_trio.conformance.trial import LifeFailed, Trial
from calculet_trio.core.events import FaultReason
from calculet_trio.core.fault_kinds import FaultKind
from calculet_trio.core.faults import FAULTS, Next
from calculet_trio.core.jobs import EngineId
from calculet_trio.core.policy import Policy
from calculet_trio.observe.metrics import ServiceMetrics
from calculet_trio.runtimes.faults import FaultyRuntime, Plan, Planned
from calculet_trio.runtimes.pace import RealPace
from calculet_trio.runtimes.port import Finished, Runtime, Ticket, Unknown
from calculet_trio.shell.executor import JobTimeout
from calculet_trio.shell.service import Service

NOT_OF_A_DEVICE: Final = frozenset(
    {FaultReason.DEADLINE_EXCEEDED, FaultReason.SHUTDOWN, FaultReason.MODEL_UNLOADED, FaultReason.OPERATOR_RESET}
)
_NEVER_ENDS: Final = frozenset({FaultReason.TIMEOUT, FaultReason.STUCK_WAIT})
_SHORT_TIMEOUT: Final = JobTimeout(base_s=0.5, per_token_s=0.0, overrun_s=0.5)
"""Of the lives whose job never ends: nobody need wait a minute for that."""
_LIFE_S: Final = 60.0
"""Of a life, its load not counted."""
_SHOWS_S: Final = 10.0
"""After the reply has ended, for the code to show and a reset to end; past it, the code is hidden."""
_LOOK_EVERY_S: Final = 0.02

_PLANS: Final = {
    FaultReason.DEVICE_BUSY: (Planned(FaultKind.DEVICE_BUSY, 1),),
    FaultReason.NO_CAPACITY: (Planned(FaultKind.NO_CAPACITY, 1),),
    FaultReason.UNCONFIRMED_RELEASE: (Planned(FaultKind.UNCONFIRMED, 1),),
    FaultReason.OUTPUT_ERROR: (Planned(FaultKind.OUTPUT_ERROR, 1),),
    FaultReason.LANE_LOST: (Planned(FaultKind.LOSE_LANE, 1),),
    FaultReason.STATUS_ANOMALY: (Planned(FaultKind.STATUS_ANOMALY, 1),),
    FaultReason.COUNTER_ANOMALY: (Planned(FaultKind.COUNTER_ANOMALY, 1),),
    FaultReason.WRONG_COMPLETION: (Planned(FaultKind.WRONG_COMPLETION, 1),),
    FaultReason.CCU_FAULT: (Planned(FaultKind.CCU_FAULT, 1),),
    FaultReason.PCIE_ERROR: (Planned(FaultKind.PCIE_ERROR, 1),),
    FaultReason.TIMEOUT: (Planned(FaultKind.TIMEOUT, 1),),
    FaultReason.UNKNOWN_DMA: (Planned(FaultKind.UNKNOWN_DMA, 1),),
    FaultReason.STUCK_WAIT: (Planned(FaultKind.STUCK, 1),),
    FaultReason.DEVICE_LOST: (Planned(FaultKind.DEVICE_LOST, 1),),
    # The golden run of the load is right, that of the reset is not.
    FaultReason.GOLDEN_MISMATCH: (Planned(FaultKind.CCU_FAULT, 1), Planned(FaultKind.GOLDEN_MISMATCH, 2)),
}
"""What goes wrong, for each reason that follows from it."""


def _planned(plan: tuple[Planned, ...]) -> Callable[[Runtime], Runtime]:
    return lambda runtime: FaultyRuntime(runtime, Plan(plan), RealPace())


class _Raising:
    """A runtime whose waits raise."""

    def __init__(self, inner: Runtime) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def wait(self, engine: EngineId, ticket: Ticket, timeout_s: float) -> Finished | Unknown:
        raise OSError("the device's library failed")


class _Nonsense(_Raising):
    """A runtime whose logits are no numbers."""

    def wait(self, engine: EngineId, ticket: Ticket, timeout_s: float) -> Finished | Unknown:
        outcome = self._inner.wait(engine, ticket, timeout_s)
        if isinstance(outcome, Unknown) or outcome.logits is None:
            return outcome
        return attrs.evolve(outcome, logits=np.full(outcome.logits.shape, np.nan, np.float32), candidates=None)


class _Saying(_Raising):
    """A runtime that ends its waits with a reason which it alone can know: nobody above it can see as much."""

    def __init__(self, inner: Runtime, reason: FaultReason) -> None:
        super().__init__(inner)
        self._reason = reason

    def wait(self, engine: EngineId, ticket: Ticket, timeout_s: float) -> Finished | Unknown:
        outcome = self._inner.wait(engine, ticket, timeout_s)
        return outcome if isinstance(outcome, Unknown) else Unknown(self._reason)


def ways() -> dict[FaultReason, Callable[[Runtime], Runtime]]:
    """How each reason of a device is brought about."""
    found = {reason: _planned(plan) for reason, plan in _PLANS.items()}
    found[FaultReason.RUNTIME_ERROR] = lambda runtime: cast("Runtime", _Raising(runtime))
    found[FaultReason.BAD_LOGITS] = lambda runtime: cast("Runtime", _Nonsense(runtime))
    for reason in (FaultReason.CROSS_TALK, FaultReason.SLOW_DRAIN):
        found[reason] = lambda runtime, reason=reason: cast("Runtime", _Saying(runtime, reason))  # type: ignore[misc]
    return found


def codes_criterion(trial: Trial, policy: Policy, *, progress: Callable[[str], None]) -> Criterion:
    """Bring each fault about once, and look for its code in what a scraper would read."""
    provoked = ways()
    hidden = []
    for reason, spoil in provoked.items():
        progress(f"error code {reason.value}")
        if not _shows(trial, policy, reason, spoil):
            hidden.append(reason.value)
    untried = [reason.value for reason in FaultReason if reason not in provoked and reason not in NOT_OF_A_DEVICE]
    seen = f"{', '.join(reason.value for reason in provoked)}: each brought about once"
    if hidden:
        seen += f"; not in the metrics: {', '.join(hidden)}"
    if untried:
        seen += f"; not tried: {', '.join(untried)}"
    return Criterion.of("error codes visible", holds=not hidden and not untried, seen=seen)


def _shows(trial: Trial, policy: Policy, reason: FaultReason, spoil: Callable[[Runtime], Runtime]) -> bool:
    """A life in which ``reason`` comes about; whether a scraper would know."""
    [errand] = errands(1, prompt_tokens=4, tokens=3, vocabulary=trial.description().shape.vocab_size)
    metrics = ServiceMetrics()

    async def visit(service: Service) -> None:
        await ask(service, trial.alias, errand)
        with trio.move_on_after(_SHOWS_S):
            # A scraper has nothing to wait for, either.
            while not is_visible(metrics, reason) or service.health().status == "recovering":  # noqa: ASYNC110
                await trio.sleep(_LOOK_EVERY_S)

    timeout = _SHORT_TIMEOUT if reason in _NEVER_ENDS else None
    is_clean = False
    try:
        with suppress(LifeFailed):  # some of them are the end of a daemon, as they should be
            trial.live(policy, visit, spoil=spoil, metrics=metrics, job_timeout=timeout, bound_s=_LIFE_S)
            is_clean = not FAULTS[reason].held or FAULTS[reason].next is Next.RESET
    finally:
        if not is_clean:  # a lane may be held, or a job be out, of which the next life knows nothing
            trial.begin_anew()
    return is_visible(metrics, reason)


def is_visible(metrics: ServiceMetrics, reason: FaultReason) -> bool:
    """Whether a scraper reads a count of ``reason`` above 0."""
    text = metrics.expose("text/plain")[0].decode()
    name = f'calrt_errors_total{{code="{reason.value}"}} '
    return any(line.startswith(name) and float(line.removeprefix(name)) > 0 for line in text.splitlines())
