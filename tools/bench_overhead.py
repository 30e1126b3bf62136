"""What the host costs a decode step. Called by tools/bench_overhead.

The real daemon over the emulated board in real time, with SSE clients in another process. A B1 step takes 17 ms and a
B16 step 20 ms; a row of logits has 151,936 entries, filled with noise once, so that sampling meets what a model says.

What the board's emulation itself costs is kept apart: it works out an answer while the answer's time passes, and its
moments, noted by the board, are those of the device: a step ends when its time is over, not when somebody wakes. From
there to the next submission is the host's, in stages:

woken      the engine's thread runs again; here a timer wakes it, on a board an interrupt would
sampled    every lane's token was chosen, and its text made
told       it is about to be laid before the core
decided    the core has settled the lanes and planned, and the runtime's ``submit`` is called

Scheduling and dispatch are the last two. Idle is the device's time without a step, of all the time in which every
client streams. Called with a file and a configuration's path, this is the daemon.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import trio
from bare_wakeups import bare_stages_ms
from daemon_process import HOUR_MS, DaemonProcess
from sse_client import crowd, request

from calculet_trio.cli.wiring import wire
from calculet_trio.core.events import Event, JobFinished, LaneResult
from calculet_trio.core.jobs import EngineId, Job
from calculet_trio.ids import JobId
from calculet_trio.observe.logging import configure_logging
from calculet_trio.runtimes.device_model import load_device
from calculet_trio.runtimes.emulated import EmulatedRuntime
from calculet_trio.runtimes.pace import RealPace
from calculet_trio.runtimes.port import Candidates, Finished, NotSubmitted, Submitted, Ticket, Unknown
from calculet_trio.settings.configuration import load
from calculet_trio.shell.lifecycle import run
from calculet_trio.shell.loop import CoreLoop
from calculet_trio.shell.sampler_pool import SamplerPool
from calculet_trio.text.byte_tokenizer import ByteTokenizer
from calculet_trio.text.params import ReplyParams, SamplingParams
from calculet_trio.text.ranking import likeliest
from calculet_trio.text.reply import ReplyStream
from calculet_trio.text.rows import widened

VOCABULARY = 151_936
CANDIDATES = 256
PADDING = [b"x"] * (VOCABULARY - ByteTokenizer([]).vocab_size)
LANES = 32
STEP_S = {1: 0.017, 16: 0.020}
SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 0.8, "top_k": 40, "top_p": 0.95},
}
STAGES = ("woken", "sampled", "told", "decided")
GOAL_IDLE = {1: 0.03, 2: 0.01}
GOAL_HOST_P99_MS = {1: 1.0, 16: 8.0}
GOAL_DISPATCH_MS = 0.5
BOARD = {
    "schema": "calculet-device/v1",
    "name": "overhead",
    "lanes": LANES,
    "context_tokens": 4096,
    "vocab_size": VOCABULARY,
    "prefill": {"base_s": 0.005, "token_s": 0},
    "decode": {batch: {"base_s": step_s} for batch, step_s in STEP_S.items()},
    "h2d_s": 0,
    "d2h_row_s": 0,
    "jitter": 0,
    "engines": 2,
    "compute_overlaps": False,
    "inactive_lane": "valid_mask",
    "layout": "contiguous_lanes",
    "lane_fault_isolation": False,
    "kv_token_bytes": 98_304,
    "parameter_bytes": 1,
    "memory_bytes": 34_359_738_368,
    "memory_total_bug": False,
    "versions": {},
}


# ---- in the daemon ----------------------------------------------------------------------------------


@attrs.define
class Step:
    """A job's moments, on the clock that all processes share."""

    engine: str
    phase: str
    lanes: int
    submitted_s: float
    ended_s: float
    woken_s: float = 0.0
    sampled_s: float = 0.0
    told_s: float = 0.0
    cpu_s: float = 0.0


