"""What the core is told. Every event is frozen; those of the device carry generation and job id.

Source: SPEC section 3 (S §4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final

import attrs

from calculet_trio.core.evidence import Evidence
from calculet_trio.core.generation import GenerationEvent
from calculet_trio.core.policy import TenantPolicy
from calculet_trio.core.profiles import ModelShape
from calculet_trio.ids import GenerationId, JobId, LaneId, RequestId, ReservationId, SequenceId


class CancelReason(Enum):
    """Why a request was given up before its end."""

    CLIENT_GONE = "client_gone"
    REJECTED_INPUT = "rejected_input"
    """Its prompt turned out invalid after it had its place (tokenizing, template)."""


class FaultReason(Enum):
    """The closed set of reasons for which work or a request may be lost; metrics label by it.

    `calculet_trio.core.faults` says what each of them leads to.
    """

    DEVICE_BUSY = "device_busy"
    NO_CAPACITY = "no_capacity"
    OUTPUT_ERROR = "output_error"
    BAD_LOGITS = "bad_logits"
    LANE_LOST = "lane_lost"
    UNCONFIRMED_RELEASE = "unconfirmed_release"
    CROSS_TALK = "cross_talk"
    WRONG_COMPLETION = "wrong_completion"
    STATUS_ANOMALY = "status_anomaly"
    COUNTER_ANOMALY = "counter_anomaly"
    CCU_FAULT = "ccu_fault"
    PCIE_ERROR = "pcie_error"
    RUNTIME_ERROR = "runtime_error"
    TIMEOUT = "timeout"
    UNKNOWN_DMA = "unknown_dma"
    STUCK_WAIT = "stuck_wait"
    SLOW_DRAIN = "slow_drain"
    DEVICE_LOST = "device_lost"
    GOLDEN_MISMATCH = "golden_mismatch"
    MODEL_UNLOADED = "model_unloaded"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    SHUTDOWN = "shutdown"
    OPERATOR_RESET = "operator_reset"


class Doubt(Enum):
    """Why new jobs keep to one engine (S §14); metrics label by it."""

    CROSS_TALK = "cross_talk"
    STATUS_ANOMALY = "status_anomaly"
    COUNTER_ANOMALY = "counter_anomaly"
    P99_REGRESSION = "p99_regression"
    DEVICE_BUSY = "device_busy"
    TIMEOUT = "timeout"
    RECOVERY = "recovery"
    """The device was reset: nobody has shown since that its engines work side by side."""


# ---- requests ---------------------------------------------------------------------------------


@attrs.frozen
class Arrived:
    """A request is at the door; its prompt has not been tokenized. It takes a waiting place or is refused.

    Args:
        deadline_s: monotonic; None for the policy's default.
    """

    request: RequestId
    tenant: str
    alias: str
    deadline_s: float | None


@attrs.frozen
class Offered:
    """The request's prompt is known: it may be priced, queued, admitted.

    Args:
        generation: whose tokenizer made the prompt; another than the request's own is too late, and ignored.
        prompt: token ids, at least one.
        max_new_tokens: tokens asked for; None for as many as the context holds.
    """

    request: RequestId
    generation: GenerationId
    prompt: Sequence[int]
    max_new_tokens: int | None


@attrs.frozen
class Cancelled:
    """Somebody gave the request up. Idempotent; unheard-of and ended ids are ignored."""

    request: RequestId
    reason: CancelReason


# ---- the device -------------------------------------------------------------------------------


@attrs.frozen
class SequenceAllocated:
    """The runtime holds a KV sequence in the lane that was asked for."""

    generation: GenerationId
    lane: LaneId
    request: RequestId
    reservation: ReservationId
    sequence: SequenceId


@attrs.frozen
class SequenceRefused:
    """The runtime could not allocate now, and the lane holds nothing; or it could not shorten a retained sequence."""

    generation: GenerationId
    lane: LaneId
    request: RequestId
    reservation: ReservationId
    reason: FaultReason


@attrs.frozen
class SequenceReleased:
    """The runtime's answer to a release; only a confirmed one makes the lane Free."""

    generation: GenerationId
    lane: LaneId
    sequence: SequenceId
    confirmed: bool


@attrs.define  # one a token: see `calculet_trio.core.jobs.LaneWork`
class LaneResult:
    """What one lane's sampling came to.

    Args:
        lane: the lane, as it stood in the job.
        request: its request, as it stood in the job.
        token: the sampled token id; None if the lane failed.
        stopped: the text side saw the reply's natural end (an end token, or a stop string).
        failed: why the lane failed by itself, or None.
        output: what the client is to be given; the core passes it on without looking in.
    """

    lane: Final[LaneId]
    request: Final[RequestId]
    token: Final[int | None]
    stopped: Final[bool] = False
    failed: Final[FaultReason | None] = None
    output: Final[object] = None


