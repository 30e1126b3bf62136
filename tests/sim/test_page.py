"""The page works offline, is well formed, and is honest."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from calculet_trio.sim.page import write_page
from calculet_trio.sim.plots import line_plot, timeline
from calculet_trio.sim.world import run_world
from tests.sim.small import DEVICE, small


def test_the_page_shows_everything_and_fetches_nothing() -> None:
    page = write_page(run_world(small()), command="calculet-trio simulate --seed <1>")
    assert "PASS (emulated)" in page
    assert all(number in page for number in DEVICE.assumed)
    assert "--seed &lt;1&gt;" in page
    assert not re.search(r"https?://|<script|<link|src=|@import|url\(", page)
    for plot in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ET.fromstring(plot)
    assert page.count("<svg") == 6


def test_nothing_measured_is_said_in_words() -> None:
    assert "nothing was measured" in line_plot({"a": []}, unit="s")
    assert "no engine had a job" in timeline({})


def test_values_stand_higher_the_larger_they_are_and_names_are_escaped() -> None:
    plot = line_plot({"<a>": [(0.0, 1.0), (1.0, 3.0), (2.0, 2.0)]}, unit="s")
    path = re.search(r'<path d="([^"]+)"', plot)
    assert path is not None
    heights = [float(place.split()[1]) for place in re.split("[ML]", path.group(1))[1:]]
    assert heights[1] < heights[2] < heights[0]
    assert "&lt;a&gt;" in plot
