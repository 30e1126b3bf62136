"""Each checker is seen to fire: a fault is planted in the production code, and the world objects."""

from __future__ import annotations

from collections import Counter
from itertools import count

import attrs
import pytest
import trio

from calculet_trio.core import effects as ef
from calculet_trio.core import events as ev
from calculet_trio.core import retention
from calculet_trio.core.deadlines import Deadlines
from calculet_trio.core.decode import DecodeScheduler
from calculet_trio.core.effects import Effect
from calculet_trio.core.events import Event
from calculet_trio.core.fault_kinds import FaultKind
from calculet_trio.core.policy import Policy, RecoveryPolicy
from calculet_trio.core.request import Request
from calculet_trio.core.retention import Match, Retention
from calculet_trio.core.serving import ServingCore
from calculet_trio.core.tenant_queue import TenantQueue
from calculet_trio.ids import LaneId
from calculet_trio.shell.dispatcher import CompletionDispatcher, RequestEffect
from calculet_trio.shell.sampler_pool import SamplerPool
from calculet_trio.sim.checkers import watch
from calculet_trio.sim.checkers.conservation import Heard, check_conservation
from calculet_trio.sim.checkers.leftovers import check_device
from calculet_trio.sim.checkers.violation import Violated
from calculet_trio.sim.population import Poisson, Visit
from calculet_trio.sim.visitors import Visitors
from calculet_trio.sim.world import run_world
from tests.sim.small import DEVICE, POPULATION, complaint, mishear, plant, small

CROWD = Poisson(per_s=40.0, prompt_median=8.0, output_median=8.0, spread=0.2, misbehaving=0.0)
"""More than the small board can serve."""


def test_without_a_planted_fault_nobody_objects() -> None:
    outcome = run_world(small())
    assert outcome.clients["finished: length"] > 10
    assert outcome.compared > 0


# ---- replies and requests -----------------------------------------------------------------------------


def test_two_lanes_get_each_others_logits() -> None:
    assert "a reply is not its own" in complaint(small(faults={FaultKind.CROSS_TALK: 0.05}))


def test_a_token_is_delivered_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(effects: list[Effect], _event: Event, _now: float) -> list[Effect]:
        return [each for effect in effects for each in ([effect, effect] if type(effect) is ef.Deliver else [effect])]

    plant(monkeypatch, twice)
    assert "not sampled for it, or twice" in complaint(small())


def test_a_token_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = count(1)

    def lose(effects: list[Effect], _event: Event, _now: float) -> list[Effect]:
        return [effect for effect in effects if type(effect) is not ef.Deliver or next(seen) != 20]

    plant(monkeypatch, lose)
    assert "is continued with tokens that are not its own" in complaint(small())


def test_the_last_token_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(effects: list[Effect], _event: Event, _now: float) -> list[Effect]:
        ended = {effect.request for effect in effects if isinstance(effect, ef.Finish)}
        return [effect for effect in effects if not (isinstance(effect, ef.Deliver) and effect.request in ended)]

    plant(monkeypatch, lose)
    assert "ends by a length that it has not reached" in complaint(small())


def test_a_replay_forgets_what_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Request, "known_tokens", property(lambda request: (*request.prompt, *request.generated[::-1])))
    policy = Policy(recovery=RecoveryPolicy(max_resets_per_10min=1000, replay=True))
    spec = small(faults={FaultKind.CCU_FAULT: 0.02}, policy=policy, reuse=True)
    assert "is continued with tokens that are not its own" in complaint(spec)


def test_an_end_is_never_said(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = count(1)

    def lose(effects: list[Effect], _event: Event, _now: float) -> list[Effect]:
        return [effect for effect in effects if type(effect) is not ef.Finish or next(seen) != 5]

    plant(monkeypatch, lose)
    assert "1 requests have no end" in complaint(small())


def test_an_end_is_said_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(effects: list[Effect], _event: Event, _now: float) -> list[Effect]:
        return [*effects, *(effect for effect in effects if type(effect) is ef.Finish)]

    plant(monkeypatch, twice)
    assert "has ended already" in complaint(small())


# ---- deadlines ----------------------------------------------------------------------------------------


def test_an_expired_request_is_sent_to_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Deadlines, "pop_expired", lambda _self, _now: None)
    monkeypatch.setattr(Deadlines, "next_s", lambda _self: None)
    assert "is sent to the device" in complaint(small(deadline_s=0.4, population=CROWD))


