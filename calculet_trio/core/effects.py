"""What the core wants done. The shell begins jobs at once, performs the rest in order, and decides nothing.

Source: SPEC section 3, 4 (S §3–§5).
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import attrs

from calculet_trio.core.events import Doubt, FaultReason
from calculet_trio.core.jobs import EngineId, Job
from calculet_trio.ids import GenerationId, LaneId, RequestId, ReservationId, SequenceId


class FinishReason(Enum):
    """How a reply that succeeded ended; the values are OpenAI's."""

    STOP = "stop"
    LENGTH = "length"


class RefusalKind(Enum):
    """The three refusals of S §5.2; ``api.errors`` gives them their status."""

    INVALID = "invalid"
    CAPACITY = "capacity"
    UNAVAILABLE = "unavailable"


@attrs.frozen
class Refusal:
    """Why a request was not admitted.

    Args:
        kind: whose fault it is: the request's, the load's, the service's.
        code: machine-readable (``queue_full``, ``context_length_exceeded``, ``draining`` ...).
        message: one sentence naming the limit.
        retry_after_s: estimate of when to come back, or None.
        prompt_tokens, limit_tokens: both counts, for ``context_length_exceeded``.
    """

    kind: RefusalKind
    code: str
    message: str
    retry_after_s: float | None = None
    prompt_tokens: int | None = None
    limit_tokens: int | None = None


@attrs.frozen
class Place:
    """The request has a waiting place and a generation: tokenize its prompt and offer it."""

    request: RequestId
    generation: GenerationId
    tenant: str


@attrs.frozen
class Refuse:
    """The request ended before admission. Its stream closes with this."""

    request: RequestId
    refusal: Refusal


@attrs.frozen
class Admit:
    """The request holds a lane; its client may be told (headers may be sent).

    Args:
        queued_s: from arrival to now.
        expected_wait_s: what the forecast was when it was offered; None where nothing was measured yet.
        cached_tokens: of its prompt, those that its lane holds already.
    """

    request: RequestId
    prompt_tokens: int
    max_new_tokens: int
    queued_s: float
    expected_wait_s: float | None
    cached_tokens: int = 0


@attrs.define  # one a token: see `calculet_trio.core.jobs.LaneWork`
class Deliver:
    """Hand one lane's output, as the sampler made it, to the request's stream."""

    request: Final[RequestId]
    output: Final[object]


@attrs.frozen
class Finish:
    """The reply is whole. The stream flushes what it held back and closes."""

    request: RequestId
    reason: FinishReason
    truncated_by: str | None = None


@attrs.frozen
class Fail:
    """The admitted request is lost. The stream closes with an error."""

    request: RequestId
    reason: FaultReason
    retryable: bool


@attrs.frozen
class Drop:
    """The request was cancelled and nothing of it is left with the device. The stream closes silently."""

    request: RequestId


@attrs.frozen
class AllocateSequence:
    """Ask the runtime for a KV sequence of up to ``tokens`` in ``lane``."""

    generation: GenerationId
    lane: LaneId
    request: RequestId
    reservation: ReservationId
    tokens: int


@attrs.frozen
class ContinueSequence:
    """Go on with a retained sequence, for ``request``: drop its last ``drop_tokens``. Answered as an allocation is."""

    generation: GenerationId
    lane: LaneId
    request: RequestId
    reservation: ReservationId
    sequence: SequenceId
    drop_tokens: int


@attrs.frozen
class ReleaseSequence:
    """Give the lane's sequence back to the runtime, which must confirm."""

    generation: GenerationId
    lane: LaneId
    sequence: SequenceId


@attrs.frozen
class SubmitJob:
    """Run the job on the engine: submitted and drained, or not submitted."""

    engine: EngineId
    job: Job


@attrs.frozen
class Quarantined:
    """A job's fate is unknown: the engine takes no more work until the device has been reset."""

    engine: EngineId
    reason: FaultReason


@attrs.frozen
class PairDegraded:
    """New jobs keep to one engine, one at a time; what is in flight drains."""

    doubt: Doubt


@attrs.frozen
class PairRestored:
    """New jobs use both engines again.

    Args:
        by: ``restore``, an operator's word, or ``prove``, a clean probation.
    """

    by: str


@attrs.frozen
class ResetDevice:
    """Nothing is out any more: reset the device, configure its models anew, prove them, and tell how that went.

    Args:
        reason: why.
        engine: whose job met the fault; None if it was no job's.
    """

    reason: FaultReason
    engine: EngineId | None = None


@attrs.frozen
class ResetRefused:
    """The reset that an operator asked for is not made; ``why`` is a sentence for him."""

    why: str


@attrs.frozen
class Abandon:
    """The device is given up: clients have been told, only a new process may use it.

    Args:
        reason: of the last fault.
        engine: whose job it met; None if it was no job's.
    """

    reason: FaultReason
    engine: EngineId | None = None


@attrs.frozen
class Vacated:
    """The draining generation holds nothing any more, on the host or the device: it may be unloaded. Said once.

    Args:
        overdue: a job was still out when its drain time was over; what the device holds is to be proven anew.
    """

    generation: GenerationId
    overdue: bool


@attrs.frozen
class Wanted:
    """The device is to be given to this alias, whoever has it now. Answered by its publication or `SwitchFailed`."""

    alias: str


@attrs.frozen
class Drained:
    """After `DrainBegan`: no request is left and no job is in flight. Said once."""


Effect = (
    Place
    | Refuse
    | Admit
    | Deliver
    | Finish
    | Fail
    | Drop
    | AllocateSequence
    | ContinueSequence
    | ReleaseSequence
    | SubmitJob
    | Quarantined
    | PairDegraded
    | PairRestored
    | ResetDevice
    | ResetRefused
    | Abandon
    | Vacated
    | Wanted
    | Drained
)
