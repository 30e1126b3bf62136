"""A thousand requests at once, on real threads: cancels, deadlines, a shutdown, faults, and delays in any order.

The emulated board says what a sequence's whole history foretells, so that a mixed-up, lost or doubled token
shows in the text. Nothing here is timed; a hang fails by its bound.

Source: S §17.3.
"""

from __future__ import annotations

import random
from collections import Counter

import attrs
import pytest
import trio

from calculet_trio.core import effects as ef
from calculet_trio.core import events as ev
from calculet_trio.core.events import FaultReason
from calculet_trio.core.fault_kinds import FaultKind
from calculet_trio.core.policy import AdmissionPolicy, Policy, RecoveryPolicy
from calculet_trio.errors import DeviceLost, GenerationFailed, RequestRefused
from calculet_trio.runtimes.device_model import PrefillCurve, StepCurve, load_device
from calculet_trio.runtimes.emulated import END_TOKEN, EmulatedRuntime, continuation
from calculet_trio.runtimes.faults import FaultyRuntime, Plan, Planned, Rates
from calculet_trio.runtimes.pace import RealPace
from calculet_trio.shell import lifecycle
from calculet_trio.shell.daemon import Daemon
from calculet_trio.shell.executor import JobTimeout
from calculet_trio.shell.loading import ModelSource, ModelText
from calculet_trio.shell.service import InferenceRequest
from calculet_trio.text.byte_tokenizer import ByteTokenizer
from calculet_trio.text.params import ReplyParams, SamplingParams, TokenPrompt
from tests.shell.house import silence

REQUESTS = 1000
BOUND_S = 120.0
BOARD = load_device(
    lanes=16,
    context_tokens=256,
    vocab_size=259,
    prefill=PrefillCurve(0.0002, 0.000_005),
    decode={1: StepCurve(0.0004), 4: StepCurve(0.0006), 8: StepCurve(0.0010)},
    h2d_s=0.0001,
    d2h_row_s=0.0,
    engines=2,
    compute_overlaps=True,
    jitter=0.95,  # so that a job may overtake the one before it
)
POLICY = Policy(
    admission=AdmissionPolicy(max_waiting_requests=REQUESTS, max_inflight_jobs=2, deadline_default_s=BOUND_S)
)
SURVIVED = {
    FaultKind.DEVICE_BUSY: 0.02,
    FaultKind.SLOW: 0.004,
    FaultKind.OUTPUT_ERROR: 0.01,
    FaultKind.NO_CAPACITY: 0.05,
}
TOKENIZER = ByteTokenizer()


class Books:
    """What an observer of the daemon writes down, and what must hold of it at every moment and at the end."""

    def __init__(self) -> None:
        self.is_open: dict[int, bool] = {}
        self.tokens: Counter[int] = Counter()
        self.endings: Counter[str] = Counter()
        self.jobs: dict[int, set[int]] = {}
        self.jobs_at_once = 0
        self.resets = 0

    def watch(self, snapshot, clock):
        self.snapshot = snapshot

    def watch_device(self, reading, memory):
        """Not looked at."""

    def heard(self, event, now):
        match event:
            case ev.Arrived(request):
                assert request not in self.is_open, "an id was given twice"
                self.is_open[request] = True
            case ev.JobFinished(job) | ev.JobFailed(job) | ev.JobNotSubmitted(job) | ev.JobUnknown(job):
                assert job in self.jobs, f"job {job} ended twice, or never began"
                del self.jobs[job]

    def saw(self, effect, now):
        match effect:
            case ef.SubmitJob(_, job):
                lanes = {work.lane for work in job.lanes}
                assert not any(lanes & held for held in self.jobs.values()), "a lane is in two jobs"
                self.jobs[job.job] = lanes
                self.jobs_at_once = max(self.jobs_at_once, len(self.jobs))
            case ef.ResetDevice():
                assert not self.jobs, "a job is out"
                self.resets += 1
            case ef.Deliver(request):
                assert self.is_open[request], "a token after the end"
                self.tokens[request] += 1
            case ef.Refuse(request) | ef.Finish(request) | ef.Fail(request) | ef.Drop(request):
                assert self.is_open[request], "ended twice"
                self.is_open[request] = False
                self.endings[type(effect).__name__] += 1

    def load_step(self, step, taken_s):
        """Loads play no part."""