def test_a_deadline_comes_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    def early(event: Event, now: float) -> Event:
        return attrs.evolve(event, deadline_s=now + 0.05) if isinstance(event, ev.Arrived) else event

    mishear(monkeypatch, early)
    assert "before it" in complaint(small())


def test_an_end_by_deadline_is_said_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[tuple[float, Effect]] = []

    def slow(effects: list[Effect], _event: Event, now: float) -> list[Effect]:
        due = [effect for since, effect in held if now > since + 0.5]
        held[:] = [(since, effect) for since, effect in held if now <= since + 0.5]
        held.extend((now, effect) for effect in effects if isinstance(effect, ef.Refuse))
        return [*due, *(effect for effect in effects if not isinstance(effect, ef.Refuse))]

    plant(monkeypatch, slow)
    assert "after its deadline" in complaint(small(deadline_s=0.4, population=CROWD))


# ---- lanes --------------------------------------------------------------------------------------------


def test_a_lane_is_given_to_two(monkeypatch: pytest.MonkeyPatch) -> None:
    def always_the_first(effects: list[Effect], _event: Event, _now: float) -> list[Effect]:
        return [attrs.evolve(each, lane=LaneId(0)) if type(each) is ef.AllocateSequence else each for each in effects]

    plant(monkeypatch, always_the_first)
    assert "lane 0 is given away while it is held" in complaint(small())


def test_an_unknown_lane_is_given_away(monkeypatch: pytest.MonkeyPatch) -> None:
    def trusting(event: Event, _now: float) -> Event:
        return attrs.evolve(event, confirmed=True) if isinstance(event, ev.SequenceReleased) else event

    mishear(monkeypatch, trusting)
    assert "is Unknown and is given away" in complaint(small(faults={FaultKind.UNCONFIRMED: 0.2}))


def test_a_lane_is_released_in_the_middle_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    def hasty(effects: list[Effect], event: Event, _now: float) -> list[Effect]:
        submitted = [effect.job for effect in effects if isinstance(effect, ef.SubmitJob)]
        works = [(job.generation, work) for job in submitted for work in job.lanes]
        return [*effects, *(ef.ReleaseSequence(generation, work.lane, work.sequence) for generation, work in works)]

    plant(monkeypatch, hasty)
    assert "in the middle of job" in complaint(small())


BACK_AGAIN = attrs.evolve(POPULATION, chatty=1.0, tenants=("a", "b"))


