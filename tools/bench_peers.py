"""Ours beside llama.cpp's server: the same GGUF, the same client, the same requests, in turns.

Called with ``llama``, this is llama.cpp's server as the xllamacpp wheel has it, in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import attrs
import trio
from daemon_process import DaemonProcess
from sse_client import Told, crowd, request

MAX_SEQ = 2048
START_S = 120
STOP_S = 30
OURS = "ours"
GOALS = {1: 1.3, 8: 1.8, 16: 1.8}
"""Our tokens per second over the wheel's, by streams."""


@attrs.frozen(kw_only=True)
class Point:
    """One server at one number of streams, in one round.

    Args:
        tokens_per_s: of all streams together, from the first request to the last token.
        first_ms: from a request to its first token, the median stream's.
        between_ms, between_p99_ms: between two tokens of a stream.
    """

    tokens_per_s: float
    first_ms: float
    between_ms: float
    between_p99_ms: float

    @staticmethod
    def as_json(value: object) -> dict[str, float]:
        """For `json.dumps`."""
        assert isinstance(value, Point)
        return attrs.asdict(value)


@attrs.frozen
class Peer:
    """A server that is up, and the build that it is."""

    port: int
    build: str


def measure_peers(options: argparse.Namespace) -> dict[str, Any]:
    """Every round of every server at every number of streams; servers take turns at each point."""
    found: dict[int, dict[str, list[Point]]] = {}
    with ExitStack() as stack:
        peers = {OURS: stack.enter_context(our_server(options)), "xllamacpp": stack.enter_context(wheel(options))}
        if options.llama_server is not None:
            peers["llama.cpp native"] = stack.enter_context(native(options))
        for peer in peers.values():
            trio.run(crowd, peer.port, [asking(0, 8)])
        for number in range(options.rounds):
            for streams in options.streams:
                for name, peer in peers.items():
                    print(
                        f"\rround {number + 1}/{options.rounds}  {streams} streams  {name:<20}", end="", file=sys.stderr
                    )
                    point = one_round(peer.port, streams, options.tokens, number)
                    found.setdefault(streams, {}).setdefault(name, []).append(point)
        print("\r" + " " * 60 + "\r", end="", file=sys.stderr)
    return {"builds": {name: peer.build for name, peer in peers.items()}, "points": found}


def asking(number: int, tokens: int) -> bytes:
    """A request of its own for each number, so that nobody's cache knows it."""
    prompt = f"{number} is the number of this story. " + "The sea was calm, and the ship went on for many days. " * 4
    body = {"model": "m", "prompt": prompt, "stream": True, "max_tokens": tokens, "temperature": 0.0}
    return request("/v1/completions", {**body, "ignore_eos": True, "cache_prompt": False})


def one_round(port: int, streams: int, tokens: int, salt: int) -> Point:
    """So many streams at the same time."""
    heard: list[Told] = trio.run(crowd, port, [asking(1000 * salt + n, tokens) for n in range(streams)])
    assert all(told.ended and told.faults == 0 for told in heard), "every stream came to its end"
    took_s = max(told.events_s[-1] for told in heard) - min(told.asked_s for told in heard)
    gaps = [b - a for told in heard for a, b in zip(told.events_s, told.events_s[1:], strict=False)]
    return Point(
        tokens_per_s=streams * tokens / took_s,
        first_ms=statistics.median(told.events_s[0] - told.asked_s for told in heard) * 1e3,
        between_ms=statistics.median(gaps) * 1e3,
        between_p99_ms=statistics.quantiles(gaps, n=100)[98] * 1e3,
    )


