"""Retention: lanes of ended requests keep what was written into them, for a request that begins the same.

    ACTIVE ──its request's reply is whole──▶ RETAINED ──a prompt begins like it──▶ RESERVED: its tail is dropped,
                                                │                                     the rest of the prompt appended
                                                └─ wanted, too old, too many, a drain, a reset: it goes, oldest first

A retained lane is the tenant's whose request it was: no other tenant's request is matched with it, so that nobody can
tell by timing what another has asked. It makes nobody wait: for admission it counts as free, and it is given up as
soon as somebody wants a lane, or the KV tokens. What it holds is known exactly: the tokens that jobs committed, which
the last token of a reply never is.

Whoever goes on from there is to be told what it would be told without, so every token that is used again must have been
computed as it would be now. A prefill in pieces comes to the same numbers, as the package has shown; of decode that is
another matter, whose kernels may be other ones. So of a reply nothing is used again, until it was shown that it may be,
or an operator prefers the shorter wait.

Source: SPEC section 7, 12 (S §9.3); issue "prefix reuse".
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from calculet_trio.core.jobs import PIECE_TOKENS_MIN
from calculet_trio.core.lanes import KvLane
from calculet_trio.core.policy import ReusePolicy
from calculet_trio.core.request import Request
from calculet_trio.ids import LaneId


@attrs.define
class ReuseCounts:
    """What reuse has come to, over all generations.

    Attributes:
        hits: requests that went on from a retained lane.
        tokens: of their prompts, that were not prefilled again.
        evictions: retained lanes that were given up without.
    """

    hits: int = 0
    tokens: int = 0
    evictions: int = 0

    def with_more(self, other: ReuseCounts) -> ReuseCounts:
        """Both together."""
        return ReuseCounts(self.hits + other.hits, self.tokens + other.tokens, self.evictions + other.evictions)


@attrs.frozen
class Retained:
    """A lane, and what of it may be used again.

    Args:
        tokens: the first of those that it holds.
        since_s: monotonic; when its request ended.
    """

    lane: KvLane
    tenant: str
    tokens: Sequence[int]
    since_s: float


@attrs.frozen
class Match:
    """A retained lane whose first ``tokens`` a request needs not prefill."""

    lane: KvLane
    tokens: int


class Retention:
    """One generation's retained lanes, the oldest first.

    Args:
        policy: bounds; None: nothing is retained.
        counts: shared by all generations.
        replies: whether what decode wrote may be used again, too.
    """

    def __init__(self, policy: ReusePolicy | None, counts: ReuseCounts, *, replies: bool) -> None:
        self.counts = counts
        self._policy = policy
        self._replies = replies
        self._retained: dict[LaneId, Retained] = {}

    @property
    def is_enabled(self) -> bool:
        """Whether lanes are to be allocated with room for whoever goes on from there."""
        return self._policy is not None

    @property
    def lanes(self) -> list[KvLane]:
        """All of them."""
        return [each.lane for each in self._retained.values()]

    def tenant_of(self, lane: LaneId) -> str | None:
        """Whose request a retained lane was; None for a lane that is not retained."""
        held = self._retained.get(lane)
        return None if held is None else held.tenant

    def keep(self, request: Request, now: float) -> bool:
        """The request is about to end and its lane is in no job: retain the lane, if that may be of use."""
        lane = request.lane
        assert lane is not None
        tokens = lane.committed_len if self._replies else request.prefilled_tokens
        if self._policy is None or tokens < max(self._policy.min_tokens, PIECE_TOKENS_MIN):
            return False
        lane.retain()
        request.lane = None
        self._retained[lane.id] = Retained(lane, request.tenant, request.known_tokens[:tokens], now)
        return True

    def match(self, request: Request) -> Match | None:
        """The lane of the request's tenant with the longest beginning of its tokens, the youngest among equals.

        Some tokens are left to prefill: without there are no logits. A lane of which less than half would be used again
        is not taken for it: another conversation that begins the same may come back to it.
        """
        best: Match | None = None
        wanted = request.known_tokens if self._replies else request.prompt
        for each in reversed(self._retained.values()):
            if each.tenant != request.tenant:
                continue
            tokens = _shared(each.tokens, wanted, most=len(wanted) - PIECE_TOKENS_MIN)
            if self._is_worth(tokens, each) and (best is None or tokens > best.tokens):
                best = Match(each.lane, tokens)
        return best

    def take(self, match: Match, request: Request) -> int:
        """Reserve the matched lane for the request; how many tokens are to be dropped from its end."""
        del self._retained[match.lane.id]
        dropped = match.lane.committed_len - match.tokens
        match.lane.reserve(request.id, request.tokens_at_most, kept=match.tokens)
        return dropped

    def used(self, tokens: int) -> None:
        """A request goes on from so many tokens."""
        self.counts.hits += 1
        self.counts.tokens += tokens

    def evict(self, *, sparing: KvLane | None = None) -> KvLane:
        """Give up the oldest, another than ``sparing``; there is one. The caller has it released."""
        oldest = next(each.lane for each in self._retained.values() if each.lane is not sparing)
        return self._give_up(oldest)

    def evict_due(self, now: float) -> list[KvLane]:
        """Give up those that are too old or too many; the caller has them released."""
        if not self._retained:
            return []
        assert self._policy is not None
        most = self._policy.max_lanes
        excess = 0 if most is None else len(self._retained) - most
        due = [
            each.lane
            for place, each in enumerate(self._retained.values())
            if place < excess or now >= each.since_s + self._policy.max_age_s
        ]
        return [self._give_up(lane) for lane in due]

    def evict_all(self) -> list[KvLane]:
        """The generation drains: give up all; the caller has them released."""
        return [self._give_up(lane) for lane in self.lanes]

    def close(self) -> list[KvLane]:
        """The service drains: `evict_all`, and nothing is retained any more."""
        lanes = self.evict_all()
        self._policy = None
        return lanes

    def lose_all(self) -> None:
        """The device's state is unknown: nothing is retained."""
        self._retained.clear()

    def next_s(self) -> float | None:
        """When the oldest will have been retained long enough, monotonic; None while there is none."""
        if not self._retained:
            return None
        assert self._policy is not None
        return next(iter(self._retained.values())).since_s + self._policy.max_age_s

    def _is_worth(self, tokens: int, held: Retained) -> bool:
        assert self._policy is not None
        return tokens >= self._policy.min_tokens and 2 * tokens >= len(held.tokens)

    def _give_up(self, lane: KvLane) -> KvLane:
        del self._retained[lane.id]
        self.counts.evictions += 1
        return lane


def _shared(one: Sequence[int], other: Sequence[int], *, most: int) -> int:
    """How many tokens both begin with, up to ``most``; by halves, each compared as a whole."""
    same, most = 0, min(most, len(one))
    while same < most:
        middle = (same + most + 1) // 2
        if one[same:middle] == other[same:middle]:
            same = middle
        else:
            most = middle - 1
    return same
