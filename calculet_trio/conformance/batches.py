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
_FULL_ROUNDS = 3
"""In which all lanes of a batch take part."""


def lanes_1_to_b(rig: Rig) -> str:
    """A batch of every size from 1 to B gives each lane what it says alone, wherever its window lies."""
    largest = rig.batches[-1].compiled_batch
    prompts, tokens = [rig.tokens(100 + lane, 4) for lane in range(largest)], rig.tokens(99, largest + _FULL_ROUNDS - 1)
    alone = [
        rig.alone(prompt, tokens[lane:]) for lane, prompt in enumerate(prompts)
    ]  # of smaller batches, the beginning
    _tell_apart(rig, alone)
    worst = 0.0
    for profile in rig.batches:
        for first in sorted({0, rig.shape.lanes - profile.compiled_batch}):
            worst = max(worst, _fill(rig, profile, first, prompts, tokens, alone))
    sizes = ", ".join(str(profile.compiled_batch) for profile in rig.batches)
    return f"B = {sizes}; rows differ from those alone by at most {worst:.4g}"


def inactive_lane_writes_no_kv(rig: Rig) -> str:
    """Batches beside an idle lane change nothing in it, whether it holds a sequence or none."""
    # The batch stays shorter than the idle sequence, so that whatever it wrote there by its own positions would show.
    prompt, following, beside = rig.tokens(10, 24), rig.tokens(11, 3), rig.tokens(12, 3)
    alone = rig.alone(prompt, following)
    for profile in rig.batches:
        batch = profile.compiled_batch
        seats = {lane: _prefilled(rig, lane, beside) for lane in range(batch)}
        for idle_lane in sorted({0, batch // 2, batch - 1}):
            rig.give_back(seats.pop(idle_lane))
            others = list(seats.values())
            rig.decode(profile, dict.fromkeys(others, beside[0]))
            idle = rig.take(idle_lane)
            rows = [rig.prefill(idle, prompt)]
            for token in following:
                rig.decode(profile, dict.fromkeys(others, token))
                rows.append(rig.step(idle, token))
            rig.same(alone, rows, f"idle in lane {idle_lane} of B={batch}")
            rig.give_back(idle)
            seats[idle_lane] = _prefilled(rig, idle_lane, beside)
        rig.clear()
    return "idle and empty lanes say afterwards what they say alone, bit for bit"


def mixed_lengths(rig: Rig) -> str:
    """Sequences of very different lengths share a batch and say what each says alone."""
    worst, longest = 0.0, min(rig.max_seq, _LONGEST_TOKENS) - _FOLLOWING_TOKENS
    largest = rig.batches[-1].compiled_batch
    lengths = [round(longest ** (place / (largest - 1))) for place in range(largest)]  # short ones in plenty, one long
    prompts = [rig.tokens(200 + place, length) for place, length in enumerate(lengths)]
    following = rig.tokens(13, _FOLLOWING_TOKENS)
    alone = [rig.alone(prompt, following) for prompt in prompts]
    _tell_apart(rig, alone)
    for profile in rig.batches:
        batch = profile.compiled_batch
        places = [
            lane * (largest - 1) // (batch - 1) for lane in range(batch)
        ]  # the shortest, the longest, and between
        seats = [rig.take(lane) for lane in range(batch)]
        rows = {seat: [rig.prefill(seat, prompts[place])] for seat, place in zip(seats, places, strict=True)}
        for token in following:
            for seat, row in rig.decode(profile, dict.fromkeys(seats, token)).items():
                rows[seat].append(row)
        for seat, place in zip(seats, places, strict=True):
            worst = max(worst, rig.agree(alone[place], rows[seat], f"B={batch}"))
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


def _tell_apart(rig: Rig, alone: list[list[Row]]) -> None:
    for one, other in pairwise(alone):
        rig.tell_apart(one, other, "two lanes")


def _prefilled(rig: Rig, lane: int, prompt: tuple[int, ...]) -> Seat:
    seat = rig.take(lane)
    rig.prefill(seat, prompt)
    return seat


def _fill(
    rig: Rig,
    profile: BatchProfile,
    first: int,
    prompts: list[tuple[int, ...]],
    tokens: tuple[int, ...],
    alone: list[list[Row]],
) -> float:
    """Lane i takes part from the round on in which i + 1 lanes do; then all of them go on for a while."""
    batch = profile.compiled_batch
    rounds = [*range(1, batch), *[batch] * _FULL_ROUNDS]
    seats = [rig.take(first + lane) for lane in range(batch)]
    rows: dict[Seat, list[Row]] = {
        seat: [rig.prefill(seat, prompt)] for seat, prompt in zip(seats, prompts, strict=False)
    }
    for active, token in zip(rounds, tokens, strict=False):
        for seat, row in rig.decode(profile, dict.fromkeys(seats[:active], token), first=first).items():
            rows[seat].append(row)
    what = f"B={batch} from lane {first}"
    worst = max(rig.agree(alone[lane][: len(rows[seat])], rows[seat], what) for lane, seat in enumerate(seats))
    rig.clear()
    return worst
