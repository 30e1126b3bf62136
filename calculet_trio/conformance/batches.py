"""Cases of batches: every lane of a batch is by itself, and a lane without a sequence is left alone.

Source: SPEC section 6, 13; S §7.3, §7.4, §18.
"""

from __future__ import annotations

from itertools import pairwise

from calculet_trio.conformance.agreement import Row
from calculet_trio.conformance.rig import DeviceStopped, Rig, Seat
from calculet_trio.core.profiles import BatchProfile

_FOLLOWING_TOKENS = 4
_LONGEST_TOKENS = 128
"""Of a sequence in `mixed_lengths`: beyond it, time is spent and nothing more is shown."""


def lanes_1_to_b(rig: Rig) -> str:
    """A batch of every size from 1 to B gives each lane what it says alone, wherever its window lies."""
    worst = 0.0
    for profile in rig.batches:
        for first in sorted({0, rig.shape.lanes - profile.compiled_batch}):
            worst = max(worst, _fill(rig, profile, first))
    sizes = ", ".join(str(profile.compiled_batch) for profile in rig.batches)
    return f"B = {sizes}; rows differ from those alone by at most {worst:.4g}"


def inactive_lane_writes_no_kv(rig: Rig) -> str:
    """Batches beside an idle lane change nothing in it, whether it holds a sequence or none."""
    prompt, following, beside = rig.tokens(10, 7), rig.tokens(11, 4), rig.tokens(12, 3)
    alone = rig.alone(prompt, following)
    for profile in rig.batches:
        batch = profile.compiled_batch
        for idle_lane in sorted({0, batch // 2, batch - 1}):
            others = [rig.take(lane) for lane in range(batch) if lane != idle_lane]
            for seat in others:
                rig.prefill(seat, beside)
            _decode_all(rig, profile, others, beside)
            idle = rig.take(idle_lane)
            rows = [rig.prefill(idle, prompt)]
            for token in following:
                _decode_all(rig, profile, others, beside)
                rows.append(rig.step(idle, token))
            rig.same(alone, rows, f"idle in lane {idle_lane} of B={batch}")
            rig.clear()
    return "idle and empty lanes say afterwards what they say alone, bit for bit"


def _decode_all(rig: Rig, profile: BatchProfile, seats: list[Seat], tokens: tuple[int, ...]) -> None:
    """Some batches in which every lane of the window but one takes part."""
    for token in tokens:
        rig.decode(profile, dict.fromkeys(seats, token))


def mixed_lengths(rig: Rig) -> str:
    """Sequences of very different lengths share a batch and say what each says alone."""
    worst, longest = 0.0, min(rig.max_seq, _LONGEST_TOKENS) - _FOLLOWING_TOKENS
    for profile in rig.batches:
        batch = profile.compiled_batch
        prompts = [rig.tokens(200 + lane, 1 + lane * (longest - 1) // (batch - 1)) for lane in range(batch)]
        following = rig.tokens(13, _FOLLOWING_TOKENS)
        alone = [rig.alone(prompt, following) for prompt in prompts]
        for one, other in pairwise(alone):
            rig.tell_apart(one, other, "two lanes")
        seats = [rig.take(lane) for lane in range(batch)]
        rows = {seat: [rig.prefill(seat, prompt)] for seat, prompt in zip(seats, prompts, strict=True)}
        for token in following:
            for seat, row in rig.decode(profile, dict.fromkeys(seats, token)).items():
                rows[seat].append(row)
        worst = max(rig.agree(alone[lane], rows[seat], f"B={batch}") for lane, seat in enumerate(seats))
        rig.clear()
    return f"1 to {longest} tokens; rows differ from those alone by at most {worst:.4g}"


def cancel_running(rig: Rig) -> str:
    """A lane given up in the middle of a batch stays held until the batch has ended; the others go on."""
    profile = rig.shape.decode[-1]
    lanes = range(profile.compiled_batch)
    following = rig.tokens(14, 4)
    prompts = [rig.tokens(300 + lane, 5) for lane in lanes]
    alone = [rig.alone(prompt, following) for prompt in prompts]
    seats = [rig.take(lane) for lane in lanes]
    for seat, prompt in zip(seats, prompts, strict=True):
        rig.prefill(seat, prompt)
    given_up = seats[0]
    job = rig.decode_job(profile, dict.fromkeys(seats, following[0]))
    submitted = rig.submit(job)
    if rig.is_released(given_up):
        raise DeviceStopped("a lane was released while a job held it")
    rig.finish(job, submitted)
    for seat in seats:
        seat.length += 1
    rig.give_back(given_up)
    worst = 0.0
    for token_place, token in enumerate(following[1:], start=2):
        going_on = rig.decode(profile, dict.fromkeys(seats[1:], token)) if seats[1:] else {}
        for seat, row in going_on.items():
            worst = max(worst, rig.agree([alone[seat.lane][token_place]], [row], "a lane that goes on"))
    rig.same(alone[0], rig.alone(prompts[0], following), "the lane, used again")
    return f"{len(seats) - 1} others went on; rows differ from those alone by at most {worst:.4g}"


def _fill(rig: Rig, profile: BatchProfile, first: int) -> float:
    """Lane i takes part from the round on in which i + 1 lanes do; then all of them go on for a while."""
    batch = profile.compiled_batch
    rounds = [*range(1, batch + 1), batch, batch]
    prompts, tokens = [rig.tokens(100 + lane, 4) for lane in range(batch)], rig.tokens(99, len(rounds))
    alone = [rig.alone(prompt, tokens[lane:]) for lane, prompt in enumerate(prompts)]
    for one, other in pairwise(alone):
        rig.tell_apart(one, other, "two lanes")
    seats = [rig.take(first + lane) for lane in range(batch)]
    rows: dict[Seat, list[Row]] = {
        seat: [rig.prefill(seat, prompt)] for seat, prompt in zip(seats, prompts, strict=True)
    }
    for active, token in zip(rounds, tokens, strict=True):
        for seat, row in rig.decode(profile, dict.fromkeys(seats[:active], token), first=first).items():
            rows[seat].append(row)
    what = f"B={batch} from lane {first}"
    worst = max(rig.agree(alone[lane], rows[seat], what) for lane, seat in enumerate(seats))
    rig.clear()
    return worst
