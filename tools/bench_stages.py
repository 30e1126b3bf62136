"""Where the time to the first token goes: a daemon that notes when a request passes each place on its way.

Called with a configuration's path this is such a daemon; it prints a line of JSON for each request. What it adds
to a request is a dozen readings of the clock.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import attrs
import trio
from daemon_process import DaemonProcess
from sse_client import request, stream

from calculet_trio.cli.wiring import wire
from calculet_trio.core.effects import Admit, AllocateSequence, Deliver, Effect, Finish, Place, SubmitJob
from calculet_trio.core.events import Event, LaneResult
from calculet_trio.core.jobs import Job
from calculet_trio.core.serving import ServingCore
from calculet_trio.observe.logging import configure_logging
from calculet_trio.runtimes.port import Finished
from calculet_trio.settings.configuration import load
from calculet_trio.shell.daemon import HttpServer
from calculet_trio.shell.executor import DeviceExecutor
from calculet_trio.shell.lifecycle import run
from calculet_trio.shell.loading import ModelText
from calculet_trio.shell.sampler_pool import SamplerPool
from calculet_trio.shell.service import InferenceRequest, RequestHandle, Service

STAGES = (
    ("arrived", "parsed: HTTP, JSON, the request's fields"),
    ("placed", "the core gave it a waiting place"),
    ("prepared", "its prompt was tokenized, in a thread"),
    ("offered", "the core priced it and chose a lane"),
    ("admitted", "the runtime allocated its sequence, in a thread"),
    ("submitted", "its prefill was handed to the engine"),
    ("computed", "its prefill ended, in the engine's thread; the script takes no time"),
    ("delivered", "its first token was sampled, and the core settled it"),
    ("heard", "the client read the first event"),
)
WARM_UP = 20
ANSWERED_S = 60


# ---- in the daemon ----------------------------------------------------------------------------------


class Moments:
    """Notes when the only request of the moment passes."""

    def __init__(self) -> None:
        self._passed_s: dict[str, float] = {}

    def note(self, stage: str) -> None:
        """The first time that the request passes here."""
        self._passed_s.setdefault(stage, time.perf_counter())

    def watch(self) -> None:
        """Note what the core decides, in the loop, and when a job's outputs are there, in the engine's thread."""
        handle, submit, settle = ServingCore.handle, DeviceExecutor.submit, SamplerPool.settle

        def deciding(core: ServingCore, event: Event, now: float) -> list[Effect]:
            effects = handle(core, event, now)
            for effect in effects:
                self._decided(effect)
            return effects

        def submitting(executor: DeviceExecutor, effect: SubmitJob, now: float) -> None:
            self.note("submitted")
            submit(executor, effect, now)

        def settling(samplers: SamplerPool, job: Job, finished: Finished) -> tuple[LaneResult, ...]:
            self.note("computed")
            return settle(samplers, job, finished)

        ServingCore.handle = deciding  # type: ignore[method-assign]
        DeviceExecutor.submit = submitting  # type: ignore[method-assign]
        SamplerPool.settle = settling  # type: ignore[method-assign]

    def _decided(self, effect: Effect) -> None:
        match effect:
            case Place():
                self.note("placed")
            case AllocateSequence():
                self.note("offered")
            case Admit():
                self.note("admitted")
            case Deliver():
                self.note("delivered")
            case Finish():
                print(json.dumps(self._passed_s), flush=True)
                self._passed_s.clear()


class NotingService:
    """A service that notes when a request comes to it; the rest is the daemon's."""

    def __init__(self, service: Service, moments: Moments) -> None:
        self._service = service
        self._moments = moments

    def __getattr__(self, name: str) -> Any:
        return getattr(self._service, name)

    def open(self, asked: InferenceRequest) -> AbstractAsyncContextManager[RequestHandle]:
        """See `calculet_trio.shell.service.Service.open`."""
        self._moments.note("arrived")
        return self._service.open(asked)


def serve(configuration: Path) -> None:
    """The daemon that `calculet-trio serve` would be, with an eye on its requests."""
    configure_logging(verbosity=0)
    daemon = wire(load(configuration), on_ready=lambda port: print(f"is ready on http://127.0.0.1:{port}", flush=True))
    moments = Moments()
    moments.watch()
    source = daemon.source

    def open_text() -> ModelText:
        text = source.open_text()
        encode = text.tokenizer.encode_prompt

        def encode_prompt(segments: Any) -> list[int]:
            ids = encode(segments)
            moments.note("prepared")
            return ids

        text.tokenizer.encode_prompt = encode_prompt  # type: ignore[method-assign]
        return text

    trio.run(
        run,
        attrs.evolve(
            daemon,
            source=attrs.evolve(source, open_text=open_text),
            serve_http=noting(daemon.serve_http, moments),
        ),
    )


def noting(surface: HttpServer, moments: Moments) -> HttpServer:
    """The surface over a service that notes."""

    async def serve_http(service: Service, stop: trio.Event, *, task_status: trio.TaskStatus[int]) -> None:
        await surface(NotingService(service, moments), stop, task_status=task_status)

    return serve_http


# ---- outside ----------------------------------------------------------------------------------------


def measure_stages(options: argparse.Namespace) -> dict[str, list[float]]:
    """Microseconds of each stage, a value for each request; they come one at a time."""
    script = {"lanes": 1, "replies": [{"tokens": ["word ", "word"]}]}
    asking = request(
        "/v1/chat/completions", {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    )
    found: dict[str, list[float]] = {stage: [] for stage, _ in STAGES}
    with DaemonProcess(script, command=[sys.executable, __file__]) as daemon:
        for number in range(WARM_UP + options.first_tokens):
            told = trio.run(stream, daemon.port, asking)
            assert told.ended, daemon.log
            passed_s = {**json.loads(daemon.output.readline()), "heard": told.events_s[0]}
            before_s = told.asked_s
            for stage, _ in STAGES:
                if number >= WARM_UP:
                    found[stage].append((passed_s[stage] - before_s) * 1e6)
                before_s = passed_s[stage]
    return found


def show_stages(found: dict[str, list[float]]) -> None:
    """Print the table."""
    count = len(found["heard"])
    print(f"the way to the first token: chat over the scripted runtime, {count} requests one at a time, µs")
    print("stage            median       P95")
    for stage, says in STAGES:
        p95 = statistics.quantiles(found[stage], n=20)[18] if count > 1 else found[stage][0]
        print(f"{stage:<12}{statistics.median(found[stage]):11.0f}{p95:10.0f}   {says}")
    whole = [sum(values) for values in zip(*found.values(), strict=True)]
    print(f"{'in all':<12}{statistics.median(whole):11.0f}")


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
