"""Soaks a real daemon over the scripted runtime, and judges what is left. Called by tools/soak_http.

disconnects   thousands of requests of which most are left at a random moment, a third with long prompts
streams       hundreds of streams at the same time, for minutes
health        /health, asked all the while megabytes of hostile text are tokenized or refused
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import attrs
import trio
from daemon_process import HOUR_MS, SERVE, DaemonProcess, waited_for
from sse_client import Told, request, stream

MIB = 2**20
LONG_PROMPT_BYTES = 50_000
AT_ONCE = 32
PARTS = 24
QUIET_S = 60.0
STREAMS = 256
STEP_S = 0.2
HOSTILE_BYTES = 5 * 10**6
TOKENIZED_BYTES = 10**6
SCHEDULER = {
    "admission": {"max_waiting_requests": 1000, "max_waiting_prompt_tokens": 10**7, "deadline_default_ms": HOUR_MS},
    # Else the first of hundreds of streams would decode for minutes before the last is begun.
    "queues": {"decode_weight": 1, "short_prefill_weight": STREAMS},
}


@attrs.frozen(kw_only=True)
class Scale:
    """How much of everything.

    Args:
        requests: of clients that leave.
        growth_mib_max: of memory after the warm-up.
        streams_s: how long hundreds of streams run.
        stream_tokens: of one stream; when it has ended, its client asks again.
        health_rounds: how often all hostile texts are sent.
        health_ms_max: for 99 of 100 answers.
        threads_wait: whether to wait until the threads that trio keeps for later have gone.
    """

    requests: int
    growth_mib_max: float
    streams_s: float
    stream_tokens: int
    health_rounds: int
    health_ms_max: float
    threads_wait: bool


FULL = Scale(
    requests=3000,
    growth_mib_max=10.0,
    streams_s=300.0,
    stream_tokens=100,
    health_rounds=4,
    health_ms_max=100.0,
    threads_wait=True,
)
# The checks run this beside others on busy machines, where a time says little: only a hang is to fail.
SHORT = Scale(
    requests=144,
    growth_mib_max=100.0,
    streams_s=4.0,
    stream_tokens=8,
    health_rounds=1,
    health_ms_max=5000.0,
    threads_wait=False,
)


@attrs.frozen
class Verdict:
    """One thing that must hold, what was seen, and whether it held."""

    what: str
    seen: str
    passed: bool


def at_most(what: str, seen: float, limit: float, unit: str) -> Verdict:
    """A figure and its limit."""
    return Verdict(what, f"{seen:.1f} {unit} (at most {limit:g})", seen <= limit)


def grown(sizes: list[int], scale: Scale) -> Verdict:
    """By the medians of both halves, which lie half the time apart: what the allocator keeps varies by 15 MiB."""
    half = len(sizes) // 2
    growth_bytes = 2 * (statistics.median(sizes[half:]) - statistics.median(sizes[:half]))
    shown = f"{growth_bytes / MIB:.1f} MiB (at most {scale.growth_mib_max:g}), {max(sizes) / MIB:.0f} MiB at most"
    return Verdict("memory growth after the warm-up", shown, growth_bytes <= scale.growth_mib_max * MIB)


# ---- clients that leave -----------------------------------------------------------------------------


def disconnects(scale: Scale) -> Iterator[Verdict]:
    """3,000 requests, most of them left at some moment."""
    script = {
        "lanes": 16,
        "profiles": [1, 4, 16],
        "context_tokens": 65_536,
        "step_s": 0.001,
        "replies": [{"tokens": [{"text": "word ", "times": 20}]}],
    }
    with DaemonProcess(script, scheduler=SCHEDULER) as daemon:
        base = threads_at_work(daemon)
        threads_before = len(daemon.threads)
        chance = random.Random(1)
        broken, quiet, sizes = 0, True, []
        for _ in range(PARTS):
            broken += trio.run(visits, daemon, scale.requests // PARTS, chance)
            quiet &= waited_for(lambda: not registered(daemon), within_s=QUIET_S)
            sizes.append(daemon.rss_bytes)
        yield Verdict("who stayed got it all", f"{broken} of {PARTS * (scale.requests // PARTS)} did not", broken == 0)
        yield Verdict("nothing is registered, no lane held", registered(daemon) or "nothing", quiet)
        counters = daemon.script_counters()
        allocated, released = counters.get("allocated", 0), counters.get("released", 0)
        yield Verdict("sequences all released", f"{released} of {allocated}", released == allocated > 0)
        yield grown(sizes[PARTS // 6 :], scale)  # the first sixth is the warm-up
        idle = waited_for(lambda: threads_at_work(daemon) <= base, within_s=QUIET_S)
        yield Verdict("no thread is at work", f"{threads_at_work(daemon) - base} more than before", idle)
        if scale.threads_wait:
            back = waited_for(lambda: len(daemon.threads) <= threads_before, within_s=QUIET_S)
            yield Verdict("threads are back to base", f"{len(daemon.threads)}, {threads_before} before", back)
        yield from undisturbed(daemon)


def undisturbed(daemon: DaemonProcess) -> Iterator[Verdict]:
    """It logged no defect, and it ends as it should."""
    code = daemon.stop()
    defects = sum("defect" in line or "Traceback" in line for line in daemon.log.splitlines())
    yield Verdict(
        "it ends with 0, and nothing odd in its log", f"exit {code}, {defects} odd lines", code == defects == 0
    )


async def visits(daemon: DaemonProcess, count: int, chance: random.Random) -> int:
    """So many requests, some at a time; how many of those that stayed did not get their whole reply."""
    broken = 0
    numbers = iter(range(count))

    async def visitor() -> None:
        nonlocal broken
        for number in numbers:
            prompt = "x" * LONG_PROMPT_BYTES if number % 3 == 0 else "hi"
            asking = request("/v1/completions", {"model": "m", "prompt": prompt, "stream": True})
            way = chance.choice(("stay", "leave at once", "leave in the head", "leave soon", "leave in the reply"))
            broken += not await visit(daemon.port, asking, way, chance.uniform(0.0, 0.1))

    async with trio.open_nursery() as nursery:
        for _ in range(AT_ONCE):
            nursery.start_soon(visitor)
    return broken


async def visit(port: int, asking: bytes, way: str, moment_s: float) -> bool:
    """One request; false if its client wanted all of it and did not get it."""
    told = Told()
    match way:
        case "leave at once":
            (await trio.open_tcp_stream("127.0.0.1", port)).socket.close()
        case "leave in the head":
            async with await trio.open_tcp_stream("127.0.0.1", port) as connection:
                await connection.send_all(asking[: len(asking) // 2])
        case "leave soon":
            with trio.move_on_after(moment_s):
                await stream(port, asking, told=told)
        case "leave in the reply":
            await stream(port, asking, told=told, events_max=1 + int(moment_s * 100))
        case _:
            await stream(port, asking, told=told)
            return told.ended and told.status == 200 and told.faults == 0
    return True


def registered(daemon: DaemonProcess) -> str:
    """What the daemon says that it still holds of requests; empty if nothing."""
    series = daemon.metrics()
    gauges = (
        "vllm:num_requests_waiting",
        "vllm:num_requests_running",
        "calculet_waiting_prompt_tokens",
        "calculet_kv_tokens_reserved",
        "calculet_kv_tokens_used",
        "calculet_jobs_in_flight",
        "calculet_jobs_unknown",
        "calrt_kv_used_batches",
    )
    return ", ".join(f"{name} {series[name]:g}" for name in gauges if series[name])


def threads_at_work(daemon: DaemonProcess) -> int:
    """All but those that trio keeps for later."""
    return sum(not name.startswith("Trio thread") for name in daemon.threads)


# ---- hundreds of streams ----------------------------------------------------------------------------


def streams(scale: Scale) -> Iterator[Verdict]:
    """256 streams at a time, each begun anew when it has ended."""
    script = {
        "lanes": STREAMS,
        "profiles": [1, 16, 64, 256],
        "replies": [{"tokens": ["word ", {"text": "word ", "times": scale.stream_tokens, "delay_s": STEP_S}]}],
    }
    with DaemonProcess(script, scheduler=SCHEDULER) as daemon:
        heard, sizes = trio.run(stream_for, daemon, scale)
        ended = [told for told in heard if told.ended]
        events = sum(len(told.events_s) for told in heard)
        wrong = sum(told.status != 200 or told.faults > 0 for told in heard)
        wrong += sum(len(told.events_s) != scale.stream_tokens + 1 for told in ended)
        seen = f"{wrong} of {len(heard)} streams, {events} events"
        yield Verdict(f"no error in {scale.streams_s:g} s of {STREAMS} streams", seen, wrong == 0 < len(ended))
        yield grown(sizes[len(sizes) // 6 :], scale)
        left = waited_for(lambda: not registered(daemon), within_s=QUIET_S)
        yield Verdict("nothing is registered afterwards", registered(daemon) or "nothing", left)
        yield from undisturbed(daemon)


async def stream_for(daemon: DaemonProcess, scale: Scale) -> tuple[list[Told], list[int]]:
    """All streams that were, and the daemon's size four times a second."""
    heard: list[Told] = []
    sizes: list[int] = []
    body = {"model": "m", "prompt": "hi", "stream": True, "max_tokens": scale.stream_tokens}
    asking = request("/v1/completions", body)
    may_begin_until = time.monotonic() + scale.streams_s

    async def client() -> None:
        while time.monotonic() < may_begin_until:
            heard.append(told := Told())
            await stream(daemon.port, asking, told=told)

    async def scales() -> None:
        while True:
            sizes.append(daemon.rss_bytes)
            await trio.sleep(0.25)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(scales)
        async with trio.open_nursery() as clients:
            for _ in range(STREAMS):
                clients.start_soon(client)
        nursery.cancel_scope.cancel()
    return heard, sizes


