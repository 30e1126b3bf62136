"""Ping/pong gives way to one engine on every doubt of S §14, for new jobs only, and comes back by word or by proof."""

from __future__ import annotations

import attrs
import pytest

from calculet_trio.core import events as ev
from calculet_trio.core.degradation import BUSY_IN_A_ROW, SLOW_IN_A_ROW, STEPS, EnginePair
from calculet_trio.core.effects import Effect, PairDegraded, PairRestored
from calculet_trio.core.events import Doubt, FaultReason
from calculet_trio.core.generation import GenerationEvent
from calculet_trio.core.health import EngineHealth
from calculet_trio.core.jobs import DecodeJob, EngineId, JobRecord
from calculet_trio.core.policy import AdmissionPolicy, ExecutorPolicy, Policy
from calculet_trio.core.profiles import BatchProfile, InactiveLanePolicy
from calculet_trio.ids import JobId, LaneId
from tests.core.shapes import small_shape
from tests.core.world import ALIAS, GENERATION, World

BOTH = (EngineId.PING, EngineId.PONG)


def policy(*, inflight: int = 2, **executor: object) -> Policy:
    return Policy(admission=AdmissionPolicy(max_inflight_jobs=inflight), executor=ExecutorPolicy(**executor))


def streaming(sequences: int = 2, **executor: object) -> World:
    """B1 sequences decoding on both engines."""
    world = World(small_shape(4, batches=(1,), max_seq=512), policy=policy(**executor), engines=BOTH)
    for _ in range(sequences):
        world.ask(max_new_tokens=500)
    while not (len(world.jobs) == 2 and all(isinstance(job, DecodeJob) for job in world.jobs.values())):
        world.answer(1)
    return world


def mode(world: World) -> tuple[str, Doubt | None]:
    now = world.core.snapshot().engine_mode
    return now.word, now.doubt


def said(world: World, kind: type[Effect]) -> list[Effect]:
    return [effect for effect in world.effects if isinstance(effect, kind)]


# ---- each doubt -------------------------------------------------------------------------------------------------


def end_with(world: World, **changes: object) -> None:
    """The first job finishes, its event changed."""
    job = next(iter(world.jobs))
    ended = world._end(job, written=True)
    tokens = [world.streams[work.request].next_token for work in ended.lanes]
    results = tuple(
        ev.LaneResult(work.lane, work.request, token, output=token)
        for work, token in zip(ended.lanes, tokens, strict=True)
    )
    world.tell(attrs.evolve(ev.JobFinished(job, ended.generation, results), **changes))


@pytest.mark.parametrize(
    ("anomaly", "doubt"),
    [
        (FaultReason.STATUS_ANOMALY, Doubt.STATUS_ANOMALY),
        (FaultReason.COUNTER_ANOMALY, Doubt.COUNTER_ANOMALY),
    ],
)
def test_an_anomaly_beside_a_whole_output(anomaly: FaultReason, doubt: Doubt) -> None:
    world = streaming()
    assert mode(world) == ("ping_pong", None)
    other = list(world.jobs)[1]
    end_with(world, anomaly=anomaly)
    assert said(world, PairDegraded) == [PairDegraded(doubt)]
    assert mode(world) == ("degraded", doubt)
    assert list(world.jobs) == [other], "what is in flight drains before a new job goes"
    world.finish(other)
    for _ in range(20):
        assert len(world.jobs) == 1
        world.finish(world.job.job)


def test_cross_talk_that_shows() -> None:
    world = streaming()
    ended = next(iter(world.jobs.values()))
    stranger = next(request for request in world.streams if request != ended.lanes[0].request)
    results = tuple(ev.LaneResult(work.lane, stranger, 7, output=7) for work in ended.lanes)
    world.serves = False
    end_with(world, results=results)
    assert mode(world) == ("degraded", Doubt.CROSS_TALK)


def test_busy_again_and_again_where_the_core_knows_the_engine_to_be_idle() -> None:
    world = streaming()
    for tried in range(BUSY_IN_A_ROW):
        assert mode(world)[0] == "ping_pong", tried
        world.refuse_job(next(iter(world.jobs)))
        if tried < BUSY_IN_A_ROW - 1:
            wakeup_s = world.core.next_wakeup()
            assert wakeup_s is not None
            world.pass_time(wakeup_s - world.now)
    assert mode(world) == ("degraded", Doubt.DEVICE_BUSY)


def test_busy_now_and_then_is_no_doubt() -> None:
    world = streaming()
    for _ in range(3 * BUSY_IN_A_ROW):
        world.refuse_job(next(iter(world.jobs)))
        wakeup_s = world.core.next_wakeup()
        assert wakeup_s is not None
        world.pass_time(wakeup_s - world.now)
        world.finish(next(iter(world.jobs)))
    assert mode(world) == ("ping_pong", None)


def test_a_timeout() -> None:
    world = streaming()
    world.lose_job(next(iter(world.jobs)))
    assert mode(world) == ("degraded", Doubt.TIMEOUT)


def test_an_output_error_says_nothing_of_the_pair() -> None:
    world = streaming()
    world.fail_output(next(iter(world.jobs)))
    assert mode(world) == ("ping_pong", None)


def test_a_recovery() -> None:
    world = streaming()
    world.answer_all()
    world.tell(ev.GenerationAdvanced(GENERATION, ALIAS, GenerationEvent.FAULT))
    world.tell(ev.GenerationAdvanced(GENERATION, ALIAS, GenerationEvent.RECOVERED))
    assert mode(world) == ("degraded", Doubt.RECOVERY)


