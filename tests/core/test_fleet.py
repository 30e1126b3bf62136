"""Loads, swaps and unloads: whom an alias means, who waits for whom, and when a generation may be taken away."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from calculet_trio.core import events as ev
from calculet_trio.core.effects import Vacated
from calculet_trio.core.events import CancelReason
from calculet_trio.core.generation import GenerationEvent, GenerationState
from calculet_trio.ids import NO_GENERATION, GenerationId, RequestId
from tests.core.models_host import FIRST, LOAD, SECOND, Host

THIRD = GenerationId(3)


@pytest.fixture
def host() -> Host:
    host = Host()
    host.advance(FIRST, "one", *LOAD)
    return host


def state(host: Host, generation: GenerationId) -> GenerationState:
    return host.core._fleet.generations[generation].state


# ---- a swap where only one fits ----------------------------------------------------------------------------------


def test_who_waits_goes_to_the_successor_and_who_runs_ends_on_the_old(host: Host) -> None:
    runs = [host.ask("one") for _ in range(2)]
    waits = [host.ask("one") for _ in range(2)]
    host.tell(ev.ModelExpected("one"))
    host.advance(FIRST, "one", GenerationEvent.DRAIN)
    late = host.ask("one")
    assert host.refused == {}
    host.finish_all()
    assert list(host.ended) == runs
    assert host.vacated == [Vacated(FIRST, overdue=False)]
    assert host.waiting() == 3

    host.advance(FIRST, "one", GenerationEvent.UNLOAD, GenerationEvent.UNLOADED)
    host.advance(SECOND, "one", *LOAD)
    host.finish_all()

    assert [place for place in host.placed if place[1] == SECOND] == [(each, SECOND) for each in (*waits, late)]
    assert set(host.ended) == {*runs, *waits, late}
    assert [asked.generation for asked in host.asked] == [FIRST] * 2 + [SECOND] * 3
    assert host.core._registry.pinned(NO_GENERATION) == 0


def test_a_first_load_lets_nobody_wait() -> None:
    host = Host()
    host.advance(FIRST, "one", *LOAD[:2])
    assert host.refused == {host.ask("one"): "loading"}


def test_a_wait_for_a_successor_ends_with_its_deadline_and_with_its_client(host: Host) -> None:
    host.tell(ev.ModelExpected("one"))
    host.advance(FIRST, "one", GenerationEvent.DRAIN)
    gone, waits = host.ask("one"), host.ask("one")
    host.tell(ev.Cancelled(gone, CancelReason.CLIENT_GONE))
    assert host.ended == {gone: "Drop"}
    host.now = host.core.next_wakeup() or 0.0
    host.tell(ev.TimePassed())
    assert host.refused == {waits: "deadline_exceeded"}
    host.advance(SECOND, "one", *LOAD)
    assert host.placed == []
    assert host.waiting() == 0


def test_where_none_will_come_those_who_wait_are_told(host: Host) -> None:
    host.tell(ev.ModelExpected("one"))
    host.advance(FIRST, "one", GenerationEvent.DRAIN, GenerationEvent.UNLOAD, GenerationEvent.UNLOADED)
    waits = host.ask("one")
    host.tell(ev.ModelForgone("one"))
    assert host.refused == {waits: "model_unloaded"}
    assert host.refused | {host.ask("one"): "loading"} == host.refused


def test_waiting_for_a_model_has_the_bound_of_all_waiting(host: Host) -> None:
    host.tell(ev.ModelExpected("one"))
    host.advance(FIRST, "one", GenerationEvent.DRAIN)
    for _ in range(host.core.policy.admission.max_waiting_requests):
        host.ask("one")
    assert host.refused == {}
    assert host.refused | {host.ask("one"): "queue_full"} == host.refused


def test_a_prompt_that_was_made_for_the_old_model_is_not_taken_for_the_new(host: Host) -> None:
    host.offers = False
    request = host.ask("one")
    host.tell(ev.ModelExpected("one"))
    host.advance(FIRST, "one", GenerationEvent.DRAIN)
    host.tell(ev.Offered(request, FIRST, (1, 2, 3), 4))
    host.advance(FIRST, "one", GenerationEvent.UNLOAD, GenerationEvent.UNLOADED)
    host.advance(SECOND, "one", *LOAD)
    assert host.placed == [(request, FIRST), (request, SECOND)]
    host.tell(ev.Offered(request, FIRST, (1, 2, 3), 4))
    assert host.asked == []
    host.tell(ev.Offered(request, SECOND, (1, 2, 3), 4))
    assert [asked.generation for asked in host.asked] == [SECOND]


def test_one_that_is_being_given_its_lane_ends_on_the_old_model(host: Host) -> None:
    host.answers_allocations = False
    request = host.ask("one")
    host.tell(ev.ModelExpected("one"))
    host.advance(FIRST, "one", GenerationEvent.DRAIN)
    assert host.vacated == []
    host.allocate()
    host.finish_all()
    assert host.ended == {request: "Finish"}
    assert host.vacated == [Vacated(FIRST, overdue=False)]


# ---- a swap where both fit -----------------------------------------------------------------------------------------


def test_where_both_fit_nobody_waits_for_the_swap(host: Host) -> None:
    runs, waits = [host.ask("one") for _ in range(2)], host.ask("one")
    host.advance(SECOND, "one", *LOAD)
    fresh = host.ask("one")
    host.advance(FIRST, "one", GenerationEvent.DRAIN)
    assert host.placed[-2:] == [(fresh, SECOND), (waits, SECOND)]
    host.finish_all()
    assert set(host.ended.values()) == {"Finish"}
    assert set(host.ended) == {*runs, waits, fresh}
    assert host.vacated == [Vacated(FIRST, overdue=False)]


# ---- unloading -----------------------------------------------------------------------------------------------------


def test_an_idle_model_is_vacant_at_once_and_only_once(host: Host) -> None:
    host.advance(FIRST, "one", GenerationEvent.DRAIN)
    host.tell(ev.TimePassed())
    assert host.vacated == [Vacated(FIRST, overdue=False)]


def test_a_model_is_vacant_only_when_its_last_lane_is_back(host: Host) -> None:
    host.answers_releases = False
    host.ask("one", max_new_tokens=1)
    host.advance(FIRST, "one", GenerationEvent.DRAIN)
    host.finish_all()
    assert host.vacated == []
    host.release()
    assert host.vacated == [Vacated(FIRST, overdue=False)]


def test_when_its_time_is_over_ready_requests_fail_and_the_submitted_job_frees_nothing(host: Host) -> None:
    first, second = host.ask("one"), host.ask("one")
    host.advance(FIRST, "one", GenerationEvent.DRAIN, drain_by_s=5.0)
    assert host.core.next_wakeup() == 5.0
    host.now = 5.0
    host.tell(ev.TimePassed())
    assert host.ended == {second: "Fail"}
    assert state(host, FIRST) is GenerationState.RECOVERING
    assert host.vacated == []
    host.finish()
    assert host.ended == {second: "Fail", first: "Fail"}
    assert host.vacated == [Vacated(FIRST, overdue=True)]
    host.advance(FIRST, "one", GenerationEvent.GIVE_UP, GenerationEvent.UNLOADED)
    assert FIRST not in host.core._fleet.generations


def test_a_lane_that_nobody_is_certain_of_makes_the_drain_overdue(host: Host) -> None:
    host.answers_releases = False
    host.ask("one", max_new_tokens=1)
    host.ask("one", max_new_tokens=1)
    host.finish_all()
    host.release(confirmed=False)
    host.release()
    host.advance(FIRST, "one", GenerationEvent.DRAIN, drain_by_s=5.0)
    assert host.vacated == []
    host.now = 5.0
    host.tell(ev.TimePassed())
    assert host.vacated == [Vacated(FIRST, overdue=True)]
    assert state(host, FIRST) is GenerationState.RECOVERING


def test_its_time_ends_also_for_one_that_is_being_given_its_lane(host: Host) -> None:
    host.answers_allocations = False
    request = host.ask("one")
    host.advance(FIRST, "one", GenerationEvent.DRAIN, drain_by_s=5.0)
    host.now = 5.0
    host.tell(ev.TimePassed())
    assert host.refused == {request: "model_unloaded"}
    host.allocate()
    assert [each.generation for each in host.vacated] == [FIRST]


def test_a_finished_reply_whose_lane_is_on_its_way_back_is_no_failure(host: Host) -> None:
    host.answers_releases = False
    request = host.ask("one", max_new_tokens=1)
    host.finish_all()
    host.advance(FIRST, "one", GenerationEvent.DRAIN, drain_by_s=5.0)
    host.now = 5.0
    host.tell(ev.TimePassed())
    assert host.ended == {request: "Finish"}
    host.release()
    assert host.vacated == [Vacated(FIRST, overdue=False)]


def test_a_drain_that_a_recovery_interrupted_goes_on(host: Host) -> None:
    host.ask("one")
    host.advance(FIRST, "one", GenerationEvent.DRAIN, GenerationEvent.FAULT, GenerationEvent.RECOVERED)
    assert state(host, FIRST) is GenerationState.DRAINING
    host.finish_all()
    assert host.vacated == [Vacated(FIRST, overdue=False)]


def test_a_drain_that_begins_while_the_device_is_reset_ends_as_any_other(host: Host) -> None:
    host.ask("one")
    host.advance(FIRST, "one", GenerationEvent.FAULT, GenerationEvent.DRAIN)
    assert state(host, FIRST) is GenerationState.DRAINING
    host.finish_all()
    assert host.vacated == [Vacated(FIRST, overdue=False)]


# ---- any order -------------------------------------------------------------------------------------------------------


class Fleet(RuleBasedStateMachine):
    """Clients of two aliases, whose models come, are swapped, go and come again, in any order."""

    @initialize()
    def begin(self) -> None:
        self.host = Host()
        self.next_generation = 1
        self.live: dict[str, GenerationId] = {}
        self.draining: dict[GenerationId, str] = {}
        self.asked: set[RequestId] = set()
        for alias in ("one", "two"):
            self.load(alias)

    def load(self, alias: str) -> GenerationId:
        generation = GenerationId(self.next_generation)
        self.next_generation += 1
        self.host.advance(generation, alias, *LOAD)
        self.live[alias] = generation
        return generation

    @rule(alias=st.sampled_from(["one", "two"]), many=st.integers(1, 5), tokens=st.integers(1, 5))
    def ask(self, alias: str, many: int, tokens: int) -> None:
        self.asked |= {self.host.ask(alias, max_new_tokens=tokens) for _ in range(many)}

    @precondition(lambda self: self.host.jobs)
    @rule(many=st.integers(1, 6))
    def work(self, many: int) -> None:
        for _ in range(min(many, len(self.host.jobs))):
            self.host.finish()

    @rule(number=st.integers(1, 40))
    def cancel(self, number: int) -> None:
        self.host.tell(ev.Cancelled(RequestId(number), CancelReason.CLIENT_GONE))

    @rule(seconds=st.sampled_from([0.5, 2.0, 30.0]))
    def wait(self, seconds: float) -> None:
        self.host.now += seconds
        self.host.tell(ev.TimePassed())

    @rule(alias=st.sampled_from(["one", "two"]), expected=st.booleans(), within_s=st.sampled_from([None, 0.0, 1.0]))
    def take_away(self, alias: str, expected: bool, within_s: float | None) -> None:
        generation = self.live.pop(alias, None)
        if generation is None:
            return
        if expected:
            self.host.tell(ev.ModelExpected(alias))
        self.draining[generation] = alias
        by_s = None if within_s is None else self.host.now + within_s
        self.host.advance(generation, alias, GenerationEvent.DRAIN, drain_by_s=by_s)

    @rule(alias=st.sampled_from(["one", "two"]))
    def replace(self, alias: str) -> None:
        """Both fit: the old one is drained when the new one is there."""
        old = self.live.get(alias)
        self.load(alias)
        if old is not None:
            self.draining[old] = alias
            self.host.advance(old, alias, GenerationEvent.DRAIN)

    @rule(alias=st.sampled_from(["one", "two"]))
    def give_up(self, alias: str) -> None:
        self.host.tell(ev.ModelForgone(alias))

    @precondition(lambda self: self.host.vacated)
    @rule()
    def unload(self) -> None:
        vacated = self.host.vacated.pop(0)
        alias = self.draining.pop(vacated.generation)
        gone = (GenerationEvent.GIVE_UP,) if vacated.overdue else (GenerationEvent.UNLOAD,)
        self.host.advance(vacated.generation, alias, *gone, GenerationEvent.UNLOADED)
        assert vacated.generation not in self.host.core._fleet.generations

    def teardown(self) -> None:
        """Every model comes back, everybody is answered once, and what was drained is vacated."""
        if not hasattr(self, "host"):
            return
        for alias in ("one", "two"):
            if alias not in self.live:
                self.load(alias)
        for _ in range(1000):
            if not self.host.jobs:
                break
            self.host.finish()
        assert self.host.waiting() == 0
        assert set(self.host.ended) | set(self.host.refused) == self.asked
        assert not set(self.host.ended) & set(self.host.refused)
        assert {each.generation for each in self.host.vacated} == set(self.draining)


TestFleet = Fleet.TestCase
TestFleet.settings = settings(deadline=None, max_examples=100, stateful_step_count=40)
