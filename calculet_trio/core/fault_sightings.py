"""Sightings: where a fault shows among what the core is told and what it decides, each once.

Metrics count them and the log tells them, both from here, so that neither knows of one that the other does not.

Source: SPEC section 9, 11 (S §16); `calculet_trio.core.faults` has each reason's row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from calculet_trio.core.effects import Effect, Fail, Vacated
from calculet_trio.core.events import (
    CallStuck,
    DeviceReset,
    Event,
    FaultReason,
    JobFailed,
    JobFinished,
    JobNotSubmitted,
    JobUnknown,
    PairDoubted,
    SequenceRefused,
    SequenceReleased,
)

OF_REQUESTS: Final = frozenset(
    {FaultReason.DEADLINE_EXCEEDED, FaultReason.MODEL_UNLOADED, FaultReason.OPERATOR_RESET, FaultReason.SHUTDOWN}
)
"""Reasons that no event of the device carries: they show where a request ends by them."""

Sighting = tuple[FaultReason, Mapping[str, Any]]
"""A reason, and where it showed: ids of jobs, lanes, requests and generations."""


def seen_in_event(event: Event) -> Iterator[Sighting]:
    """What the event says of faults."""
    match event:
        case JobFinished():
            yield from _seen_in_finished(event)
        case JobFailed(job, _, reason) | JobNotSubmitted(job, _, reason) | JobUnknown(job, _, reason):
            yield reason, {"job": job}
        case SequenceRefused(lane=lane, reason=reason):
            yield reason, {"lane": lane}
        case SequenceReleased(lane=lane, confirmed=False):
            yield FaultReason.UNCONFIRMED_RELEASE, {"lane": lane}
        case DeviceReset(reason) | CallStuck(reason) | PairDoubted(_, reason) if reason is not None:
            yield reason, {}


def seen_in_effect(effect: Effect) -> Iterator[Sighting]:
    """What the effect says of faults; those of a job were in its event, and are not told again for each request."""
    match effect:
        case Vacated(generation, overdue=True):
            yield FaultReason.SLOW_DRAIN, {"generation": generation}
        case Fail(request, reason) if reason in OF_REQUESTS:
            yield reason, {"request": request}


def _seen_in_finished(event: JobFinished) -> Iterator[Sighting]:
    if event.anomaly is not None:
        yield event.anomaly, {"job": event.job}
    if event.lost:
        yield FaultReason.LANE_LOST, {"job": event.job, "lanes": sorted(event.lost)}
    for result in event.results:
        if result.failed is not None:
            yield result.failed, {"job": event.job, "lane": result.lane}