def test_what_the_shell_saw() -> None:
    world = streaming()
    world.tell(ev.PairDoubted(Doubt.STATUS_ANOMALY))
    assert mode(world) == ("degraded", Doubt.STATUS_ANOMALY)


@pytest.mark.parametrize("engines", [(EngineId.PING,), BOTH])
def test_where_one_engine_works_there_is_nothing_to_doubt(engines: tuple[EngineId, ...]) -> None:
    world = World(policy=policy(inflight=1), engines=engines)
    world.tell(ev.PairDoubted(Doubt.STATUS_ANOMALY))
    world.tell(ev.PairTrusted())
    assert world.effects == []
    assert mode(world) == ("single", None)


# ---- and back ---------------------------------------------------------------------------------------------------


def test_an_operators_word() -> None:
    world = streaming(probation_jobs=None)
    world.tell(ev.PairTrusted())
    assert world.effects == [], "there was no doubt"
    world.tell(ev.PairDoubted(Doubt.COUNTER_ANOMALY))
    while len(world.jobs) > 1:
        world.finish(next(iter(world.jobs)))
    world.tell(ev.PairTrusted())
    assert said(world, PairRestored) == [PairRestored("restore")]
    assert mode(world) == ("ping_pong", None)
    assert len(world.jobs) == 2


def test_a_clean_probation_and_each_doubt_begins_it_anew() -> None:
    world = streaming(probation_jobs=5)
    world.tell(ev.PairDoubted(Doubt.COUNTER_ANOMALY))
    for _ in range(4):
        world.finish(next(iter(world.jobs)))
    world.tell(ev.PairDoubted(Doubt.STATUS_ANOMALY))
    assert said(world, PairDegraded) == [], "said once"
    for _ in range(4):
        world.finish(next(iter(world.jobs)))
        assert mode(world) == ("degraded", Doubt.STATUS_ANOMALY)
    world.finish(next(iter(world.jobs)))
    assert said(world, PairRestored) == [PairRestored("prove")]
    assert mode(world) == ("ping_pong", None)


def test_without_a_probation_it_stays_as_it_is() -> None:
    world = streaming(probation_jobs=None)
    world.tell(ev.PairDoubted(Doubt.COUNTER_ANOMALY))
    for _ in range(100):
        world.finish(next(iter(world.jobs)))
    assert mode(world) == ("degraded", Doubt.COUNTER_ANOMALY)


# ---- the gate, measured online ----------------------------------------------------------------------------------


class Steps:
    """A pair that is told how long steps took."""

    def __init__(self, gate: float = 0.05, **executor: object) -> None:
        self.effects: list[Effect] = []
        self.engines = {engine: EngineHealth(engine) for engine in BOTH}
        self.pair = EnginePair(
            ExecutorPolicy(p99_gate=gate, **executor), self.engines, jobs_at_most=2, effects=self.effects
        )
        profile = BatchProfile("decode_b1", 1, 64, InactiveLanePolicy.VALID_MASK)
        self._job = DecodeJob(JobId(1), GENERATION, profile, LaneId(0), ())

    def take(self, step_s: float, *, beside: bool, steps: int = STEPS) -> None:
        for _ in range(steps):
            record = JobRecord(self._job, (), EngineId.PING, submitted_s=0.0)
            record.company.update(["decode"] * beside)
            self.pair.finished(record, step_s)


@pytest.mark.parametrize(("step_s", "is_past"), [(0.0419, False), (0.0421, True)])
def test_two_may_take_twice_as_long_and_a_gate_more(step_s: float, is_past: bool) -> None:
    steps = Steps()
    steps.take(0.02, beside=False)
    steps.take(step_s, beside=True, steps=SLOW_IN_A_ROW * STEPS)
    assert steps.effects == ([PairDegraded(Doubt.P99_REGRESSION)] if is_past else [])


def test_one_slow_set_is_no_doubt_and_neither_is_a_slow_hundredth() -> None:
    steps = Steps()
    steps.take(0.02, beside=False)
    for _ in range(2 * SLOW_IN_A_ROW):
        steps.take(1.0, beside=True)
        steps.take(0.03, beside=True)
    for _ in range(2 * SLOW_IN_A_ROW):
        steps.take(1.0, beside=True, steps=STEPS // 100)
        steps.take(0.03, beside=True, steps=STEPS - STEPS // 100)
    assert steps.effects == []


def test_nothing_is_slow_until_it_is_known_what_one_engine_takes() -> None:
    steps = Steps()
    steps.take(0.02, beside=False, steps=STEPS - 1)
    steps.take(9.0, beside=True, steps=4 * STEPS)
    assert steps.effects == []


def test_with_an_engine_in_quarantine_neither_probation_nor_word_makes_a_pair() -> None:
    steps = Steps(probation_jobs=3)
    steps.engines[EngineId.PONG].quarantine(FaultReason.CCU_FAULT)
    assert (steps.pair.mode, steps.pair.jobs_at_most) == ("degraded", 1), "though nothing was doubted"
    steps.pair.doubted(Doubt.TIMEOUT)
    steps.take(0.02, beside=False, steps=10)
    steps.pair.told(ev.PairTrusted())
    assert steps.effects == [PairDegraded(Doubt.TIMEOUT)]
    assert (steps.pair.mode, steps.pair.quarantined) == ("degraded", (EngineId.PONG,))
    steps.engines[EngineId.PONG].reset()
    steps.take(0.02, beside=False, steps=2)
    assert steps.pair.mode == "degraded", "the probation begins with the engine's return"
    steps.take(0.02, beside=False, steps=1)
    assert steps.effects[1:] == [PairRestored("prove")]
    assert steps.pair.mode == "ping_pong"