def test_another_tenants_lane_is_gone_on_with(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_anybody(retention: Retention, request: Request) -> Match | None:
        others = [each for each in retention._retained.values() if each.tenant != request.tenant]
        return Match(others[0].lane, 1) if others and len(request.prompt) > 1 else None

    monkeypatch.setattr(Retention, "match", of_anybody)
    assert "goes on with it" in complaint(small(reuse=True, population=BACK_AGAIN))


def test_a_lane_is_gone_on_with_by_who_begins_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_shared", lambda one, _other, *, most: min(most, len(one)))
    assert "goes on from tokens that are not its own" in complaint(small(reuse=True, population=BACK_AGAIN))


def test_the_last_token_of_a_reply_is_taken_for_written(monkeypatch: pytest.MonkeyPatch) -> None:
    keep = Retention.keep

    def one_too_many(retention: Retention, request: Request, now: float) -> bool:
        assert request.lane is not None
        request.lane.committed_len += 1
        return keep(retention, request, now)

    monkeypatch.setattr(Retention, "keep", one_too_many)
    assert "holds" in complaint(small(reuse=True, population=BACK_AGAIN))


# ---- diligence and fairness ---------------------------------------------------------------------------


def test_a_job_is_never_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = count(1)

    def lose(effects: list[Effect], _event: Event, _now: float) -> list[Effect]:
        return [effect for effect in effects if type(effect) is not ef.SubmitJob or next(seen) != 30]

    plant(monkeypatch, lose)
    assert "the device idles" in complaint(small())


def test_a_settlement_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = count(1)

    def deaf(event: Event, _now: float) -> Event | None:
        return None if isinstance(event, ev.JobFinished) and next(seen) == 30 else event

    mishear(monkeypatch, deaf)
    assert "the device idles" in complaint(small())


def test_a_free_lane_is_given_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = count(1)

    def lose(effects: list[Effect], _event: Event, _now: float) -> list[Effect]:
        return [effect for effect in effects if type(effect) is not ef.AllocateSequence or next(seen) != 4]

    plant(monkeypatch, lose)
    device = attrs.evolve(DEVICE, lanes=1, decode={1: DEVICE.decode[1]})
    assert "all lanes are free" in complaint(small(device=device))


def test_a_sequence_starves(monkeypatch: pytest.MonkeyPatch) -> None:
    in_order = DecodeScheduler._in_order

    def the_third_last(scheduler: DecodeScheduler, now: float) -> list[Request]:
        return sorted(in_order(scheduler, now), key=lambda request: request.id == 3)

    monkeypatch.setattr(DecodeScheduler, "_in_order", the_third_last)
    device = attrs.evolve(DEVICE, decode={1: DEVICE.decode[1]})
    assert "request 3 waited for" in complaint(small(device=device, population=CROWD))


def test_one_tenant_is_always_first(monkeypatch: pytest.MonkeyPatch) -> None:
    pop = TenantQueue.pop

    def forgiving(queue: TenantQueue) -> Request:
        request = pop(queue)
        if request.tenant == "a":
            tenant = queue._tenants.of("a")
            tenant.virtual_time = 0.0
            queue._rank(tenant)
        return request

    monkeypatch.setattr(TenantQueue, "pop", forgiving)
    crowd = Poisson(per_s=40.0, tenants=("a", "b"), prompt_median=12.0, output_median=12.0, spread=0.1, misbehaving=0.0)
    assert "the tenants" in complaint(small(population=crowd, seconds=12.0))


# ---- drain, conservation, leftovers -------------------------------------------------------------------


def test_a_drain_lets_people_in(monkeypatch: pytest.MonkeyPatch) -> None:
    def deaf(event: Event, _now: float) -> Event | None:
        return None if isinstance(event, ev.DrainBegan) else event

    mishear(monkeypatch, deaf)
    assert "comes in while the daemon drains" in complaint(small())


def test_a_client_hears_an_end_that_was_not_said(monkeypatch: pytest.MonkeyPatch) -> None:
    perform = CompletionDispatcher.perform

    def soothing(dispatcher: CompletionDispatcher, effect: RequestEffect) -> None:
        if isinstance(effect, ef.Fail):
            effect = ef.Finish(effect.request, ef.FinishReason.STOP)
        perform(dispatcher, effect)

    monkeypatch.setattr(CompletionDispatcher, "perform", soothing)
    assert "clients heard Finish" in complaint(small(faults={FaultKind.OUTPUT_ERROR: 0.05}))


@pytest.mark.parametrize(
    ("changes", "objection"),
    [
        ({"came": 5}, "5 clients came, 4 went"),
        ({"arrived": 2}, "3 clients asked, 2 requests arrived"),
        ({"said": Counter(Finish=1)}, "2 clients heard Finish"),
        ({"said": Counter(Finish=4)}, "2 ends were heard by nobody, and 1 clients had left"),
    ],
)
def test_the_books_do_not_balance(changes: dict[str, object], objection: str) -> None:
    heard = {Heard.FINISHED: 2, Heard.LEFT: 1, Heard.UNREACHABLE: 1}
    books = {"came": 4, "heard": heard, "arrived": 3, "said": Counter(Finish=3)}
    check_conservation(**books)  # type: ignore[arg-type]
    with pytest.raises(Violated, match=objection):
        check_conservation(**books | changes)  # type: ignore[arg-type]


def test_a_text_side_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SamplerPool, "leave", lambda _self, _request: None)
    assert "text sides are left" in complaint(small())


def test_a_task_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    visit = Visitors.visit

    async def careless(visitors: Visitors, each: Visit, seed: int) -> None:
        if visitors.came == 3:
            trio.lowlevel.spawn_system_task(trio.sleep_forever)
        await visit(visitors, each, seed)

    monkeypatch.setattr(Visitors, "visit", careless)
    assert "1 tasks are left" in complaint(small())


@attrs.define
class _Board:
    resident: int
    outstanding: int


def test_the_device_keeps_a_sequence_or_a_job() -> None:
    check_device(_Board(1, 0), unknown_lanes=1)  # type: ignore[arg-type]
    with pytest.raises(Violated, match="holds 1 sequences"):
        check_device(_Board(1, 0), unknown_lanes=0)  # type: ignore[arg-type]
    with pytest.raises(Violated, match="never waited for"):
        check_device(_Board(0, 1), unknown_lanes=0)  # type: ignore[arg-type]


def test_time_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_AT_ONE_MOMENT_MAX", 2000)
    monkeypatch.setattr(ServingCore, "next_wakeup", lambda _self: 0.0)
    assert "time does not pass" in complaint(small())
