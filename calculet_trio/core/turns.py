"""Whose turn it is: decode and the three prefill classes share an engine.

Source: SPEC section 5 (S §6: ``8:4:2:1``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from calculet_trio.core.policy import QueuePolicy, TurnPolicy
from calculet_trio.core.transition import Symbol


class WorkKind(Symbol):
    """What an engine can be given next."""

    DECODE = "decode"
    SHORT_PREFILL = "short"
    MEDIUM_PREFILL = "medium"
    LONG_PREFILL = "long"


class Turns(Protocol):
    """A way of taking turns."""

    def turn(self, available: Sequence[WorkKind]) -> WorkKind:
        """Whose turn it is among ``available`` (at least one, in a fixed order)."""

    def charge(self, kind: WorkKind, device_s: float) -> None:
        """The job that ``turn`` led to has taken so long."""


class JobTurns:
    """``wrr``: smooth weighted round robin of jobs (nginx's): turns interleave instead of coming in runs.

    Only kinds that have work take part; a kind that was idle has saved nothing up.
    """

    def __init__(self, weights: dict[WorkKind, int]) -> None:
        self._weight = weights
        self._current = dict.fromkeys(WorkKind, 0)

    def turn(self, available: Sequence[WorkKind]) -> WorkKind:
        for kind in WorkKind:
            if kind not in available:
                self._current[kind] = 0
        for kind in available:
            self._current[kind] += self._weight[kind]
        chosen = max(available, key=self._current.__getitem__)
        self._current[chosen] -= sum(self._weight[kind] for kind in available)
        return chosen

    def charge(self, kind: WorkKind, device_s: float) -> None:
        """Jobs count, not their time."""


class DeviceTimeTurns:
    """``drr``: deficit round robin of device-seconds, measured: weights are shares of the device's time.

    A kind's deficit is the device time, by weight, that it is behind the one that has had most; the turn goes
    to the largest. Jobs cannot be cut to a quantum, so a kind that ran long is simply behind for as long as
    that takes to even out. A kind without work has its deficit forgiven: it saves nothing up.
    """

    _LEAST_S = 1e-6  # a clock may be too coarse for a job; where none takes any time, jobs are counted

    def __init__(self, weights: dict[WorkKind, int]) -> None:
        self._weight = weights
        self._had_s = dict.fromkeys(WorkKind, 0.0)  # by weight
        self._worked: frozenset[WorkKind] = frozenset()

    def turn(self, available: Sequence[WorkKind]) -> WorkKind:
        stayed = [self._had_s[kind] for kind in available if kind in self._worked]
        level = min(stayed) if stayed else max(self._had_s.values())
        for kind in available:
            if kind not in self._worked:
                self._had_s[kind] = max(self._had_s[kind], level)
        self._worked = frozenset(available)
        return min(available, key=self._had_s.__getitem__)

    def charge(self, kind: WorkKind, device_s: float) -> None:
        """Add what the kind has had."""
        self._had_s[kind] += max(device_s, self._LEAST_S) / self._weight[kind]


class LongQuota:
    """Long prefills may take no more than a share of the last minute's time while other work waits.

    Args:
        share: of 1; 1 is no quota.
    """

    _WINDOW_S = 60.0

    def __init__(self, share: float) -> None:
        self._share = share
        self._spells: deque[tuple[float, float]] = deque()  # end, seconds
        self._spent_s = 0.0

    def charge(self, device_s: float, now: float) -> None:
        """A long prefill has ended."""
        self._spells.append((now, device_s))
        self._spent_s += device_s
        self._forget(now)

    def allows(self, now: float) -> bool:
        """Whether another long prefill may go before other work."""
        self._forget(now)
        return self._share >= 1.0 or self._spent_s < self._share * self._WINDOW_S

    def _forget(self, now: float) -> None:
        while self._spells and self._spells[0][0] <= now - self._WINDOW_S:
            self._spent_s -= self._spells.popleft()[1]


def turns_of(policy: QueuePolicy) -> Turns:
    """The way of taking turns that the policy names."""
    weights = {
        WorkKind.DECODE: policy.decode_weight,
        WorkKind.SHORT_PREFILL: policy.short_prefill_weight,
        WorkKind.MEDIUM_PREFILL: policy.medium_prefill_weight,
        WorkKind.LONG_PREFILL: policy.long_prefill_weight,
    }
    return JobTurns(weights) if policy.policy is TurnPolicy.WRR else DeviceTimeTurns(weights)