@attrs.define
class Chaos:
    """One daemon, its thousand clients, and how each of them was answered."""

    runtime: FaultyRuntime
    board: EmulatedRuntime
    seed: int
    policy: Policy
    books: Books = attrs.field(factory=Books)
    answers: Counter[str] = attrs.field(factory=Counter)
    ready: trio.Event = attrs.field(factory=trio.Event)
    house: lifecycle._House = attrs.field(init=False)
    stop_after: int | None = None

    async def live(self, *, shutdown_after: int | None) -> None:
        """Start the daemon, let everybody come at once, and wait until it is over."""
        daemon = Daemon(
            runtime=self.runtime,
            source=ModelSource(
                alias="m",
                package=None,
                verify=lambda: None,
                open_text=lambda: ModelText(TOKENIZER, None),
                meta={},
            ),
            policy=self.policy,
            metrics=self.books,
            serve_http=self._surface,
            on_ready=lambda _port: self.ready.set(),
            drain_s=BOUND_S,
            job_timeout=JobTimeout(base_s=BOUND_S, per_token_s=0.0, overrun_s=BOUND_S),
        )
        self.stop_after = shutdown_after
        self.house = lifecycle._House(daemon, self.runtime.open())
        with trio.fail_after(BOUND_S):
            await self.house.live(signals=silence())

    async def _surface(self, service, stop, *, task_status):
        task_status.started(0)
        await self.ready.wait()
        draw = random.Random(self.seed)
        async with trio.open_nursery() as clients:
            for number in range(REQUESTS):
                clients.start_soon(self._client, service, number, draw.randrange(1 << 32))
        self.house._begin_drain(0.0)
        await stop.wait()

    async def _client(self, service, number, seed):
        draw = random.Random(seed)
        prompt = tuple(draw.choices(range(97, 123), k=draw.randint(1, 40)))
        request = InferenceRequest(
            alias="m",
            tenant=f"tenant {number % 5}",
            prompt=TokenPrompt(prompt),
            reply=ReplyParams(sampling=SamplingParams(temperature=0.0)),
            max_new_tokens=draw.randint(1, 24),
            deadline_s=draw.uniform(0.0, 2.0) if draw.random() < 0.2 else None,
        )
        patience_s = draw.uniform(0.0, 2.0) if draw.random() < 0.3 else float("inf")
        answer = "left"
        with trio.move_on_after(patience_s):
            try:
                async with service.open(request) as handle:
                    answer = await self._read(handle, prompt)
            except RequestRefused as refused:
                answer = refused.code
            except GenerationFailed as failed:
                answer = str(failed)
        self.answers[answer] += 1
        if self.stop_after is not None and self.answers.total() == self.stop_after:
            self.house._begin_drain(0.05)

    async def _read(self, handle, prompt):
        """The reply must be what its own prompt foretells, to the last token that was counted."""
        text = "".join([output.text async for output in handle])
        said = continuation(prompt, handle.timings.predicted_tokens)
        assert text == TOKENIZER.decode(token for token in said if token != END_TOKEN)
        return "truncated" if handle.ending.truncated_by else "whole"

    def nothing_is_left(self) -> None:
        """Everybody was told one end, and no stream, text side or job is kept."""
        assert self.answers.total() == REQUESTS
        assert not any(self.books.is_open.values())
        assert self.books.endings.total() == len(self.books.is_open)
        assert len(self.house._dispatcher) == len(self.house._samplers) == 0


def chaos(seed, plan, policy=POLICY):
    pace = RealPace()
    board = EmulatedRuntime(BOARD, pace, seed=seed)
    return Chaos(FaultyRuntime(board, plan, pace), board, seed, policy)


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_thousand_requests_with_cancels_and_deadlines(seed):
    crowd = chaos(seed, Rates(SURVIVED, seed=seed))
    await crowd.live(shutdown_after=None)
    crowd.nothing_is_left()
    assert crowd.board.resident == 0
    assert not crowd.books.jobs
    assert crowd.books.jobs_at_once == 2
    assert {"whole", "left"} <= crowd.answers.keys()
    assert {FaultKind.DEVICE_BUSY, FaultKind.OUTPUT_ERROR, FaultKind.NO_CAPACITY} <= crowd.runtime.happened.keys()


async def test_a_shutdown_in_their_middle():
    crowd = chaos(3, Rates(SURVIVED, seed=3))
    await crowd.live(shutdown_after=200)
    crowd.nothing_is_left()
    assert crowd.board.resident == 0
    assert not crowd.books.jobs
    assert crowd.answers["draining"] > 0


async def test_a_device_that_is_reset_in_their_middle_again_and_again():
    recovery = RecoveryPolicy(max_resets_per_10min=100, replay=True)
    planned = [Planned(FaultKind.CCU_FAULT, nth) for nth in (50, 51, 120, 300, 301, 500)]
    crowd = chaos(5, Plan(planned), attrs.evolve(POLICY, recovery=recovery))
    await crowd.live(shutdown_after=None)
    crowd.nothing_is_left()
    counts = crowd.books.snapshot()
    assert counts.resets == crowd.books.resets > 0
    assert counts.replays > 0
    assert counts.buffers_unknown == len(planned)
    assert crowd.board.resident == 0
    assert not [answer for answer in crowd.answers if FaultReason.CCU_FAULT.value in answer], "nobody hears of it"


async def test_a_device_that_is_lost_in_their_middle():
    crowd = chaos(4, Plan([Planned(FaultKind.DEVICE_LOST, 300)]))
    with pytest.RaisesGroup(DeviceLost, flatten_subgroups=True, allow_unwrapped=True):
        await crowd.live(shutdown_after=None)
    crowd.nothing_is_left()
    assert crowd.answers["whole"] > 0
