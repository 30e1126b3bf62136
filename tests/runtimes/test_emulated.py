"""The emulated board: the contract, bare and wrapped, and what is its own: true histories, times, its manners."""

from __future__ import annotations

import attrs
import pytest

from calculet_trio.core.events import FaultReason
from calculet_trio.core.jobs import EngineId
from calculet_trio.core.profiles import InactiveLanePolicy, LaneLayout
from calculet_trio.ids import GenerationId, LaneId
from calculet_trio.runtimes.device_model import DeviceModel, PrefillCurve, StepCurve, load_device
from calculet_trio.runtimes.emulated import END_TOKEN, EmulatedRuntime, continuation, extend, next_token
from calculet_trio.runtimes.faults import FaultyRuntime, Plan
from calculet_trio.runtimes.pace import VirtualPace
from calculet_trio.runtimes.port import CANDIDATES, Finished, NotSubmitted, Submitted, Unknown
from tests.runtimes.contract import PROMPT, RuntimeContract, Subject, work

GENERATION = GenerationId(1)


def board(**changes: object) -> DeviceModel:
    """A small board of eight lanes whose memory total can be believed."""
    return load_device(
        **{
            "lanes": 8,
            "context_tokens": 64,
            "vocab_size": 300,
            "decode": {1: StepCurve(0.010), 4: StepCurve(0.012), 8: StepCurve(0.015)},
            "prefill": PrefillCurve(0.001, 0.002),
            "kv_token_bytes": 64,
            "memory_total_bug": False,
            "jitter": 0.0,
            "h2d_s": 0.0,
            "d2h_row_s": 0.0,
            **changes,
        }
    )


def leaping() -> VirtualPace:
    """A clock that nobody waits for: it is where the device's work has taken it."""
    return VirtualPace(lambda: 0.0)


def configured(model: DeviceModel | None = None, pace: VirtualPace | None = None) -> Subject:
    runtime = EmulatedRuntime(model or board(), pace or leaping())
    runtime.open()
    runtime.configure(GENERATION, None)
    return Subject(runtime, GENERATION)


class TestContract(RuntimeContract):
    @pytest.fixture
    def subject(self) -> Subject:
        return configured()


class TestContractWithCandidates(RuntimeContract):
    @pytest.fixture
    def subject(self) -> Subject:
        return configured(board(candidates=4))

    def test_it_names_each_rows_largest_logits(self, subject: Subject) -> None:
        assert CANDIDATES in subject.runtime.inspect(GENERATION).capabilities
        sequence = subject.allocate(0)
        submitted = subject.submit(subject.prefill_job(0, sequence))
        assert isinstance(submitted, Submitted)
        outcome = subject.wait(submitted)
        assert isinstance(outcome, Finished)
        assert outcome.logits is not None
        assert outcome.candidates is not None
        named = outcome.candidates.row(0)
        assert named.ids.shape == (4,)
        assert named.ids[0] == outcome.logits[0].argmax()
        assert named.values.tolist() == outcome.logits[0][named.ids].tolist()


class TestContractBehindFaultsThatNeverHappen(RuntimeContract):
    @pytest.fixture
    def subject(self) -> Subject:
        bare = configured()
        return attrs.evolve(bare, runtime=FaultyRuntime(bare.runtime, Plan(()), leaping()))


def greedy(subject: Subject, lane: int, tokens: int) -> list[int]:
    """What the board says after the prompt in ``lane``."""
    sequence = subject.allocate(lane)
    reply = [int(subject.run(subject.prefill_job(lane, sequence))[0].argmax())]
    while len(reply) < tokens and reply[-1] != END_TOKEN:
        position = len(PROMPT) + len(reply) - 1
        reply.append(int(subject.run(subject.one_token(lane, sequence, reply[-1], position))[0].argmax()))
    return reply


# ---- histories ----------------------------------------------------------------------------------------


def test_it_says_what_its_prompt_alone_foretells() -> None:
    assert greedy(configured(), 3, 20) == continuation(PROMPT, 20)


def test_a_lost_a_doubled_or_a_swapped_token_changes_what_follows() -> None:
    history = extend(0, PROMPT)
    others = [PROMPT[:-1], (*PROMPT, PROMPT[-1]), (*PROMPT[:3], PROMPT[4], PROMPT[3]), (*PROMPT[1:], PROMPT[0])]
    assert len({history, *(extend(0, other) for other in others)}) == 5
    assert continuation(PROMPT, 1) == [next_token(history)]


def test_a_reply_may_end_by_itself() -> None:
    ended = [reply for first in range(200) if END_TOKEN in (reply := continuation((first,), 200))]
    assert ended
    assert all(reply.index(END_TOKEN) == len(reply) - 1 for reply in ended)