# ---- health under hostile text ----------------------------------------------------------------------


def hostile() -> list[tuple[str, bytes]]:
    """Requests of megabytes, each the worst that somebody thought of for one part of the way."""
    texts = {
        "one word": "a",
        "marks": "<",
        "special tokens": "<|im_end|>",
        "blanks": " ",
        "emoji": "👩‍👧‍👦",
        "digits": "1234567890",
        "every character": "".join(map(chr, range(0x100, 0x800))),
    }
    requests = []
    for name, unit in texts.items():
        # One that is refused for its length, and one that is not.
        for size in (HOSTILE_BYTES, TOKENIZED_BYTES):
            text = unit * (size // len(unit.encode()))
            requests.append((f"{name}, {size}", request("/tokenize", {"content": text})))
    chat = {"model": "m", "messages": [{"role": "user", "content": "<|" * (HOSTILE_BYTES // 2)}]}
    head = b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
    deep = head + f"Content-Length: {HOSTILE_BYTES}\r\n\r\n".encode() + b"[" * HOSTILE_BYTES
    return [
        *requests,
        ("a chat", request("/v1/chat/completions", chat)),
        ("token ids", request("/v1/completions", {"model": "m", "prompt": [1] * (HOSTILE_BYTES // 3)})),
        ("nesting", deep),
    ]


def health(scale: Scale, package: str | None) -> Iterator[Verdict]:
    """The answers' times, and that every hostile text was answered."""
    script = None if package else {"replies": [{"tokens": ["x"]}]}
    served = f"the tokenizer of {package}" if package else "the scripted tokenizer"
    with DaemonProcess(script, package=package) as daemon:
        times_ms, statuses = trio.run(attack, daemon.port, scale)
        worst = ", ".join(f"{name} {status}" for name, status in statuses.items() if status not in (200, 400, 413))
        yield Verdict("hostile texts are answered 200, 400 or 413", worst or f"{len(statuses)} kinds", not worst)
        name = f"/health beside them, P99 of {len(times_ms)}, {served}"
        yield at_most(name, statistics.quantiles(times_ms, n=100)[98], scale.health_ms_max, "ms")
        yield from undisturbed(daemon)


async def attack(port: int, scale: Scale) -> tuple[list[float], dict[str, int]]:
    """Every hostile text in turn, with health asked a hundred times a second beside."""
    times_ms: list[float] = []
    statuses: dict[str, int] = {}

    async def watch() -> None:
        async with await trio.open_tcp_stream("127.0.0.1", port) as connection:
            while True:
                asked_s = time.perf_counter()
                await connection.send_all(b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n")
                answer = b""
                while not answer.endswith(b"}"):
                    answer += bytes(await connection.receive_some(65_536))
                times_ms.append((time.perf_counter() - asked_s) * 1e3)
                await trio.sleep(0.01)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        for _ in range(scale.health_rounds):
            for name, asking in hostile():
                statuses[name] = (await stream(port, asking.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))).status
        nursery.cancel_scope.cancel()
    return times_ms, statuses


# ---- the command ------------------------------------------------------------------------------------


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="tools/soak_http", description=__doc__.partition("\n")[0])
    parser.add_argument("--short", action="store_true", help="a few seconds of each; times are not judged")
    parser.add_argument("--seconds", type=float, help=f"how long the streams run ({FULL.streams_s:g})")
    parser.add_argument("--requests", type=int, help=f"of clients that leave ({FULL.requests})")
    parser.add_argument("--package", help="whose tokenizer meets the hostile texts (smollm2, if it is in the store)")
    parser.add_argument("--only", choices=("disconnects", "streams", "health"), help="one part")
    parser.add_argument("--json", type=Path, help="write the verdicts there")
    return parser.parse_args()


def stored_package() -> str | None:
    """The package that tools/serve pulls, if it has been pulled."""
    command = [*SERVE[:3], "package", "show", "smollm2"]
    found = subprocess.run(command, check=False, capture_output=True, timeout=60)
    return "smollm2" if found.returncode == 0 else None


def main() -> int:
    """Run the parts, print their verdicts as they come; 1 if anything did not hold."""
    options = parse()
    scale = SHORT if options.short else FULL
    if options.seconds is not None:
        scale = attrs.evolve(scale, streams_s=options.seconds)
    if options.requests is not None:
        scale = attrs.evolve(scale, requests=options.requests)
    parts = {
        "disconnects": lambda: disconnects(scale),
        "streams": lambda: streams(scale),
        "health": lambda: health(scale, options.package or (None if options.short else stored_package())),
    }
    verdicts = []
    for name, part in parts.items():
        if options.only in (None, name):
            began_s = time.monotonic()
            print(f"── {name}", flush=True)
            for verdict in part():
                verdicts.append({"part": name, **attrs.asdict(verdict)})
                print(f"{'✓' if verdict.passed else '✗'} {verdict.what:<52} {verdict.seen}", flush=True)
            print(f"  {time.monotonic() - began_s:.0f} s", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(verdicts, indent=1, ensure_ascii=False) + "\n")
    return 0 if all(verdict["passed"] for verdict in verdicts) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
