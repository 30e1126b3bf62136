"""Visible codes: each fault that a device can have shows in the metrics under its reason code.

Faults are put between the daemon and the device, one a life; the device itself is not harmed.

Source: S §19 ("every error code visible"); SPEC section 11.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final, cast

import attrs
import numpy as np

from calculet_trio.conformance.clients import Heard, ask, errands
from calculet_trio.conformance.gate import Criterion
from calculet_trio.conformance.trial import LifeFailed, Trial
from calculet_trio.core.events import FaultReason
from calculet_trio.core.fault_kinds import FaultKind
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
_SHORT_TIMEOUT: Final = JobTimeout(base_s=2.0, per_token_s=0.0)
"""Of the life whose job never ends; long enough for a prompt of four tokens."""


def _planned(fault: FaultKind) -> Callable[[Runtime], Runtime]:
    return lambda runtime: FaultyRuntime(runtime, Plan([Planned(fault, 1)]), RealPace())


class _Raising:
    """A runtime whose first wait raises."""

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
        return attrs.evolve(outcome, logits=np.full_like(outcome.logits, np.nan))


def ways() -> dict[FaultReason, Callable[[Runtime], Runtime]]:
    """How each reason of a device is brought about."""
    faults = {fault.value: fault for fault in FaultKind}
    found: dict[FaultReason, Callable[[Runtime], Runtime]] = {
        reason: _planned(faults[reason.value]) for reason in FaultReason if reason.value in faults
    }
    found[FaultReason.RUNTIME_ERROR] = lambda runtime: cast("Runtime", _Raising(runtime))
    found[FaultReason.BAD_LOGITS] = lambda runtime: cast("Runtime", _Nonsense(runtime))
    return found


def codes_criterion(trial: Trial, policy: Policy, *, progress: Callable[[str], None]) -> Criterion:
    """Bring each fault about once, and look for its code in what a scraper would read."""
    shape = trial.description().shape
    [errand] = errands(1, prompt_tokens=4, tokens=3, vocabulary=shape.vocab_size)

    async def visit(service: Service) -> Heard:
        return await ask(service, trial.alias, errand)

    provoked = ways()
    hidden = []
    for reason, spoil in provoked.items():
        progress(f"error code {reason.value}")
        metrics = ServiceMetrics()
        with suppress(LifeFailed):  # some of them are the end of a daemon, as they should be
            trial.live(policy, visit, spoil=spoil, metrics=metrics, job_timeout=_SHORT_TIMEOUT)
        if not is_visible(metrics, reason):
            hidden.append(reason.value)
    untried = [reason.value for reason in FaultReason if reason not in provoked and reason not in NOT_OF_A_DEVICE]
    seen = f"{', '.join(reason.value for reason in provoked)}: each brought about once"
    if hidden:
        seen += f"; not in the metrics: {', '.join(hidden)}"
    if untried:
        seen += f"; not tried: {', '.join(untried)}"
    return Criterion.of("error codes visible", holds=not hidden and not untried, seen=seen)


def is_visible(metrics: ServiceMetrics, reason: FaultReason) -> bool:
    """Whether a scraper reads a count of ``reason`` above 0."""
    text = metrics.expose("text/plain")[0].decode()
    return any(
        line.startswith("cal") and f'"{reason.value}"' in line and not line.endswith(" 0.0")
        for line in text.splitlines()
        if "_created" not in line
    )