def test_an_idle_lane_without_a_mask_contract_is_written_into() -> None:
    said = {}
    for policy in (InactiveLanePolicy.VALID_MASK, InactiveLanePolicy.NONE):
        subject = configured(board(inactive_lane=policy))
        idle, busy = subject.allocate(0), subject.allocate(1)
        subject.run(subject.prefill_job(0, idle))
        subject.run(subject.prefill_job(1, busy))
        beside = [work(1, busy, 1, 3, len(PROMPT))]
        subject.run(subject.decode_job(subject.shape.decode[1], 0, beside))
        subject.run(subject.one_token(0, idle, 7, len(PROMPT)))
        said[policy] = subject.runtime._histories[idle][-1]
    assert said[InactiveLanePolicy.VALID_MASK] == extend(0, (*PROMPT, 7))
    assert said[InactiveLanePolicy.NONE] != extend(0, (*PROMPT, 7))


def test_an_indirect_batch_names_its_lanes() -> None:
    subject = configured(board(layout=LaneLayout.INDIRECT))
    near, far = subject.allocate(0), subject.allocate(7)
    subject.run(subject.prefill_job(0, near))
    subject.run(subject.prefill_job(7, far))
    works = [work(7, far, 0, 3, len(PROMPT)), work(0, near, 1, 4, len(PROMPT))]
    job = attrs.evolve(subject.decode_job(subject.shape.decode[1], 0, works), first_lane=None)
    rows = subject.run(job)
    assert [int(row.argmax()) for row in rows[:2]] == [next_token(extend(0, (*PROMPT, token))) for token in (3, 4)]
    twice = [work(7, far, 0, 3, len(PROMPT) + 1), work(7, far, 1, 3, len(PROMPT) + 1)]
    subject.must_refuse(attrs.evolve(job, lanes=tuple(twice)))
    subject.must_refuse(attrs.evolve(job, first_lane=LaneId(0)))


# ---- times --------------------------------------------------------------------------------------------


def test_a_job_takes_what_the_device_model_says() -> None:
    pace = leaping()
    subject = configured(board(prefill=PrefillCurve(0.5, 0.01, 0.001)), pace)
    sequence = subject.allocate(0)
    subject.run(subject.prefill_job(0, sequence, range(4)))
    assert pace.now() == pytest.approx(0.5 + 0.01 * 4 + 0.001 * 4 * (0 + 2))
    subject.run(subject.prefill_job(0, sequence, range(4), position=4))
    assert pace.now() == pytest.approx(2 * (0.5 + 0.01 * 4) + 0.001 * 4 * (2 + 6))


@pytest.mark.parametrize(("overlaps", "ends_s"), [(False, 0.020), (True, 0.010)])
def test_two_engines_compute_at_once_only_where_the_board_does(overlaps: bool, ends_s: float) -> None:
    pace = leaping()
    subject = configured(board(compute_overlaps=overlaps), pace)
    sequences = [subject.allocate(lane) for lane in (0, 1)]
    for lane, sequence in enumerate(sequences):
        subject.run(subject.prefill_job(lane, sequence))
    began_s = pace.now()
    taken = [
        subject.runtime.submit(engine, subject.one_token(lane, sequences[lane], 3, len(PROMPT)))
        for lane, engine in enumerate(EngineId)
    ]
    for engine, submitted in zip(EngineId, taken, strict=True):
        assert isinstance(submitted, Submitted)
        assert isinstance(subject.runtime.wait(engine, submitted.ticket, 60.0), Finished)
    assert pace.now() - began_s == pytest.approx(ends_s)


def test_a_wait_ends_by_its_timeout_and_leaves_engine_and_lane_to_nobody() -> None:
    subject = configured()
    sequence = subject.allocate(0)
    submitted = subject.submit(subject.prefill_job(0, sequence))
    assert isinstance(submitted, Submitted)
    assert subject.runtime.wait(subject.engine, submitted.ticket, 0.001) == Unknown(FaultReason.TIMEOUT)
    assert not subject.release(0, sequence)
    assert subject.submit(subject.prefill_job(1, subject.allocate(1))) == NotSubmitted(FaultReason.DEVICE_BUSY)


def test_a_ticket_is_waited_for_once() -> None:
    subject = configured()
    submitted = subject.submit(subject.prefill_job(0, subject.allocate(0)))
    assert isinstance(submitted, Submitted)
    assert isinstance(subject.wait(submitted), Finished)
    assert subject.wait(submitted) == Unknown(FaultReason.RUNTIME_ERROR)


# ---- what it says of itself ---------------------------------------------------------------------------


def test_it_says_that_it_is_emulated() -> None:
    runtime = configured().runtime
    assert runtime.open().kind == "emulated"
    assert runtime.is_emulator


def test_its_memory_total_can_be_as_wrong_as_the_boards() -> None:
    assert configured(board(memory_total_bug=True)).runtime.memory().total_bytes == 32
    memory = configured().runtime.memory()
    assert memory.used_bytes == board().parameter_bytes + 8 * 64 * 64