class NotedBoard(EmulatedRuntime):
    """The emulated board, noting when its jobs are submitted, end by its own clock, and are known to have ended."""

    def __init__(self, path: Path, steps: dict[JobId, Step]) -> None:
        super().__init__(load_device(path), RealPace())
        self._steps = steps
        noise = np.random.default_rng(0)
        for rows in self._logits.values():
            rows[:] = noise.standard_normal(rows.shape, np.float32) * 3

    def submit(self, engine: EngineId, job: Job) -> Submitted | NotSubmitted:
        """See `Runtime.submit`."""
        called_s = time.perf_counter()
        taken = super().submit(engine, job)
        ended_s = self._running[engine][2]
        self._steps[job.job] = Step(engine.value, job.phase, len(job.lanes), called_s, ended_s)
        return taken

    def wait(self, engine: EngineId, ticket: Ticket, timeout_s: float) -> Finished | Unknown:
        """See `Runtime.wait`."""
        job = self._running[engine][1]
        outcome = super().wait(engine, ticket, timeout_s)
        self._steps[job.job].woken_s = time.perf_counter()
        return outcome


def note_what_is_sampled(steps: dict[JobId, Step]) -> None:
    """Note when a job's lanes were sampled, in the engine's thread."""
    settle = SamplerPool.settle

    def noting(samplers: SamplerPool, job: Job, finished: Finished) -> tuple[LaneResult, ...]:
        results = settle(samplers, job, finished)
        steps[job.job].sampled_s = time.perf_counter()
        return results

    SamplerPool.settle = noting  # type: ignore[method-assign]


def note_what_is_told(steps: dict[JobId, Step]) -> None:
    """Note when a job's end was laid before the core."""
    decide = CoreLoop.decide

    def noting(loop: CoreLoop, event: Event) -> None:
        if isinstance(event, JobFinished):
            step = steps[event.job]
            step.told_s = time.perf_counter()
            step.cpu_s = time.process_time()
        decide(loop, event)

    CoreLoop.decide = noting  # type: ignore[method-assign]


def serve(figures: Path, configuration: Path) -> None:
    """The daemon that `calculet-trio serve` would be; its steps are written when it has drained."""
    configure_logging(verbosity=0)
    configured = load(configuration)
    daemon = wire(configured, on_ready=lambda port: print(f"is ready on http://127.0.0.1:{port}", flush=True))
    steps: dict[JobId, Step] = {}
    board = NotedBoard(daemon.source.package, steps)
    note_what_is_sampled(steps)
    note_what_is_told(steps)
    trio.run(run, attrs.evolve(daemon, runtime=board))
    figures.write_text(json.dumps([attrs.asdict(step) for step in steps.values()]))


# ---- outside ----------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Point:
    """What was found for one batch, way of sampling, and number of jobs in flight."""

    batch: int
    sampling: str
    inflight: int
    steps: int
    idle_share: float
    cpu_share: float
    host_ms: list[float]
    stages_ms: dict[str, list[float]]

    @property
    def dispatch_ms(self) -> list[float]:
        """Scheduling and dispatch of each step."""
        return [sum(pair) for pair in zip(self.stages_ms["told"], self.stages_ms["decided"], strict=True)]


def measure(batch: int, sampling: str, inflight: int, *, tokens: int, candidates: int, scratch: Path) -> Point:
    """One daemon, with as many clients as its engines have lanes."""
    figures = scratch / "steps.json"
    body = {"model": "m", "prompt": "hi", "stream": True, "max_tokens": tokens, "ignore_eos": True, "seed": 1}
    asking = request("/v1/completions", {**body, **SAMPLING[sampling]})
    scheduler = {
        "admission": {"deadline_default_ms": HOUR_MS},
        "queues": {"decode_weight": 1, "short_prefill_weight": 1000},  # so that all of them stream together
        "batch": {"profiles": [batch]},
        "executor": {"max_inflight": inflight},
    }
    command = [sys.executable, __file__, str(figures)]
    board = BOARD | ({"candidates": candidates} if candidates else {})
    with DaemonProcess(board=board, scheduler=scheduler, command=command) as daemon:
        heard = trio.run(crowd, daemon.port, [asking] * (batch * inflight))
        assert all(told.ended for told in heard), daemon.log
        assert daemon.stop() == 0, daemon.log
    return point_of([Step(**row) for row in json.loads(figures.read_text())], batch, sampling, inflight)


