"""The opaque 64-bit identifiers that tie requests, generations, jobs and lanes together.

Source: SPEC section 2 (S §2).
"""

from typing import NewType

RequestId = NewType("RequestId", int)
"""One client request, from arrival to its terminal state. Never reused in a process."""

GenerationId = NewType("GenerationId", int)
"""One immutable load of one package. A request pins it; an alias points at it."""

JobId = NewType("JobId", int)
"""One submission to the device. Every completion carries it."""

NO_GENERATION = GenerationId(0)
"""What a request that waits for its model has pinned; generations count from 1."""

LaneId = NewType("LaneId", int)
"""Where a sequence's KV lies on the device, ``0 <= lane < lanes``; not its index in a batch."""

SequenceId = NewType("SequenceId", int)
"""One KV sequence resident on the device (the vendor's ``KvSeqId``). Never reused in a generation."""

ReservationId = NewType("ReservationId", int)
"""Which of a lane's reservations; the runtime's answer carries it. Never reused in a lane of a generation."""
