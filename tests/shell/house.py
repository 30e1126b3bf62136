"""A whole daemon in this process, without HTTP: the real shell, core and text side over a scripted runtime."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio

from calculet_trio.core.policy import AdmissionPolicy, Policy
from calculet_trio.observe.metrics import ServiceMetrics
from calculet_trio.runtimes.script import parse_script
from calculet_trio.runtimes.scripted import ScriptedRuntime
from calculet_trio.shell import lifecycle
from calculet_trio.shell.daemon import Daemon
from calculet_trio.shell.executor import JobTimeout
from calculet_trio.shell.loading import ModelSource, ModelText
from calculet_trio.shell.service import InferenceRequest, Service
from calculet_trio.text.params import ReplyParams, SamplingParams, TextPrompt

GREEDY = SamplingParams(temperature=0.0)


@attrs.define
class House:
    """What a test holds of the running daemon."""

    service: Service
    runtime: ScriptedRuntime
    stop: trio.Event  # set it, and the drain begins
    nursery: trio.Nursery
    metrics: ServiceMetrics
    alive: lifecycle._House

    def post(self, event):
        self.alive._loop.post(event)


def asking(prompt="hi", *, max_new_tokens=None, deadline_s=None, **reply):
    """A request of the model ``m``."""
    return InferenceRequest(
        alias="m",
        tenant="default",
        prompt=TextPrompt(prompt),
        reply=ReplyParams(sampling=GREEDY, **reply),
        max_new_tokens=max_new_tokens,
        deadline_s=deadline_s,
    )


async def until(condition, *, within_s=10.0):
    """Wait until ``condition()`` holds; nothing tells us when, so look again and again."""
    with trio.fail_after(within_s):
        while not condition():  # noqa: ASYNC110
            await trio.sleep(0.002)


def now(house):
    """The core's counts."""
    return house.alive._loop.snapshot()


async def idle(house):
    """Wait until nothing is registered and every lane is free; the runtime's answers are still under way."""

    def is_idle():
        now = house.alive._loop.snapshot()
        return now.waiting_requests + now.running_requests + now.lanes_in_use == 0

    await until(is_idle)


def silence():
    """Signals that never come."""
    return trio.open_memory_channel(0)[1]


async def read(handle):
    """The whole reply as text."""
    return "".join([output.text async for output in handle])


async def ask(service, *args, **kwargs):
    """One request from end to end: its text and its ending."""
    async with service.open(asking(*args, **kwargs)) as handle:
        text = await read(handle)
        return text, handle.ending


@asynccontextmanager
async def living(
    script, *, policy=None, drain_s=5.0, job_s=10.0, overrun_s=5.0, ready=True, **changes
) -> AsyncIterator[House]:
    """Run a daemon around the block; afterwards it is drained, and nothing may be left of it."""
    runtime = ScriptedRuntime(parse_script({"model": "m", **script}))
    metrics = ServiceMetrics()
    opened = trio.Event()
    is_ready = trio.Event()
    seen = []

    async def serve_http(service, stop, *, task_status):
        seen.append(service)
        opened.set()
        task_status.started(0)
        await stop.wait()

    source = ModelSource(
        alias="m",
        package=None,
        verify=lambda: None,
        open_text=lambda: ModelText(runtime.script.tokenizer, None),
        meta={},
    )
    daemon = Daemon(
        runtime=runtime,
        source=source,
        policy=policy or Policy(admission=AdmissionPolicy()),
        metrics=metrics,
        serve_http=serve_http,
        on_ready=lambda _port: is_ready.set(),
        drain_s=drain_s,
        job_timeout=JobTimeout(base_s=job_s, per_token_s=0.0, overrun_s=overrun_s),
        **changes,
    )
    alive = lifecycle._House(daemon, runtime.open())
    ended = trio.Event()

    async def live():
        try:
            await alive.live(signals=silence())
        finally:
            runtime.close()
            ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(live)
        await opened.wait()
        if ready:
            await is_ready.wait()
        house = House(seen[0], runtime, alive._begun_stopping, nursery, metrics, alive)
        try:
            yield house
        finally:
            alive._begin_drain(drain_s)
            with trio.move_on_after(30) as patience:
                patience.shield = True
                await ended.wait()
            assert not patience.cancelled_caught, "the daemon did not end"
    assert len(alive._dispatcher) == 0
    assert len(alive._samplers) == 0
    assert runtime.resident == 0 or alive._lost is not None
