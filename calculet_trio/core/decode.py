"""DecodeScheduler: which sequences get their next token in the next job.

Source: SPEC section 6 (S §7, §8).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import ceil
from operator import attrgetter
from typing import Final

from calculet_trio.core.jobs import DecodeJob, LaneWork
from calculet_trio.core.policy import BatchPolicy, DecodeOrder, DecodePolicy
from calculet_trio.core.profiles import BatchProfile, LaneLayout, LaneWindow, ModelShape, choose_window
from calculet_trio.core.request import Request, RequestState
from calculet_trio.core.service_rates import ServiceRates
from calculet_trio.ids import JobId, LaneId, RequestId


class DecodeScheduler:
    """Sequences that wait for their next token.

    Whose turn it is by `DecodePolicy.order` always decodes; with it go all that the profile can hold.

    Args:
        shape: the model.
        decode: order and caps.
        batch: which profiles, and how long to wait for a fuller one.
        rates: measured step times, for slack and for the batching window.
    """

    def __init__(self, shape: ModelShape, decode: DecodePolicy, batch: BatchPolicy, rates: ServiceRates) -> None:
        self._shape = shape
        self._decode = decode
        self._batch = batch
        self._rates = rates
        self._profiles = [
            profile
            for profile in sorted(shape.decode, key=lambda profile: profile.compiled_batch)
            if profile.is_usable and (batch.profiles is None or profile.compiled_batch in batch.profiles)
        ]
        assert self._profiles, "a package without a usable profile is not published"
        self._pool_max_seq: dict[str, int] = {}
        for profile in self._profiles:
            widest = max(profile.max_seq, self._pool_max_seq.get(profile.kv_pool, 0))
            self._pool_max_seq[profile.kv_pool] = widest
        self._is_uniform = len({(profile.max_seq, profile.kv_pool) for profile in self._profiles}) == 1
        self._ready: dict[RequestId, Request] = {}
        self._clock = 0.0
        self._next_turn: dict[str, float] = {}

    @property
    def max_seq(self) -> int:
        """The longest context that some usable profile decodes."""
        return max(profile.max_seq for profile in self._profiles)

    def push(self, request: Request) -> None:
        """The sequence waits for its next token, whose turn comes by its tenant's weight.

        Start-time fair queueing of single tokens: a tenant's sequences share its turns, first ready first, and a
        tenant that had nothing here starts from the present.
        """
        turn = self._next_turn.get(request.tenant)
        if turn is None or turn < self._clock:
            turn = self._clock
        request.turn = turn
        self._next_turn[request.tenant] = turn + 1.0 / request.weight
        self._ready[request.id] = request

    def put_back(self, request: Request) -> None:
        """The device did not take the job: the request has waited longest still."""
        self._ready = {request.id: request, **self._ready}

    def clear(self) -> None:
        """Nobody waits any more: no lane holds what it did."""
        self._ready.clear()

    def available(self) -> bool:
        """Whether anybody is ready."""
        return any(request.state is RequestState.DECODE_READY for request in self._ready.values())

    def waiting(self) -> list[Request]:
        """Those that are ready, longest wait first; those that ended meanwhile are let go."""
        ready = [request for request in self._ready.values() if request.state is RequestState.DECODE_READY]
        if len(ready) < len(self._ready):
            self._ready = {request.id: request for request in ready}
        return ready

    def hold_until_s(self, joinable: Callable[[], int]) -> float | None:
        """Until when a part-filled batch should wait for company; None to send it at once.

        Args:
            joinable: how many admitted sequences are not ready yet and may soon be; asked only if it matters.
        """
        window_s = self._batch.batching_window_s
        if window_s <= 0:
            return None
        ready = self.waiting()
        largest = self._profiles[-1].compiled_batch
        if not ready or len(ready) >= largest or not joinable():
            return None
        oldest_s = min(request.ready_s for request in ready)
        latest_start_s = min(request.deadline_s for request in ready) - self._rates.slowest_decode_s
        return min(oldest_s + window_s, latest_start_s - window_s)

    def waits_to_join(self, running: Sequence[Request]) -> bool:
        """Whether those who are ready do better to wait for those in flight, and then go with them in one batch.

        Two batches side by side cost the device two steps, unless its engines really compute at once. So it is
        tried once, and then what takes less time is done.
        """
        if not running or not self._is_uniform:
            return False
        together = [*self.waiting(), *running]
        if len(together) > self._profiles[-1].compiled_batch:
            return False
        lanes = [_lane_of(request) for request in together]
        if self._shape.layout is LaneLayout.CONTIGUOUS and max(lanes) - min(lanes) >= self._profiles[-1].compiled_batch:
            return False
        whole = self._smallest_for(len(together)).submodel
        return self._rates.were_beside and not self._rates.are_apart_faster(whole)

    def _smallest_for(self, sequences: int) -> BatchProfile:
        return next((each for each in self._profiles if each.compiled_batch >= sequences), self._profiles[-1])

    def plan(self, job: JobId, now: float, *, other_is_idle: bool = False) -> tuple[DecodeJob, list[Request]]:
        """The next batch: whose turn it is, and its company (`waiting` was not empty).

        Args:
            job: its id.
            now: monotonic seconds.
            other_is_idle: another engine could take half of them; it is left so much where that is known to be faster.
        """
        order = self._in_order(now)
        self._clock = max(self._clock, order[0].turn)
        profiles = self._eligible_profiles(order[0], len(order))
        if other_is_idle and self._is_uniform and self._rates.are_apart_faster(self._smallest_for(len(order)).submodel):
            half = self._smallest_for(ceil(len(order) / 2)).compiled_batch
            profiles = [profile for profile in profiles if profile.compiled_batch <= half] or profiles
        if self._shape.layout is LaneLayout.CONTIGUOUS:
            profile, first_lane, batch = self._contiguous(order, profiles)
        else:
            profile, batch = self._indirect(order, profiles)
            first_lane = None
        works = []
        for row, request in enumerate(batch):
            del self._ready[request.id]
            request.kv_pool = profile.kv_pool
            lane = request.lane
            assert lane is not None
            assert lane.sequence is not None
            index = row if first_lane is None else lane.id - first_lane
            generated, position = request.generated, lane.committed_len
            place = position - len(request.prompt)  # of the newest, but in a replay, which writes all of them again
            is_newest = place + 1 == len(generated)
            works.append(LaneWork(request.id, lane.sequence, lane.id, index, (generated[place],), position, is_newest))
        if len(self._next_turn) > 2 * len(self._ready) + self._shape.lanes:
            self._next_turn = {tenant: turn for tenant, turn in self._next_turn.items() if turn > self._clock}
        return DecodeJob(job, batch[0].generation, profile, first_lane, tuple(works)), batch

    # ---- who goes first -------------------------------------------------------------------------

    def _in_order(self, now: float) -> list[Request]:
        ready = sorted(self.waiting(), key=_TURN)
        if self._decode.order is DecodeOrder.EDF:
            return sorted(ready, key=_DEADLINE)
        step_s = self._rates.slowest_decode_s
        round_s = step_s * (len(ready) + 1)
        urgent = [
            each
            for each in ready
            if 0 <= each.order_deadline_s - now - step_s * (each.max_new_tokens - len(each.generated)) < round_s
        ]  # what cannot be saved any more does not jump ahead
        if not urgent:
            return ready
        return sorted(urgent, key=_DEADLINE) + [request for request in ready if request not in urgent]

    def _eligible_profiles(self, first: Request, ready: int) -> list[BatchProfile]:
        """Profiles that ``first`` may use, narrowed to the one whose threshold is met, where any is."""
        fitting = [profile for profile in self._profiles if self._fits(first, profile)]
        assert fitting, "a sequence is granted no more than some profile of its pool holds"
        met = [p for p in fitting if self._batch.thresholds.get(p.compiled_batch, ready + 1) <= ready]
        if met:
            return [max(met, key=lambda profile: profile.compiled_batch)]
        unset = [profile for profile in fitting if profile.compiled_batch not in self._batch.thresholds]
        return unset or fitting[:1]

    # ---- who goes with it -----------------------------------------------------------------------

    def _contiguous(
        self, order: list[Request], profiles: list[BatchProfile]
    ) -> tuple[BatchProfile, LaneId, list[Request]]:
        by_lane = {lane.id: request for request in order if (lane := request.lane) is not None}
        is_plain = self._is_uniform and self._decode.tenant_lane_share >= 1
        window = choose_window(
            by_lane.keys(),
            must=_lane_of(order[0]),
            shape=self._shape,
            profiles=profiles,
            worth=None if is_plain else partial(self._worth, by_lane),
        )
        return window.profile, window.first, self._members(by_lane, window)

    def _members(self, by_lane: Mapping[LaneId, Request], window: LaneWindow) -> list[Request]:
        lanes = range(window.first, window.first + window.profile.compiled_batch)
        present = [by_lane[lane] for lane in sorted(by_lane) if lane in lanes]
        return present if self._is_uniform else [each for each in present if self._fits(each, window.profile)]

    def _worth(self, by_lane: Mapping[LaneId, Request], window: LaneWindow) -> int:
        """Lanes in use; a tenant's beyond its share count for nothing."""
        cap = self._cap(window.profile)
        members = self._members(by_lane, window)
        return sum(min(cap, lanes) for lanes in Counter(request.tenant for request in members).values())

    def _indirect(self, order: list[Request], profiles: list[BatchProfile]) -> tuple[BatchProfile, list[Request]]:
        """The smallest profile that takes as many as the largest would; a tenant's share is capped first."""
        batches = [self._fill(order, profile) for profile in profiles]
        most = max(len(batch) for batch in batches)
        chosen = next(n for n, batch in enumerate(batches) if len(batch) == most)
        return profiles[chosen], batches[chosen]

    def _fill(self, order: list[Request], profile: BatchProfile) -> list[Request]:
        cap = self._cap(profile)
        within: list[Request] = []
        beyond: list[Request] = []
        taken: Counter[str] = Counter()
        for request in order:
            if self._fits(request, profile):
                taken[request.tenant] += 1
                (within if taken[request.tenant] <= cap else beyond).append(request)
        return (within + beyond)[: profile.compiled_batch]

    def _fits(self, request: Request, profile: BatchProfile) -> bool:
        """Whether the profile may decode the sequence now, and its pool can see it to its end."""
        assert request.lane is not None
        return self._is_uniform or (  # then what fits one profile fits all, and admission saw that it fits one
            request.lane.committed_len < profile.max_seq
            and request.kv_pool in (None, profile.kv_pool)
            and request.tokens_at_most <= self._pool_max_seq[profile.kv_pool]
        )

    def _cap(self, profile: BatchProfile) -> int:
        return max(1, ceil(self._decode.tenant_lane_share * profile.compiled_batch))


_TURN: Final = attrgetter("turn")
_DEADLINE: Final = attrgetter("order_deadline_s")


def _lane_of(request: Request) -> LaneId:
    assert request.lane is not None
    return request.lane.id
