"""Evidence at load: prompts are cut where it says so and nowhere else, and models show what has been earned."""

from __future__ import annotations

import pytest
import trio

from calculet_trio.core.effects import SubmitJob
from calculet_trio.core.evidence import CHUNKED_PREFILL_CONDITIONS, Combination, Evidence, EvidenceRecord
from calculet_trio.core.jobs import PrefillJob
from calculet_trio.core.policy import Policy, QueuePolicy
from calculet_trio.runtimes.device_model import PrefillCurve, StepCurve, load_device
from calculet_trio.runtimes.emulated import EmulatedRuntime, continuation
from calculet_trio.runtimes.pace import RealPace
from calculet_trio.shell import lifecycle
from calculet_trio.shell.daemon import Daemon
from calculet_trio.shell.loading import ModelSource, ModelText
from calculet_trio.shell.service import InferenceRequest
from calculet_trio.text.byte_tokenizer import ByteTokenizer
from calculet_trio.text.params import ReplyParams, SamplingParams, TokenPrompt
from tests.shell.house import silence

BOARD = load_device(
    lanes=4,
    context_tokens=128,
    vocab_size=259,
    prefill=PrefillCurve(0.001, 0.0),
    decode={1: StepCurve(0.001), 4: StepCurve(0.001)},
)
PROMPT = tuple(range(97, 97 + 25)) * 2
PIECES = [16, 16, 16, 2]
HERE = Combination("ab" * 32, "calrt 1", "emulated")


class Submitted:
    """An observer that keeps the prefill jobs."""

    def __init__(self):
        self.prefills = []

    def watch(self, snapshot, clock):
        """Nothing is counted here."""

    def watch_device(self, reading, memory):
        """Not looked at."""

    def heard(self, event, now):
        """Only effects are kept."""

    def saw(self, effect, now):
        if isinstance(effect, SubmitJob) and isinstance(effect.job, PrefillJob):
            self.prefills.append(effect.job)

    def load_step(self, step, taken_s):
        """Loads play no part."""


async def served(evidence):
    """Load with ``evidence``, ask once: the prefill jobs, the model as it is shown, the reply, the device seen."""
    observer, shown, devices = Submitted(), [], []
    ready = trio.Event()

    async def surface(service, stop, *, task_status):
        task_status.started(0)
        await ready.wait()
        request = InferenceRequest(
            alias="m",
            tenant="default",
            prompt=TokenPrompt(PROMPT),
            reply=ReplyParams(sampling=SamplingParams(temperature=0.0)),
            max_new_tokens=8,
        )
        async with service.open(request) as handle:
            text = "".join([output.text async for output in handle])
        shown.extend((service.models()[0], text))
        house._begin_drain(1.0)
        await stop.wait()

    def looked_up(device):
        devices.append(device)
        return evidence

    daemon = Daemon(
        runtime=EmulatedRuntime(BOARD, RealPace()),
        source=ModelSource(
            alias="m",
            package=None,
            verify=lambda: None,
            open_text=lambda: ModelText(ByteTokenizer(), None),
            meta={},
            evidence=looked_up,
        ),
        policy=Policy(queues=QueuePolicy(prefill_chunk_tokens=16)),
        metrics=observer,
        serve_http=surface,
        on_ready=lambda _port: ready.set(),
    )
    house = lifecycle._House(daemon, daemon.runtime.open())
    with trio.fail_after(30):
        await house.live(signals=silence())
    assert [device.kind for device in devices] == ["emulated"]
    return observer.prefills, *shown


def earned(*, without=()):
    passed = frozenset(CHUNKED_PREFILL_CONDITIONS).difference(without)
    return Evidence(HERE, [EvidenceRecord(HERE, passed, "record 7")])


async def test_with_all_five_conditions_a_prompt_goes_in_pieces_and_says_the_same():
    prefills, model, text = await served(earned())
    assert [len(job.work.tokens) for job in prefills] == PIECES
    assert [job.samples for job in prefills] == [False, False, False, True]
    assert text == ByteTokenizer().decode(continuation(PROMPT, 8))
    assert model.meta["capabilities"]["incremental_prefill"] == {
        "level": "C0",
        "earned": True,
        "evidence": "record 7",
        "missing": "",
    }


@pytest.mark.parametrize("evidence", [None, Evidence(HERE), *(earned(without=[n]) for n in CHUNKED_PREFILL_CONDITIONS)])
async def test_without_one_of_them_it_goes_whole(evidence):
    prefills, model, text = await served(evidence)
    assert [len(job.work.tokens) for job in prefills] == [len(PROMPT)]
    assert text == ByteTokenizer().decode(continuation(PROMPT, 8))
    if evidence is None:
        assert "capabilities" not in model.meta
        return
    shown = model.meta["capabilities"]["incremental_prefill"]
    assert (shown["level"], shown["earned"], shown["evidence"]) == ("C3", False, None)
    assert shown["missing"].startswith("the vendor's word")
    assert model.meta["capabilities"]["batch:4"]["level"] == "C3"
    assert model.meta["capabilities"]["batch:1"]["level"] == "C0"
