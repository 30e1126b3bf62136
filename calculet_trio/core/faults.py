"""Faults: for each reason what is put in quarantine, what clients are told, what is tried next, and how it is logged.

The one table. ``FAULTS.md`` beside it shows it to people, and a test holds the two equal.

Source: SPEC section 9 (S §14, §16; A §5, §6).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from calculet_trio.core.events import Doubt, FaultReason
from calculet_trio.core.transition import Symbol


class Held(Symbol):
    """What a fault may put out of use; it comes back by a device reset, or not at all."""

    JOB = "job"
    """Nobody knows what it did: it stays in the books as Unknown."""
    BUFFERS = "buffers"
    """The device may still write to the job's: they belong to the process until it ends."""
    LANES = "lanes"
    """The job's: what they hold is Unknown, so they go to nobody."""
    ENGINE = "engine"
    """It is given no more work."""
    GENERATION = "generation"
    """The models leave Ready: nobody new comes in."""


class Told(Symbol):
    """What the clients of the requests in question hear."""

    NOTHING = "nothing"
    """It is tried again on their behalf."""
    RETRYABLE = "retryable"
    """That it failed, and may succeed if it is sent again."""
    FINAL = "final"
    """That it failed, and would fail again."""


class Next(Symbol):
    """What is tried next."""

    GO_ON = "go_on"
    """Nothing: the rest of the service is whole."""
    TRY_AGAIN = "try_again"
    """The same call, after a pause that doubles, a bounded number of times."""
    RESET = "reset"
    """Quiesce, reset the device, configure it, prove it by its golden run; where that cannot be, as RESTART."""
    RESTART_OR_RESET = "restart_or_reset"
    """As RESTART with ``recovery.restart_on_unknown_dma``; without it, as RESET."""
    RESTART = "restart"
    """Tell everybody, and leave with exit code 75: only a new process may use the device."""


@attrs.frozen(kw_only=True)
class FaultRule:
    """One reason's row.

    Args:
        held: what is put in quarantine.
        told: what clients hear. Where the device is reset and ``recovery.replay`` is on, they hear nothing.
        next: what is tried.
        doubt: why new jobs go to one engine only from now on (S §14); None: it says nothing of two engines.
        log: the event's name in the log.
        meaning: one sentence.
    """

    held: tuple[Held, ...] = ()
    told: Told
    next: Next
    doubt: Doubt | None = None
    log: str
    meaning: str


_NONE: Final[tuple[Held, ...]] = ()
_LANES: Final = (Held.LANES,)
_MODELS: Final = (Held.GENERATION,)
_ALL: Final = (Held.JOB, Held.BUFFERS, Held.LANES, Held.ENGINE, Held.GENERATION)

_R: Final = FaultReason


def _row(
    held: tuple[Held, ...], told: Told, next_: Next, log: str, meaning: str, *, doubt: Doubt | None = None
) -> FaultRule:
    return FaultRule(held=held, told=told, next=next_, log=log, meaning=meaning, doubt=doubt)


