"""A yardstick: a fixed piece of plain Python, timed beside what a benchmark is about.

A machine is at times half as fast in everything; then both take longer. If the yardstick is as before and the rest
takes longer, it is the rest.
"""

from __future__ import annotations

import time


class Mark:
    """What the yardstick makes many of."""

    __slots__ = ("name", "place", "value")

    def __init__(self, name: int, place: int, value: float) -> None:
        self.name = name
        self.place = place
        self.value = value

    def move(self, by: float) -> float:
        """A call, two attributes, a sum."""
        self.value += by
        return self.value


def yardstick_s() -> float:
    """Seconds that a hundred objects take: made, called, put into a dictionary, sorted, taken out."""
    begin = time.perf_counter()
    marks: dict[int, Mark] = {}
    for name in range(100):
        mark = marks[name] = Mark(name, name % 7, 0.5)
        mark.move(mark.place)
    for mark in sorted(marks.values(), key=lambda mark: (mark.value, mark.name)):
        del marks[mark.name]
    return time.perf_counter() - begin
