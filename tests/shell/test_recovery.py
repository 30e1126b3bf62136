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


def plain(number):
    """Every other stream samples, from a seed of its own."""
    sampling = SamplingParams(temperature=0.8, seed=number) if number % 2 else SamplingParams(temperature=0.0)
    return ReplyParams(sampling=sampling, ignore_eos=True)


def remembering(number):
    """Choices that depend on what was said before: what a replay would get wrong, if it began to count anew."""
    sampling = (
        SamplingParams(temperature=0.0, repetition_penalty=1.3),
        SamplingParams(temperature=0.0, presence_penalty=1.5, logit_bias={65: 4.0, 66: -100.0}),
        SamplingParams(temperature=0.0, frequency_penalty=0.7),
        SamplingParams(temperature=0.9, top_k=20, frequency_penalty=1.0, seed=1),
        SamplingParams(temperature=0.9, top_p=0.9, repetition_penalty=1.1, seed=1),
        SamplingParams(temperature=1.2, min_p=0.05, seed=2),
        SamplingParams(temperature=0.7, logit_bias={70: 3.0}, presence_penalty=-0.5, seed=3),
        SamplingParams(temperature=0.0),
    )[number]
    stop = ("qq", "never said") if number % 2 else ()
    return ReplyParams(sampling=sampling, stop=stop, top_logprobs=(None, 0, 3)[number % 3], ignore_eos=number < 6)


def request(number, reply=plain):
    """Prompts and replies of different lengths."""
    return InferenceRequest(
        alias="m",
        tenant="default",
        prompt=TokenPrompt(tuple(range(40 + number, 44 + 3 * number))),
        reply=reply(number),
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
    assert counts.replays >= len(FAULTS), "each met somebody; how many have come by then is the machine's"


async def outputs(service):
    """What each of the eight was told, token by token: texts, tokens, how likely they were, and how it ended."""
    told = {}

    async def one(number):
        async with service.open(request(number, remembering)) as handle:
            heard = [output async for output in handle]
            tokens = [(each.token, [top.token for top in each.top]) for output in heard for each in output.logprobs]
            likely = [each.logprob for output in heard for each in output.logprobs]
            told[number] = ("".join(output.text for output in heard), tokens, handle.ending), likely

    async with trio.open_nursery() as nursery:
        for number in range(STREAMS):
            nursery.start_soon(one, number)
    return [told[number] for number in range(STREAMS)]


async def test_what_a_reply_remembers_of_itself_outlives_the_reset(package):
    async with serving(package, (), replay=True) as (service, _):
        undisturbed = await outputs(service)
    async with serving(package, FAULTS, replay=True) as (service, snapshot):
        disturbed = await outputs(service)
        assert snapshot().replays >= len(FAULTS)
    assert [said for said, _ in disturbed] == [said for said, _ in undisturbed]
    for (_, disturbed_likely), (_, likely) in zip(disturbed, undisturbed, strict=True):
        assert disturbed_likely == pytest.approx(likely, abs=1e-3)


async def test_without_replay_they_fail_retryable_and_the_next_are_served(package):
    async with serving(package, FAULTS[1:2], replay=False) as (service, snapshot):
        told = (await replies(service)).values()
        failed = [each for each in told if not isinstance(each, str)]  # who had no lane yet went on waiting
        assert {(type(each), each.reason, each.retryable) for each in failed} == {
            (GenerationFailed, "pcie_error", True)
        }
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