FAULTS: Final[Mapping[FaultReason, FaultRule]] = {
    # Nothing happened on the device.
    _R.DEVICE_BUSY: _row(
        _NONE, Told.NOTHING, Next.TRY_AGAIN, "device_busy", "The device did not take the job; nothing was written."
    ),
    _R.NO_CAPACITY: _row(
        _NONE, Told.NOTHING, Next.TRY_AGAIN, "allocation_refused", "The device refused a KV sequence for now."
    ),
    # The device answered, and part of the answer is no good.
    _R.OUTPUT_ERROR: _row(
        _NONE,
        Told.RETRYABLE,
        Next.GO_ON,
        "output_failed",
        "The job ended, its output is unusable: nothing is committed.",
    ),
    _R.BAD_LOGITS: _row(
        _NONE, Told.FINAL, Next.GO_ON, "bad_logits", "One lane's logits are no distribution; the other lanes' are."
    ),
    _R.LANE_LOST: _row(
        _LANES,
        Told.RETRYABLE,
        Next.GO_ON,
        "lane_lost",
        "One lane's KV is lost, the others' is whole: only where the package declares lane_fault_isolation.",
    ),
    _R.UNCONFIRMED_RELEASE: _row(
        _LANES, Told.NOTHING, Next.GO_ON, "release_unconfirmed", "The device did not confirm that a lane is empty."
    ),
    _R.CROSS_TALK: _row(
        _ALL,
        Told.RETRYABLE,
        Next.RESET,
        "cross_talk",
        "Outputs of two lanes or two jobs were mixed up.",
        doubt=Doubt.CROSS_TALK,
    ),
    _R.WRONG_COMPLETION: _row(
        _ALL,
        Told.RETRYABLE,
        Next.RESET,
        "wrong_completion",
        "A completion came for another job, twice, or after its job's end.",
        doubt=Doubt.COUNTER_ANOMALY,
    ),
    # The answer is whole, and something about the engine does not agree with it.
    _R.STATUS_ANOMALY: _row(
        _NONE,
        Told.NOTHING,
        Next.GO_ON,
        "status_anomaly",
        "The engine's status word is none that it should have after a whole output.",
        doubt=Doubt.STATUS_ANOMALY,
    ),
    _R.COUNTER_ANOMALY: _row(
        _NONE,
        Told.NOTHING,
        Next.GO_ON,
        "counter_anomaly",
        "The engine's job counters disagree with the jobs that it was given; the output is whole.",
        doubt=Doubt.COUNTER_ANOMALY,
    ),
    # Nobody knows what the job did.
    _R.CCU_FAULT: _row(_ALL, Told.RETRYABLE, Next.RESET, "ccu_fault", "The device's control unit reported a fault."),
    _R.PCIE_ERROR: _row(_ALL, Told.RETRYABLE, Next.RESET, "pcie_error", "The link to the device reported an error."),
    _R.RUNTIME_ERROR: _row(
        _ALL, Told.RETRYABLE, Next.RESET, "runtime_error", "The runtime broke its contract, or raised."
    ),
    # Nobody knows what the device may still write.
    _R.TIMEOUT: _row(
        _ALL,
        Told.RETRYABLE,
        Next.RESTART_OR_RESET,
        "job_timed_out",
        "The job did not end within its bound: its DMA's fate is unknown.",
        doubt=Doubt.TIMEOUT,
    ),
    _R.UNKNOWN_DMA: _row(
        _ALL, Told.RETRYABLE, Next.RESTART_OR_RESET, "unknown_dma", "The device cannot say whether a DMA has ended."
    ),
    _R.SLOW_DRAIN: _row(
        _NONE,
        Told.RETRYABLE,
        Next.GO_ON,
        "slow_drain",
        "A model's drain time passed with a job or a lane still out: nothing of it is freed before that is over.",
    ),
    _R.STUCK_WAIT: _row(
        _ALL,
        Told.RETRYABLE,
        Next.RESTART,
        "call_stuck",
        "A call to the runtime did not return, whatever its timeout: its thread is left behind.",
    ),
    _R.DEVICE_LOST: _row(_ALL, Told.RETRYABLE, Next.RESTART, "device_lost", "The device does not answer any more."),
    _R.GOLDEN_MISMATCH: _row(
        _MODELS,
        Told.RETRYABLE,
        Next.RESTART,
        "golden_mismatch",
        "After a reset the model does not say what its package recorded.",
    ),
    # No fault of the device.
    _R.DEADLINE_EXCEEDED: _row(
        _NONE, Told.RETRYABLE, Next.GO_ON, "deadline_exceeded", "The request's time was over before its first token."
    ),
    _R.MODEL_UNLOADED: _row(
        _NONE, Told.RETRYABLE, Next.GO_ON, "model_unloaded", "The drain time of the request's model was over."
    ),
    _R.SHUTDOWN: _row(_NONE, Told.RETRYABLE, Next.GO_ON, "shutdown", "The service's drain time was over."),
    _R.OPERATOR_RESET: _row(
        (Held.LANES, Held.GENERATION),
        Told.RETRYABLE,
        Next.RESET,
        "operator_reset",
        "An operator had the device reset; nothing had failed.",
    ),
}


def next_step(reason: FaultReason, *, restart_on_unknown_dma: bool) -> Next:
    """What the table says is tried, with the policy's say on RESTART_OR_RESET."""
    step = FAULTS[reason].next
    if step is Next.RESTART_OR_RESET:
        return Next.RESTART if restart_on_unknown_dma else Next.RESET
    return step


def is_retryable(reason: FaultReason) -> bool:
    """Whether the same request may succeed if it is sent again."""
    return FAULTS[reason].told is not Told.FINAL


def as_markdown() -> str:
    """The table as people read it."""
    lines = [
        "| code | what it means | quarantined | clients hear | tried next | one engine | log event |",
        "|---|---|---|---|---|---|---|",
    ]
    for reason, rule in FAULTS.items():
        held = ", ".join(one.value for one in rule.held) or "nothing"
        one_engine = "" if rule.doubt is None else f"`{rule.doubt.value}`"
        lines.append(
            f"| `{reason.value}` | {rule.meaning} | {held} | {rule.told.value} | `{rule.next.value}` "
            f"| {one_engine} | `{rule.log}` |"
        )
    return "\n".join(lines) + "\n"
