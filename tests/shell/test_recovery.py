"""A fault in the middle of eight streams on the CPU runtime: reset, replay, and eight undamaged texts."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import asynccontextmanager

import pytest
import trio

from calculet_trio.cli.model_text import open_text
from calculet_trio.core.fault_kinds import FaultKind
from calculet_trio.core.policy import AdmissionPolicy, Policy, RecoveryPolicy
from calculet_trio.errors import GenerationFailed, RequestRefused
from calculet_trio.observe.metrics import ServiceMetrics
from calculet_trio.packages.build import build_package
from calculet_trio.packages.build_options import BuildOptions
from calculet_trio.packages.manifest import Manifest
from calculet_trio.runtimes.faults import FaultyRuntime, Plan, Planned
from calculet_trio.runtimes.pace import RealPace
from calculet_trio.shell import lifecycle
from calculet_trio.shell.daemon import Daemon
from calculet_trio.shell.loading import ModelSource
from calculet_trio.shell.service import InferenceRequest
from calculet_trio.text.params import ReplyParams, SamplingParams, TokenPrompt
from tests.models import TinyModel
from tests.shell.house import silence

STREAMS = 8
BOUND_S = 120.0
FAULTS = (Planned(FaultKind.CCU_FAULT, 4), Planned(FaultKind.PCIE_ERROR, 15), Planned(FaultKind.CCU_FAULT, 30))
"""In a prefill, and twice in decode steps, when streams have different lengths."""


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    pytest.importorskip("onnxruntime", reason="needs the host extra")
    from calculet_trio.runtimes.host_golden import record_golden

    directory = tmp_path_factory.mktemp("tiny")
    options = BuildOptions(batches=(1, 4, 8), lanes=STREAMS, max_seq=64)
    gguf = TinyModel().write(directory / "model.gguf")
    build_package(
        gguf, directory / "package", name="tiny", options=options, report=lambda _progress: None, prove=record_golden
    )
    return directory / "package"


def request(number):
    """Prompts and replies of different lengths; every other stream samples, from a seed of its own."""
    sampling = SamplingParams(temperature=0.8, seed=number) if number % 2 else SamplingParams(temperature=0.0)
    return InferenceRequest(
        alias="m",
        tenant="default",
        prompt=TokenPrompt(tuple(range(40 + number, 44 + 3 * number))),
        reply=ReplyParams(sampling=sampling, ignore_eos=True),
        max_new_tokens=20 + number,
    )


@asynccontextmanager
async def serving(package, planned, *, replay):
    """A daemon on real threads, and its counts."""
    from calculet_trio.runtimes.host import HostRuntime

    runtime = FaultyRuntime(HostRuntime(threads=1), Plan(planned), RealPace())
    manifest = Manifest.load(package)
    source = ModelSource(
        alias="m", package=package, verify=lambda: None, open_text=lambda: open_text(package, manifest), meta={}
    )
    ready = trio.Event()
    services = []

    async def surface(service, stop, *, task_status):
        services.append(service)
        task_status.started(0)
        await stop.wait()

    daemon = Daemon(
        runtime=runtime,
        source=source,
        policy=Policy(admission=AdmissionPolicy(), recovery=RecoveryPolicy(max_resets_per_10min=100, replay=replay)),
        metrics=ServiceMetrics(),
        serve_http=surface,
        on_ready=lambda _port: ready.set(),
        drain_s=BOUND_S,
    )
    house = lifecycle._House(daemon, runtime.open())
    with trio.fail_after(BOUND_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: house.live(signals=silence()))
            await ready.wait()
            yield services[0], house._loop.snapshot
            house._begin_drain(0.0)
    runtime.close()


async def replies(service):
    """What each of the eight was told."""
    told = {}

    async def one(number):
        try:
            async with service.open(request(number)) as handle:
                told[number] = "".join([output.text async for output in handle])
        except GenerationFailed as failed:
            told[number] = failed

    async with trio.open_nursery() as nursery:
        for number in range(STREAMS):
            nursery.start_soon(one, number)
    return told


async def test_eight_streams_go_on_as_if_nothing_had_been(package):
    async with serving(package, (), replay=True) as (service, _):
        undisturbed = await replies(service)
    async with serving(package, FAULTS, replay=True) as (service, snapshot):
        disturbed = await replies(service)
        counts = snapshot()
    assert disturbed == undisturbed
    assert len(set(undisturbed.values())) == STREAMS, "they say different things"
    assert (counts.resets, counts.buffers_unknown) == (3, 3)
    assert counts.replays > STREAMS


async def test_without_replay_they_fail_retryable_and_the_next_are_served(package):
    async with serving(package, FAULTS[1:2], replay=False) as (service, snapshot):
        told = await replies(service)
        assert {type(each) for each in told.values()} == {GenerationFailed}
        assert {(each.reason, each.retryable) for each in told.values()} == {("pcie_error", True)}
        while snapshot().status.word != "ok":  # noqa: ASYNC110 - nothing tells us when
            await trio.sleep(0.01)
        assert all(isinstance(each, str) for each in (await replies(service)).values())


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_a_crowd_with_faults_and_clients_that_go_gets_its_own_texts_or_a_word(package, seed):
    async with serving(package, (), replay=True) as (service, _):
        undisturbed = await replies(service)
    often = (
        *(Planned(FaultKind.CCU_FAULT, nth) for nth in (10, 25, 26, 60)),
        *(Planned(FaultKind.DEVICE_BUSY, nth) for nth in range(3, 200, 20)),
        *(Planned(FaultKind.NO_CAPACITY, nth) for nth in range(5, 60, 9)),
    )
    draw = random.Random(seed)
    ended = Counter()

    async def one(service, number, patience_s):
        ending = "left"
        with trio.move_on_after(patience_s):
            try:
                async with service.open(request(number)) as handle:
                    text = "".join([output.text async for output in handle])
                assert text == undisturbed[number]
                ending = "whole"
            except (GenerationFailed, RequestRefused) as told:
                ending = type(told).__name__
        ended[ending] += 1

    async with serving(package, often, replay=True) as (service, snapshot):
        async with trio.open_nursery() as crowd:
            for number in range(60):
                patience_s = draw.uniform(0.0, 2.0) if draw.random() < 0.3 else BOUND_S
                crowd.start_soon(one, service, number % STREAMS, patience_s)
        assert snapshot().resets > 0
        while snapshot().lanes_in_use:  # noqa: ASYNC110 - the last lane is on its way back
            await trio.sleep(0.01)
        assert (snapshot().waiting_requests, snapshot().running_requests) == (0, 0)
    assert ended.total() == 60
    assert ended["whole"] > 0