def show_peers(found: dict[str, Any]) -> None:
    """Print the table, the ratios, and which goals were reached."""
    print("end to end over HTTP, median round: tokens/s of all streams; time to first token and between tokens in ms")
    print(f"{'streams':<9}{'server':<18}{'tokens/s':>14}{'first':>9}{'between':>9}{'P99':>8}")
    goals = []
    for streams, servers in found["points"].items():
        for name, points in servers.items():
            rates = [point.tokens_per_s for point in points]
            shown = f"{statistics.median(rates):.0f} ({min(rates):.0f}–{max(rates):.0f})"
            rest = (
                statistics.median(getattr(p, key) for p in points)
                for key in ("first_ms", "between_ms", "between_p99_ms")
            )
            print(f"{streams:<9}{name:<18}{shown:>14}" + "{:9.1f}{:9.1f}{:8.1f}".format(*rest))
        ratios = {name: ratio(servers, name) for name in servers if name != OURS}
        print(f"{'':<9}" + "  ".join(f"ours / {name} {value:.2f}" for name, value in ratios.items()))
        if (goal := GOALS.get(streams)) is not None:
            reached = "reached" if ratios["xllamacpp"] >= goal else "not reached"
            goals.append(f"{streams} streams: {ratios['xllamacpp']:.2f} of {goal} {reached}")
    print("goal over the wheel: " + "; ".join(goals))
    for name, build in found["builds"].items():
        print(f"{name}: {build}")


def ratio(servers: dict[str, list[Point]], name: str) -> float:
    """Our tokens per second over another's: the median of the rounds' own ratios, which share the machine's mood."""
    pairs = zip(servers[OURS], servers[name], strict=True)
    return statistics.median(ours.tokens_per_s / other.tokens_per_s for ours, other in pairs)


# ---- the servers ------------------------------------------------------------------------------------


@contextmanager
def our_server(options: argparse.Namespace) -> Iterator[Peer]:
    """Our daemon over a package that is built of the GGUF for this run."""
    from calculet_trio.cli.making import make_package
    from calculet_trio.packages.build_options import BuildOptions
    from calculet_trio.packages.manifest_parts import WeightForm

    lanes = max(options.streams)
    with tempfile.TemporaryDirectory(prefix="ct") as scratch:
        package = Path(scratch, "package")
        form = WeightForm(options.form)
        build = BuildOptions(
            weight_form=form, batches=tuple(sorted({1, *options.streams})), lanes=lanes, max_seq=MAX_SEQ
        )
        make_package(options.gguf, package, name="bench", options=build, report=lambda _: None)
        with DaemonProcess(package=str(package)) as daemon:
            yield Peer(daemon.port, f"package of {options.gguf.name}, form {options.form}, {lanes} lanes")


@contextmanager
def wheel(options: argparse.Namespace) -> Iterator[Peer]:
    """The server in the xllamacpp wheel."""
    command = [sys.executable, __file__, "llama", str(options.gguf), str(max(options.streams)), str(options.threads)]
    with running(command, stdin=subprocess.PIPE) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        version = metadata.version("xllamacpp")
        yield Peer(port, f"xllamacpp {version} ({build_info(port)}), built for AVX2, {options.threads} threads")


@contextmanager
def native(options: argparse.Namespace) -> Iterator[Peer]:
    """A server that was built on this machine."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    lanes = max(options.streams)
    command = [str(options.llama_server), "-m", str(options.gguf), "--port", str(port), "-np", str(lanes)]
    command += ["-c", str(MAX_SEQ * lanes), "-t", str(options.threads), "-tb", str(options.threads)]
    with running(command) as process:
        deadline_s = time.monotonic() + START_S
        while not answers(port):
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"{options.llama_server} did not start")
            time.sleep(0.1)
        yield Peer(port, f"{options.llama_server.name} ({build_info(port)}), {options.threads} threads")


@contextmanager
def running(command: list[str], stdin: int = subprocess.DEVNULL) -> Iterator[subprocess.Popen[str]]:
    """A process for as long as the block lasts."""
    with subprocess.Popen(
        command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()
            process.wait(STOP_S)


def answers(port: int) -> bool:
    """Whether its health is good."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=STOP_S) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def build_info(port: int) -> str:
    """What llama.cpp says that it is."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/props", timeout=STOP_S) as answer:
        return str(json.load(answer).get("build_info", "no build_info"))


def serve_llama(gguf: str, lanes: int, threads: int) -> None:
    """llama.cpp's server, until the input ends. Says its port."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = gguf
    params.n_parallel, params.n_ctx = lanes, MAX_SEQ * lanes
    params.port, params.verbosity = 0, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(params)
    print(server.listening_address.rpartition(":")[2].rstrip("/"), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    serve_llama(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
