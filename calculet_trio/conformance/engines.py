"""Cases of engines: two jobs at the same time are two jobs one after the other.

Source: SPEC section 9, 13; S §14, §18.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from calculet_trio.conformance.agreement import Row
from calculet_trio.conformance.rig import NotApplicable, Rig, Seat
from calculet_trio.core.jobs import Job
from calculet_trio.core.profiles import BatchProfile

_STEPS = 6


def ping_pong_two_jobs(rig: Rig) -> str:
    """Two engines, each with a job in flight, say what one engine says; the halves change engines and order."""
    if len(rig.engines) < 2:
        raise NotApplicable(f"the device has one engine, {rig.engines[0].value}")
    profiles = [profile for profile in rig.shape.decode if 2 * profile.compiled_batch <= rig.shape.lanes]
    if not profiles:
        raise NotApplicable("no two batches have lanes of their own")
    for profile in profiles:
        _two_halves(rig, profile)
        rig.clear()
    batches = ", ".join(str(profile.compiled_batch) for profile in profiles)
    return f"B = {batches}: {_STEPS} steps of two batches in flight, bit for bit those of one engine"


def _two_halves(rig: Rig, profile: BatchProfile) -> None:
    batch = profile.compiled_batch
    firsts = (0, rig.shape.lanes - batch)
    following = rig.tokens(40, _STEPS)
    prompts = [[rig.tokens(700 + first + lane, 4 + lane) for lane in range(batch)] for first in firsts]
    alone = [_one_engine(rig, profile, first, half, following) for first, half in zip(firsts, prompts, strict=True)]
    for one, other in pairwise(alone):
        rig.tell_apart(one[0], other[0], "the two batches")
    halves = [[rig.take(first + lane) for lane in range(batch)] for first in firsts]
    rows: dict[Seat, list[Row]] = {}
    for seats, half in zip(halves, prompts, strict=True):
        for seat, prompt in zip(seats, half, strict=True):
            rows[seat] = [rig.prefill(seat, prompt)]
    for place, token in enumerate(following):
        jobs = [
            rig.decode_job(profile, dict.fromkeys(seats, token), first=first)
            for seats, first in zip(halves, firsts, strict=True)
        ]
        for seats, said in zip(halves, _both(rig, jobs, place), strict=True):
            for seat, row in zip(seats, said, strict=True):
                rows[seat].append(row)
                seat.length += 1
    for seats, expected in zip(halves, alone, strict=True):
        for seat, said in zip(seats, expected, strict=True):
            rig.same(said, rows[seat], f"two jobs of B={batch} in flight, lane {seat.lane}")


def _both(rig: Rig, jobs: Sequence[Job], place: int) -> list[list[Row]]:
    """Both jobs in flight at once; engines swap every step, the order of waiting every other."""
    ping, pong = rig.engines[:2]
    engines = (ping, pong) if place % 2 == 0 else (pong, ping)
    submitted = [rig.submit(job, engine=engine) for job, engine in zip(jobs, engines, strict=True)]
    said: dict[int, list[Row]] = {}
    for half in (0, 1) if place % 4 < 2 else (1, 0):
        ran = rig.finish(jobs[half], submitted[half], engine=engines[half])
        said[half] = [rig.row_of(jobs[half], ran, work=work) for work in range(len(jobs[half].lanes))]
    return [said[0], said[1]]


def _one_engine(
    rig: Rig, profile: BatchProfile, first: int, prompts: list[tuple[int, ...]], following: tuple[int, ...]
) -> list[list[Row]]:
    seats = [rig.take(first + lane) for lane in range(len(prompts))]
    rows = [[rig.prefill(seat, prompt)] for seat, prompt in zip(seats, prompts, strict=True)]
    for token in following:
        said = rig.decode(profile, dict.fromkeys(seats, token), first=first)
        for seat, mine in zip(seats, rows, strict=True):
            mine.append(said[seat])
    for seat in seats:
        rig.give_back(seat)
    return rows