@attrs.frozen
class JobTimes:
    """Where a finished job's time went; of what the device does not tell, None. No decision depends on it.

    Args:
        taken_s: from its submission to its outcome.
        device_s: computing.
        h2d_s, d2h_s: copying its inputs to the device, and its outputs back.
    """

    taken_s: float
    device_s: float | None = None
    h2d_s: float | None = None
    d2h_s: float | None = None


@attrs.frozen
class JobFinished:
    """Device and output succeeded: KV was written; each lane has its own result.

    Args:
        results: one per lane of which a token was wanted.
        lost: lanes whose KV is unknown; means the whole job's unless the package declares isolation.
        anomaly: what about the engine did not agree with a whole output, or None.
        times: for whoever counts.
    """

    job: JobId
    generation: GenerationId
    results: tuple[LaneResult, ...]
    lost: frozenset[LaneId] = frozenset()
    anomaly: FaultReason | None = None
    times: JobTimes | None = None


@attrs.frozen
class JobFailed:
    """The device finished the job, but its output failed: nothing may be committed."""

    job: JobId
    generation: GenerationId
    reason: FaultReason


@attrs.frozen
class JobNotSubmitted:
    """The device did not take the job; nothing happened to any lane."""

    job: JobId
    generation: GenerationId
    reason: FaultReason


@attrs.frozen
class JobUnknown:
    """Timeout, fault or loss: nobody knows what the job did. Its lanes and engine are quarantined."""

    job: JobId
    generation: GenerationId
    reason: FaultReason


@attrs.frozen
class ResetAsked:
    """An operator wants the device reset though nothing has failed."""


@attrs.frozen
class DeviceReset:
    """How `effects.ResetDevice` went.

    Args:
        failed: why the device must not be used; None: it is quiet, its models are configured and proven.
    """

    failed: FaultReason | None = None


# ---- generations and the service ---------------------------------------------------------------


@attrs.frozen
class GenerationAdvanced:
    """A load, drain or unload took a step.

    Args:
        shape: what the model offers; given with the step that makes it Ready.
        evidence: what it has been shown to do; None for nothing.
        drain_by_s: of a drain: monotonic; when what still runs is ended. None for no such moment.
    """

    generation: GenerationId
    alias: str
    step: GenerationEvent
    shape: ModelShape | None = None
    evidence: Evidence | None = None
    drain_by_s: float | None = None


@attrs.frozen
class ModelExpected:
    """A generation of the alias will come: who asks for it meanwhile waits, until its deadline."""

    alias: str


@attrs.frozen
class ModelForgone:
    """None will come: who waits for it is refused, and it shares the device no more."""

    alias: str


@attrs.frozen
class ModelParked:
    """The alias shares the device by time: who asks for it while another is there waits for its turn."""

    alias: str


@attrs.frozen
class SwitchFailed:
    """The alias that was wanted (`effects.Wanted`) could not be brought."""

    alias: str


@attrs.frozen
class PairDoubted:
    """Somebody outside the core saw what speaks against two engines at a time: a status, or a start after a fault.

    Args:
        doubt: what it is.
        reason: the fault that it shows, where it is seen for the first time; None for one that is known already.
    """

    doubt: Doubt
    reason: FaultReason | None = None


@attrs.frozen
class CallStuck:
    """A device call beside the jobs did not return: only a new process may use the device."""

    reason: FaultReason


@attrs.frozen
class PairTrusted:
    """An operator lets new jobs use both engines again."""


@attrs.frozen
class TenantsChanged:
    """The control plane gave tenants new weights and limits; nothing that waits or runs is lost."""

    tenants: Mapping[str, TenantPolicy]


@attrs.frozen
class DrainBegan:
    """No new requests; those that wait are refused; those that run may finish until ``deadline_s``."""

    deadline_s: float


@attrs.frozen
class TimePassed:
    """The moment that `next_wakeup` asked for has come."""


ModelEvent = GenerationAdvanced | ModelExpected | ModelForgone | ModelParked | SwitchFailed
"""What is told of models, not of requests: `calculet_trio.core.fleet`'s."""

Event = (
    Arrived
    | Offered
    | Cancelled
    | SequenceAllocated
    | SequenceRefused
    | SequenceReleased
    | JobFinished
    | JobFailed
    | JobNotSubmitted
    | JobUnknown
    | ResetAsked
    | DeviceReset
    | CallStuck
    | GenerationAdvanced
    | PairDoubted
    | PairTrusted
    | ModelExpected
    | ModelForgone
    | ModelParked
    | SwitchFailed
    | TenantsChanged
    | DrainBegan
    | TimePassed
)