def point_of(steps: Sequence[Step], batch: int, sampling: str, inflight: int) -> Point:
    """Reduce the steps from the last prefill's end to the last full batch."""
    begun_s = max(step.ended_s for step in steps if step.phase == "prefill")
    decodes = [step for step in steps if step.phase == "decode" and step.submitted_s > begun_s]
    while decodes[-1].lanes < batch:
        decodes.pop()
    decodes.sort(key=lambda step: step.ended_s)
    idle_s = sum(max(0.0, later.ended_s - STEP_S[batch] - earlier.ended_s) for earlier, later in pairwise(decodes))
    stages: dict[str, list[float]] = {stage: [] for stage in STAGES}
    for engine in {step.engine for step in decodes}:
        own = [step for step in decodes if step.engine == engine]
        for step, following in pairwise(own):
            moments = (step.ended_s, step.woken_s, step.sampled_s, step.told_s, following.submitted_s)
            for stage, earlier_s, later_s in zip(STAGES, moments, moments[1:], strict=False):
                stages[stage].append((later_s - earlier_s) * 1e3)
    first, last = decodes[0], decodes[-1]
    took_s = last.ended_s - first.ended_s
    return Point(
        batch=batch,
        sampling=sampling,
        inflight=inflight,
        steps=len(decodes),
        idle_share=idle_s / took_s,
        cpu_share=(last.cpu_s - first.cpu_s) / (last.told_s - first.told_s),
        host_ms=[sum(step) for step in zip(*stages.values(), strict=True)],
        stages_ms=stages,
    )


def measure_sampling(rounds: int) -> dict[str, list[float]]:
    """Milliseconds of 16 rows on the text side, by the form of the rows, in one thread or in two."""
    noise = np.random.default_rng(0).standard_normal((16, VOCABULARY), np.float32) * 3
    bits = (noise.view(np.uint32) >> 16).astype(np.uint16)
    ids = np.array([likeliest(row, CANDIDATES) for row in noise], np.int32)
    named = Candidates(ids, np.take_along_axis(noise, ids, axis=1))
    found: dict[str, list[float]] = {}
    with ThreadPoolExecutor(1) as pool:
        for name, asked in SAMPLING.items():
            params = ReplyParams(sampling=SamplingParams(**asked), ignore_eos=True)
            replies = [ReplyStream(ByteTokenizer(PADDING), params, prompt=()) for _ in range(16)]

            def choose(
                rows: Sequence[Any], *, first: int = 0, step: int = 1, replies: list[ReplyStream] = replies
            ) -> None:
                for row in range(first, 16, step):
                    replies[row].accept(rows[row])

            def choose_in_pool(choose: Callable[..., None] = choose) -> None:
                other = pool.submit(choose, noise, first=1, step=2)
                choose(noise, first=0, step=2)
                other.result()

            def choose_named(replies: list[ReplyStream] = replies) -> None:
                for row in range(16):
                    replies[row].accept(noise[row], named.row(row))

            ways: dict[str, Callable[[], None]] = {
                "float32": partial(choose, noise),
                "float32, two threads": choose_in_pool,
                "bfloat16, widened": lambda choose=choose: choose([widened(row) for row in bits]),
                "bfloat16 in place": partial(choose, bits),
                f"{CANDIDATES} candidates": choose_named,
            }
            for way, call in ways.items():
                found[f"{name}: {way}"] = [_took_ms(call) for _ in range(rounds)]
    return found


def _took_ms(call: Callable[[], None]) -> float:
    began_s = time.perf_counter()
    call()
    return (time.perf_counter() - began_s) * 1e3


def show_sampling(found: dict[str, list[float]]) -> None:
    """Print the table."""
    print(f"choosing 16 tokens of {VOCABULARY:,}, ms        P10 /   P50 /   P99")
    for name, times in found.items():
        tenth = statistics.quantiles(times, n=10, method="inclusive")[0]
        print(f"{name:<32}{tenth:20.2f} /{statistics.median(times):6.2f} /{p99(times):6.2f}")
    print()


def p99(values: Sequence[float]) -> float:
    """The 99th percentile."""
    return statistics.quantiles(values, n=100, method="inclusive")[98]


def show_bare(rounds: int) -> None:
    """Print what the wake-ups alone take here; they are in the stages of the table after it."""
    bare = bare_stages_ms(STEP_S[1], rounds)
    host_ms = [sum(chain) for chain in zip(*bare.values(), strict=True)]
    stages = ", ".join(f"{stage} {statistics.median(took_ms):.2f}" for stage, took_ms in bare.items())
    print(f"bare wake-ups of a step, ms: {statistics.median(host_ms):.2f} (P99 {p99(host_ms):.2f}), of them {stages}")


