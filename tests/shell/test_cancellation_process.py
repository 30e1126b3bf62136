"""The whole daemon over a real socket: cancelled, or left by its client, at every scheduling point that it has."""

from __future__ import annotations

import itertools
import signal
import socket
import struct
from contextlib import suppress
from functools import partial

import attrs
import h11
import pytest
import trio

from calculet_trio.api.app import create_app
from calculet_trio.api.listening import bound_socket
from calculet_trio.api.server import serve
from calculet_trio.api.settings import ApiSettings
from calculet_trio.core.policy import AdmissionPolicy, Policy
from calculet_trio.observe.metrics import ServiceMetrics
from calculet_trio.runtimes.script import parse_script
from calculet_trio.runtimes.scripted import ScriptedRuntime
from calculet_trio.shell import lifecycle
from calculet_trio.shell.daemon import Daemon
from calculet_trio.shell.loading import ModelSource, ModelText
from tests.api.wire import Wire, post
from tests.shell.checkpoints import POINTS_MAX, Remains, StrikeAt, WatchedRuntime
from tests.shell.house import until

SCRIPT = {
    "model": "m",
    "lanes": 1,
    "step_s": 0.001,
    "replies": [{"when": "first", "tokens": ["a", "b"]}, {"when": "second", "tokens": ["c"]}],
}
IDLE_GAUGES = (
    "vllm:num_requests_waiting",
    "vllm:num_requests_running",
    "calculet_waiting_prompt_tokens",
    "calculet_kv_tokens_reserved",
    "calculet_kv_tokens_used",
    "calculet_jobs_in_flight",
    "calculet_jobs_unknown",
)


@attrs.define
class Served:
    """A daemon that is to be struck, and what a test holds of it."""

    runtime: WatchedRuntime
    daemon: Daemon
    metrics: ServiceMetrics
    port: int = 0
    ready: trio.Event = attrs.field(factory=trio.Event)

    async def connect(self):
        stream = await trio.open_tcp_stream("127.0.0.1", self.port)
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing is a reset
        return Wire(stream)


def prepared() -> Served:
    """Everything chosen as `cli.wiring` chooses it, nothing opened."""
    runtime = WatchedRuntime(ScriptedRuntime(parse_script(SCRIPT)))
    metrics = ServiceMetrics()

    async def surface(service, stop, *, task_status):
        app = create_app(service, ApiSettings(), metrics=metrics.expose)
        listening = bound_socket("127.0.0.1", 0, ApiSettings().connection)
        task_status.started(listening.getsockname()[1])
        await serve(app, listening, settings=ApiSettings(), shutdown=stop)

    def on_ready(port):
        served.port = port
        served.ready.set()

    tokenizer = runtime.script.tokenizer
    source = ModelSource(
        alias="m", package=None, verify=lambda: None, open_text=lambda: ModelText(tokenizer, None), meta={}
    )
    daemon = Daemon(
        runtime=runtime,
        source=source,
        policy=Policy(admission=AdmissionPolicy()),
        metrics=metrics,
        serve_http=surface,
        on_ready=on_ready,
        drain_s=5.0,
    )
    served = Served(runtime, daemon, metrics)
    return served


async def stream(served, prompt, heard):
    """One request over a connection of its own; the daemon may end at any time."""
    try:
        wire = await served.connect()
    except OSError:
        return
    try:
        await ask_and_be_cut(wire, prompt, heard)
    finally:
        await trio.aclose_forcefully(wire.stream)


async def ask_and_be_cut(wire, prompt, heard):
    """One request; either side may cut it at any time. ``heard`` has the answers that came whole."""
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError, h11.RemoteProtocolError):
        answer = await wire.answer(post("/v1/completions", {"model": "m", "stream": True, "prompt": prompt}))
        if answer.ended:
            heard[prompt] = answer


@pytest.fixture
def harmless_sigterm():
    """A SIGTERM that comes when the daemon no longer listens for it ends nothing."""
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    yield
    signal.signal(signal.SIGTERM, before)


async def test_a_process_cancelled_at_every_point_of_its_life(harmless_sigterm):
    """From its first step to its last: opening, loading, two requests of which one waits, a drain, an end."""
    await life({}, point=POINTS_MAX)  # imports, and whatever else is made once
    remains, caught, seen = Remains(), 0, set()
    for point in itertools.count(1):
        assert point < POINTS_MAX
        heard = {}
        served, was_struck = await life(heard, point=point)
        assert served.runtime.closed_under == []
        assert served.runtime.called["close"] == served.runtime.called["open"]
        counted = served.runtime.gates.state()
        assert counted.get("submitted", 0) == counted.get("finished", 0)
        await remains.are_gone()
        caught += was_struck
        seen.update(served.runtime.called)
        if not was_struck:
            break
    assert {prompt: answer.events()[-1] for prompt, answer in heard.items()} == {"first": "[DONE]", "second": "[DONE]"}
    assert caught > 50, f"only {caught} points"
    assert seen >= {"open", "configure", "allocate", "submit", "wait", "release", "close"}


async def life(heard, *, point):
    """One daemon from beginning to end, and whether it was cancelled before its own end."""
    served = prepared()

    async def clients():
        await served.ready.wait()
        async with trio.open_nursery() as both:
            both.start_soon(stream, served, "first", heard)
            both.start_soon(stream, served, "second", heard)
        signal.raise_signal(signal.SIGTERM)

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(clients)
            root = trio.lowlevel.current_task()
            with trio.CancelScope() as scope, StrikeAt(point, scope.cancel, root=root):
                await lifecycle.run(served.daemon)
            nursery.cancel_scope.cancel()
    return served, scope.cancelled_caught


async def test_a_client_that_leaves_at_every_point_of_its_request_leaves_nothing(harmless_sigterm):
    """The points are those of the whole daemon while it answers; other clients are served all along."""
    served, finished = prepared(), []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lifecycle.run, served.daemon)
        await served.ready.wait()
        await stream(served, "second", {})
        remains = Remains()
        for point in itertools.count(1):
            assert point < POINTS_MAX
            wire = await served.connect()
            heard = {}
            leave = partial(wire.stream.socket.shutdown, socket.SHUT_RDWR)
            with trio.fail_after(20), StrikeAt(point, leave) as strike:
                await ask_and_be_cut(wire, "first", heard)
            await wire.aclose()
            await nothing_is_left(served)
            await remains.are_gone()
            await stream(served, "second", heard)
            assert heard["second"].events()[-1] == "[DONE]"
            finished.append("first" in heard)
            if not strike.has_struck:
                break
        signal.raise_signal(signal.SIGTERM)
    assert finished[-1]
    assert finished.count(False) > 20, "it was left at most of its points"


async def nothing_is_left(served):
    """Read where an operator reads it: the metrics; and in the script's counters."""

    def is_idle():
        counted = served.runtime.gates.state()
        page = served.metrics.expose("")[0].decode()
        return (
            counted.get("allocated", 0) == counted.get("released", 0)
            and counted.get("submitted", 0) == counted.get("finished", 0)
            and 'calculet_kv_lanes{state="free"} 1.0' in page
            and all(f"{name} 0.0" in page for name in IDLE_GAUGES)
        )

    await until(is_idle)
