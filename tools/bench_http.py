"""Measures the daemon over HTTP. Called by tools/bench_http.

events   processor time of the server for each event of 1 to 256 streams, over the scripted runtime
stages   the way of a request to its first token, in microseconds
peers    ours beside llama.cpp's server, end to end, taking turns in one run
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import trio
from bench_peers import Point, measure_peers, show_peers
from bench_stages import measure_stages, show_stages
from daemon_process import HOUR_MS, ROOT, DaemonProcess
from sse_client import crowd, request

CLIENTS_MAX = 1000


def numbers(text: str) -> list[int]:
    """``1,4,8`` → ``[1, 4, 8]``."""
    return [int(part) for part in text.split(",")]


# ---- processor time of an event ---------------------------------------------------------------------


def measure_events(options: argparse.Namespace) -> list[dict[str, float]]:
    """A row for each number of clients: the median round."""
    largest = max(options.clients)
    script = {
        "lanes": largest,
        "profiles": sorted({1, *options.clients}),
        "context_tokens": options.events + 64,
        "replies": [
            {"tokens": ["word ", {"text": "word ", "times": options.events, "delay_s": options.step_ms / 1e3}]},
        ],
    }
    scheduler = {
        "admission": {"max_waiting_requests": CLIENTS_MAX, "deadline_default_ms": HOUR_MS},
        "queues": {"decode_weight": 1, "short_prefill_weight": CLIENTS_MAX},
    }
    rows = []
    with DaemonProcess(script, scheduler=scheduler) as daemon:
        for clients in options.clients:
            rounds = [events_of(daemon, clients, options.events) for _ in range(options.rounds)]
            rows.append(
                {"clients": clients, **{key: statistics.median(one[key] for one in rounds) for key in rounds[0]}}
            )
    return rows


def events_of(daemon: DaemonProcess, clients: int, events: int) -> dict[str, float]:
    """One round: what the server spent, divided by what the clients got."""
    body = {"model": "m", "prompt": "hi", "stream": True, "max_tokens": events}
    asking = request("/v1/completions", body)
    before_s = daemon.cpu_s
    heard = trio.run(crowd, daemon.port, [asking] * clients)
    spent_s = daemon.cpu_s - before_s
    got = sum(len(told.events_s) for told in heard)
    assert all(told.ended for told in heard), "every stream came to its end"
    took_s = max(told.events_s[-1] for told in heard) - min(told.asked_s for told in heard)
    return {"us_per_event": spent_s / got * 1e6, "events_per_s": got / took_s, "cpu_share": spent_s / took_s}


def show_events(rows: Sequence[dict[str, float]]) -> None:
    """Print the table."""
    print("server CPU per SSE event: whole daemon over the scripted runtime, requests' beginnings and ends included")
    print("clients    µs/event    events/s    processors")
    for row in rows:
        shown = f"{row['us_per_event']:12.0f}{row['events_per_s']:12.0f}{row['cpu_share']:14.2f}"
        print(f"{row['clients']:7.0f}{shown}")


# ---- the command ------------------------------------------------------------------------------------


def parse() -> argparse.Namespace:
    """The command line."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "calculet-trio" / "downloads"
    parser = argparse.ArgumentParser(prog="tools/bench_http", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=("events", "stages", "peers"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=numbers, default=[1, 16, 64, 256], help="of events (1,16,64,256)")
    parser.add_argument("--events", type=int, default=200, help="of each client (200)")
    parser.add_argument("--step-ms", type=float, default=20.0, help="of a decode step of the script (20)")
    parser.add_argument("--first-tokens", type=int, default=200, help="requests whose way is measured (200)")
    parser.add_argument("--streams", type=numbers, default=[1, 4, 8, 16], help="beside llama.cpp (1,4,8,16)")
    parser.add_argument("--tokens", type=int, default=96, help="of each stream beside llama.cpp (96)")
    parser.add_argument("--gguf", type=Path, default=cache / "SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("--form", default="q8z", help="weight form of our package (q8z)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--llama-server", type=Path, help="a native llama.cpp server to measure as well")
    parser.add_argument("--json", type=Path, help="write every figure there")
    options = parser.parse_args()
    if max(options.clients) > CLIENTS_MAX:
        parser.error(f"--clients: at most {CLIENTS_MAX}")
    if options.only in (None, "peers") and not options.gguf.is_file():
        parser.error(f"{options.gguf} is not there; `calculet-trio package pull smollm2` gets it")
    return options


def build_of(repository: Path) -> str:
    """What is measured: the commit, and whether the tree differs from it."""
    told = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=repository, capture_output=True, text=True, check=False
    )
    return f"calculet-trio {metadata.version('calculet-trio')} {told.stdout.strip()}".rstrip()


def main() -> None:
    """Measure the parts, and print each as it is done."""
    options = parse()
    parts: dict[str, tuple[Callable[[argparse.Namespace], Any], Callable[[Any], None]]] = {
        "events": (measure_events, show_events),
        "stages": (measure_stages, show_stages),
        "peers": (measure_peers, show_peers),
    }
    found: dict[str, Any] = {"build": build_of(ROOT)}
    for name, (measure, show) in parts.items():
        if options.only in (None, name):
            found[name] = measure(options)
            show(found[name])
            print(flush=True)
    load = os.getloadavg()[0]
    print(f"{found['build']}; {options.rounds} rounds, medians; load average at the end {load:.1f}")
    print(f"again: tools/bench_http {' '.join(sys.argv[1:])}".rstrip())
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1, default=Point.as_json) + "\n")


if __name__ == "__main__":
    main()