def show_reading(rounds: int) -> None:
    """Print how long it takes to look at every logit once, after a step: what chooses from whole rows has to."""
    shown = []
    for lanes, kind in ((1, np.float32), (16, np.float32), (16, np.uint16)):
        rows = np.ones((lanes, VOCABULARY), kind)
        took_ms = []
        for _ in range(rounds):
            time.sleep(STEP_S[lanes])
            took_ms.append(_took_ms(rows.max))
        shown.append(
            f"{lanes} of {rows.itemsize} bytes a logit {statistics.median(took_ms):.2f} (P99 {p99(took_ms):.2f})"
        )
    print(f"reading the rows of a step once, ms: {', '.join(shown)}")


def show(points: Sequence[Point]) -> None:
    """Print the table, and the goals."""
    print(f"host time of a decode step, ms (P50 / P99); vocabulary {VOCABULARY:,}, steps of 17 ms (B1) and 20 ms (B16)")
    print(f"{'':<22}{'idle':>7}{'CPU':>7}{'host':>15}" + "".join(f"{stage:>15}" for stage in STAGES))
    for point in points:
        name = f"B{point.batch} {point.sampling}, {point.inflight} in flight"
        columns = (point.host_ms, *point.stages_ms.values())
        shown = "".join(f"{statistics.median(values):8.2f} /{p99(values):5.2f}" for values in columns)
        print(f"{name:<22}{point.idle_share:7.1%}{point.cpu_share:7.0%}{shown}")
    print()
    for point in points:
        goals = {
            f"idle ≤ {GOAL_IDLE[point.inflight]:.0%}": point.idle_share <= GOAL_IDLE[point.inflight],
            f"host P99 ≤ {GOAL_HOST_P99_MS[point.batch]:g} ms": p99(point.host_ms) <= GOAL_HOST_P99_MS[point.batch],
            f"scheduling and dispatch ≤ {GOAL_DISPATCH_MS} ms": statistics.median(point.dispatch_ms)
            <= GOAL_DISPATCH_MS,
        }
        told = ", ".join(f"{goal} {'reached' if reached else 'NOT reached'}" for goal, reached in goals.items())
        print(f"B{point.batch} {point.sampling}, {point.inflight} in flight: {told}")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="tools/bench_overhead", description=__doc__.partition("\n")[0])
    parser.add_argument("--batches", type=lambda text: [int(part) for part in text.split(",")], default=list(STEP_S))
    parser.add_argument("--inflight", type=lambda text: [int(part) for part in text.split(",")], default=[1, 2])
    parser.add_argument("--sampling", choices=SAMPLING, action="append", help="one of the two; both where not given")
    parser.add_argument("--tokens", type=int, default=1000, help="of each client (1000)")
    parser.add_argument("--candidates", type=int, default=0, help="that the board names of each row (0: whole rows)")
    parser.add_argument("--rounds", type=int, default=200, help="of choosing 16 tokens (200)")
    parser.add_argument("--json", type=Path, help="write every figure there")
    options = parser.parse_args()
    if not set(options.batches) <= set(STEP_S):
        parser.error(f"--batches: of {', '.join(map(str, STEP_S))}")
    return options


def main() -> None:
    """Measure every point, then print them."""
    import tempfile

    options = parse()
    show_sampling(measure_sampling(options.rounds))
    points = []
    with tempfile.TemporaryDirectory(prefix="ct") as scratch:
        for batch in options.batches:
            for sampling in options.sampling or SAMPLING:
                for inflight in options.inflight:
                    shared: dict[str, Any] = {
                        "tokens": options.tokens,
                        "candidates": options.candidates,
                        "scratch": Path(scratch),
                    }
                    points.append(measure(batch, sampling, inflight, **shared))
                    print(f"measured B{batch} {sampling}, {inflight} in flight", file=sys.stderr, flush=True)
    show_bare(options.rounds)
    show_reading(options.rounds)
    show(points)
    print(f"\nload average at the end {os.getloadavg()[0]:.1f}; again: tools/bench_overhead {' '.join(sys.argv[1:])}")
    if options.json is not None:
        options.json.write_text(json.dumps([attrs.asdict(point) for point in points]) + "\n")


if __name__ == "__main__":
    if len(sys.argv) == 3 and not sys.argv[1].startswith("-"):
        serve(Path(sys.argv[1]), Path(sys.argv[2]))
    else:
        main()
