"""Comparison: how much slower a candidate is than its baseline, from paired blocks, and how sure that is.

Blocks alternate A B B A: a machine that grows slower, or faster, evenly while they run is so for both alike. Each
such foursome gives one number, the logarithm of B's mean over A's; their mean has a Student t interval. The
foursomes, not the tokens in them, are what is independent.

Source: S §19; Student (1908), "The probable error of a mean".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, log, sqrt
from statistics import fmean, stdev
from typing import Final, Generic, TypeVar

import attrs

from calculet_trio.conformance.gate import Criterion, GateVerdict

T = TypeVar("T")

FOURSOMES_MIN: Final = 3
"""With two, the interval is 6.5 times as wide as the spread: it would never say anything."""

_STUDENT: Final = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""Two-sided 95 % points of Student's t for 1 … 30 degrees of freedom; beyond, the last is a little too wide."""


@attrs.frozen
class Foursome(Generic[T]):
    """Four blocks in the order in which they ran: baseline, candidate, candidate, baseline."""

    baseline: tuple[T, T]
    candidate: tuple[T, T]


@attrs.frozen
class Interval:
    """Candidate over baseline: 1 is equal.

    Args:
        ratio: the estimate.
        low: its 95 % interval's lower end.
        high: its upper end.
        foursomes: how many it rests on.
    """

    ratio: float
    low: float
    high: float
    foursomes: int

    def __str__(self) -> str:
        spread = f"95 %: {self.low - 1:+.1%} to {self.high - 1:+.1%}"
        return f"{self.ratio - 1:+.1%} ({spread}, n = {self.foursomes})"


def alternate(run: Callable[[str], T], foursomes: int) -> tuple[Foursome[T], ...]:
    """Run blocks ``A B B A``, ``foursomes`` times; ``run`` is told ``baseline`` or ``candidate``."""
    done = []
    for _ in range(foursomes):
        first, second, third, fourth = (run(arm) for arm in ("baseline", "candidate", "candidate", "baseline"))
        done.append(Foursome((first, fourth), (second, third)))
    return tuple(done)


def interval(foursomes: Sequence[Foursome[T]], measure: Callable[[T], float]) -> Interval:
    """The interval of ``measure``, which must be positive for every block.

    Raises:
        ValueError: fewer foursomes than `FOURSOMES_MIN`, or a measure that is not positive.
    """
    if len(foursomes) < FOURSOMES_MIN:
        raise ValueError(f"{len(foursomes)} foursomes; an interval needs {FOURSOMES_MIN}")
    ratios = [_log_of(each.candidate, measure) - _log_of(each.baseline, measure) for each in foursomes]
    middle = fmean(ratios)
    freedom = len(ratios) - 1
    reach = _STUDENT[min(freedom, len(_STUDENT)) - 1] * stdev(ratios) / sqrt(len(ratios))
    return Interval(exp(middle), exp(middle - reach), exp(middle + reach), len(ratios))


def at_most(name: str, found: Interval, limit: float) -> Criterion:
    """The candidate's measure may be ``limit`` times the baseline's: a latency."""
    seen = f"{found}; allowed {limit - 1:+.0%}"
    return Criterion(name, _verdict(is_shown=found.high <= limit, is_refuted=found.low > limit), seen)


def at_least(name: str, found: Interval, limit: float) -> Criterion:
    """The candidate's measure must be ``limit`` times the baseline's: a throughput."""
    seen = f"{found}; wanted {limit - 1:+.0%}"
    return Criterion(name, _verdict(is_shown=found.low >= limit, is_refuted=found.high < limit), seen)


def _verdict(*, is_shown: bool, is_refuted: bool) -> GateVerdict:
    if is_shown:
        return GateVerdict.PASS
    return GateVerdict.FAIL if is_refuted else GateVerdict.INCONCLUSIVE


def _log_of(blocks: tuple[T, T], measure: Callable[[T], float]) -> float:
    return fmean(log(measure(block)) for block in blocks)
