"""Plots as inline SVG: enough for a page that works without a network.

Source: SPEC section 11.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

Points = Sequence[tuple[float, float]]

COLOURS: Final = ("#2f6fde", "#d9622b", "#2c9a5b", "#8e4ec6", "#b8860b", "#c2365b", "#4b8a99", "#777777")
WIDTH: Final = 920
HEIGHT: Final = 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 12, 30
_POINTS_MAX: Final = 1500
_TICKS: Final = 5


def line_plot(series: Mapping[str, Points], *, unit: str, stepped: bool = False) -> str:
    """Lines over virtual time, in seconds, from zero up; a legend below.

    Args:
        series: name → points, in order of time.
        unit: of the values.
        stepped: whether a value holds until the next point.
    """
    points = [point for line in series.values() for point in line]
    if not points:
        return '<p class="nothing">nothing was measured</p>'
    scale = _Scale(
        begin=min(moment for moment, _ in points),
        end=max(moment for moment, _ in points),
        top=max([1e-9, *(value for _, value in points)]),
    )
    lines = []
    for number, line in enumerate(series.values()):
        path = _path(_thinned(line), scale, stepped=stepped)
        lines.append(f'<path d="{path}" fill="none" stroke="{_colour(number)}" stroke-width="1.5"/>')
    return _framed(scale.axes(unit) + "".join(lines)) + _legend(series)


def timeline(rows: Mapping[str, Sequence[tuple[float, float, str]]]) -> str:
    """Rows of bars over time: name → (begin, end, what); what is the colour."""
    bars = [bar for row in rows.values() for bar in row]
    if not bars:
        return '<p class="nothing">no engine had a job</p>'
    kinds = list(dict.fromkeys(what for _, _, what in bars))
    scale = _Scale(begin=min(begin for begin, _, _ in bars), end=max(end for _, end, _ in bars), top=len(rows))
    height = (HEIGHT - _TOP - _BOTTOM) / len(rows)
    shapes = []
    for number, (name, row) in enumerate(rows.items()):
        top = _TOP + number * height
        shapes.append(f'<text x="4" y="{top + height / 2:.1f}">{escape(name)}</text>')
        for begin, end, what in row:
            x, width = scale.x(begin), max(0.4, scale.x(end) - scale.x(begin))
            shapes.append(
                f'<rect x="{x:.2f}" y="{top + 4:.1f}" width="{width:.2f}" height="{height - 8:.1f}" '
                f'fill="{_colour(kinds.index(what))}"><title>{escape(what)}, {end - begin:.4f} s</title></rect>'
            )
    return _framed(scale.moments() + "".join(shapes)) + _legend(kinds)


class _Scale:
    """From moments and values to places in the picture."""

    def __init__(self, *, begin: float, end: float, top: float) -> None:
        self._begin = begin
        self._span = max(end - begin, 1e-9)
        self._top = top

    def x(self, moment: float) -> float:
        return _LEFT + (moment - self._begin) / self._span * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - _BOTTOM - value / self._top * (HEIGHT - _TOP - _BOTTOM)

    def axes(self, unit: str) -> str:
        values = []
        for number in range(_TICKS):
            value = self._top * number / (_TICKS - 1)
            y = self.y(value)
            label = f"{value:,.0f}" if value >= 1000 else f"{value:.3g} {unit}".strip()
            values.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            values.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(label)}</text>')
        return "".join(values) + self.moments()

    def moments(self) -> str:
        marks = []
        for number in range(_TICKS):
            moment = self._begin + self._span * number / (_TICKS - 1)
            anchor = "end" if number == _TICKS - 1 else "middle"
            place = f'x="{self.x(moment):.1f}" y="{HEIGHT - 8}" text-anchor="{anchor}"'
            marks.append(f"<text {place}>{_moment(moment, self._span)}</text>")
        return "".join(marks)


def _moment(moment_s: float, span_s: float) -> str:
    if span_s >= 7200:
        return f"{moment_s / 3600:.1f} h"
    return f"{moment_s / 60:.1f} min" if span_s >= 300 else f"{moment_s:.2f} s"


def _thinned(line: Points) -> Points:
    """Every so-manieth point, and the last: a picture shows no more."""
    stride = len(line) // _POINTS_MAX + 1
    return line if stride == 1 else [*line[::stride], line[-1]]


def _path(line: Points, scale: _Scale, *, stepped: bool) -> str:
    places = [(scale.x(moment), scale.y(value)) for moment, value in line]
    if not places:
        return ""
    words = [f"M{places[0][0]:.1f} {places[0][1]:.1f}"]
    for x, y in places[1:]:
        words.append(f"H{x:.1f}V{y:.1f}" if stepped else f"L{x:.1f} {y:.1f}")
    return "".join(words)


def _framed(inside: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{inside}</svg>'


def _legend(names: Mapping[str, object] | Sequence[str]) -> str:
    entries = (
        f'<span><i style="background:{_colour(number)}"></i>{escape(name)}</span>' for number, name in enumerate(names)
    )
    return f'<p class="legend">{"".join(entries)}</p>'


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]
