"""The page: a simulation's outcome with plots, one file that works offline.

Source: SPEC section 11, 12 (honesty).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

import numpy as np

from calculet_trio.sim.plots import COLOURS, Points, line_plot, timeline
from calculet_trio.sim.record import Reply
from calculet_trio.sim.summary import LATENCIES, Summary, summarize
from calculet_trio.sim.world import Outcome

_BINS: Final = 80
_TIMELINE_JOBS: Final = 240
_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1c2128; --paper: #fcfcfb; --faint: #8885; }
@media (prefers-color-scheme: dark) { :root { --ink: #dfe3e8; --paper: #16191d; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 960px;
       margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .3rem; }
svg { width: 100%; height: auto; } svg text { font-size: 11px; fill: var(--ink); } .grid { stroke: var(--faint); }
table { border-collapse: collapse; } td, th { padding: .15rem 1rem .15rem 0; text-align: left; }
td.n { text-align: right; font-variant-numeric: tabular-nums; } code { overflow-wrap: anywhere; }
.legend span { margin-right: 1rem; } .legend i { display: inline-block; width: .8em; height: .8em; margin-right: .3em; }
.verdict { font-weight: 600; } .note { border-left: 3px solid #b8860b; padding-left: .8rem; }
"""


def write_page(outcome: Outcome, *, command: str) -> str:
    """The whole page as HTML.

    Args:
        outcome: of a world that passed.
        command: runs it again.
    """
    summary = summarize(outcome)
    record = outcome.record
    parts = [
        f"<h1>Simulation: {escape(summary.board)}</h1>",
        _verdict(summary, replies=len(record.replies)),
        f"<p>Run it again: <code>{escape(command)}</code></p>",
        _assumptions(summary.assumed),
        "<h2>Latencies, median</h2>",
        line_plot({name: _binned(record.replies, name, 50) for name in LATENCIES if name != "TPOT"}, unit="s"),
        "<h2>Latencies, 99th percentile</h2>",
        line_plot({name: _binned(record.replies, name, 99) for name in LATENCIES if name != "TPOT"}, unit="s"),
        "<h2>Time per token (TPOT)</h2>",
        line_plot({f"P{each}": _binned(record.replies, "TPOT", each) for each in (50, 99)}, unit="s"),
        "<h2>Queue and lanes</h2>",
        line_plot(
            {
                "waiting": [(sample.moment_s, sample.waiting) for sample in record.samples],
                "running": [(sample.moment_s, sample.running) for sample in record.samples],
                "lanes in use": [(sample.moment_s, sample.lanes_in_use) for sample in record.samples],
            },
            unit="",
            stepped=True,
        ),
        "<h2>Fairness: tokens of whole replies, by tenant</h2>",
        line_plot(_by_tenant(record.replies), unit="", stepped=True),
        f"<h2>Engines: the first {_TIMELINE_JOBS} jobs</h2>",
        timeline(_engines(outcome)),
        "<h2>Figures</h2>",
        _table({name: _seconds(each.p50_s, each.p99_s) for name, each in summary.latencies.items()}, "P50, P99"),
        _table({engine: f"{share:.1%}" for engine, share in summary.busy_share.items()}, "engine busy"),
        _table(summary.endings, "how clients' requests ended"),
        _table(summary.faults, "faults that came about"),
    ]
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Simulation {summary.seed}</title><style>{_STYLE}</style><body>{''.join(parts)}</body></html>\n"
    )


def _verdict(summary: Summary, *, replies: int) -> str:
    return (
        f'<p class="verdict">PASS (emulated): {replies} whole replies in {summary.virtual_s:.0f} virtual seconds, '
        f"daemons: {summary.lives}, lost devices: {summary.losses}</p>"
    )


def _assumptions(assumed: Sequence[str]) -> str:
    if not assumed:
        return "<p>Every number of the device model is a measurement.</p>"
    return (
        '<p class="note">An emulated board. Nobody measured these numbers of its model; they are assumed: '
        f"{escape(', '.join(assumed))}.</p>"
    )


def _binned(replies: Sequence[Reply], latency: str, percentile: int) -> Points:
    """One latency's percentile in each part of the time that has replies, at its middle."""
    if not replies:
        return []
    moments = np.array([reply.ended_s for reply in replies])
    values = np.array([LATENCIES[latency](reply) for reply in replies])
    edges = np.linspace(0.0, float(moments.max()) + 1e-9, min(_BINS, len(replies)) + 1)
    places = np.clip(np.digitize(moments, edges) - 1, 0, len(edges) - 2)
    return [
        (float(edges[place] + edges[place + 1]) / 2, float(np.percentile(values[places == place], percentile)))
        for place in np.unique(places)
    ]


def _by_tenant(replies: Sequence[Reply]) -> dict[str, Points]:
    """Tokens so far of the tenants that had most; the others together."""
    totals: dict[str, int] = {}
    for reply in replies:
        totals[reply.tenant] = totals.get(reply.tenant, 0) + reply.timings.predicted_tokens
    own = sorted(totals, key=lambda name: -totals[name])[: len(COLOURS) - 1]
    lines: dict[str, list[tuple[float, float]]] = {}
    so_far: dict[str, int] = {}
    for reply in replies:
        name = reply.tenant if reply.tenant in own else "others"
        so_far[name] = so_far.get(name, 0) + reply.timings.predicted_tokens
        lines.setdefault(name, []).append((reply.ended_s, so_far[name]))
    return dict(lines)


def _engines(outcome: Outcome) -> dict[str, list[tuple[float, float, str]]]:
    rows: dict[str, list[tuple[float, float, str]]] = {}
    for span in outcome.record.spans[:_TIMELINE_JOBS]:
        what = span.phase if span.phase == "prefill" else f"{span.phase} of {span.lanes}"
        rows.setdefault(span.engine, []).append((span.began_s, span.ended_s, what))
    return rows


def _seconds(*values: float | None) -> str:
    return ", ".join("–" if value is None else f"{value:.3f} s" for value in values)


def _table(rows: Mapping[str, object], heading: str) -> str:
    if not rows:
        return ""
    body = "".join(
        f'<tr><td>{escape(name)}</td><td class="n">{escape(str(value))}</td></tr>' for name, value in rows.items()
    )
    return f"<table><tr><th>{escape(heading)}</th><th></th></tr>{body}</table>"
