"""Aliases that share a device by time: who is wanted when, who waits, and that nothing thrashes and nobody hungers."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calculet_trio.core import events as ev
from calculet_trio.core.events import CancelReason, FaultReason
from calculet_trio.core.generation import GenerationEvent
from calculet_trio.core.jobs import DecodeJob
from calculet_trio.core.policy import AdmissionPolicy, BatchPolicy, Policy
from calculet_trio.ids import GenerationId, RequestId
from tests.core.models_host import LOAD, UNLOAD, Host

DWELL_S = 10.0
PATIENT = Policy(admission=AdmissionPolicy(deadline_default_s=1e6, max_waiting_requests=10_000))


class Board(Host):
    """A board that holds one model, and a shell that brings at once what is wanted, but for what it cannot load.

    Attributes:
        brings: whether it does so by itself; else `bring` does.
        broken: aliases that cannot be loaded.
        present: whose model is there.
        published: alias and moment of every publication.
        generation_of: each placed request's generations, newest last.
    """

    def __init__(self, aliases: tuple[str, ...] = ("one", "two", "three"), policy: Policy = PATIENT) -> None:
        super().__init__(policy, dwell_s=DWELL_S)
        self.brings = True
        self.broken: set[str] = set()
        self.present: str | None = None
        self.published: list[tuple[str, float]] = []
        self.alias_of: dict[GenerationId, str] = {}
        self.publish(aliases[0])
        for alias in aliases:
            self.tell(ev.ModelParked(alias))

    def publish(self, alias: str) -> None:
        generation = GenerationId(len(self.alias_of) + 1)
        self.alias_of[generation] = alias
        self.present = alias
        self.published.append((alias, self.now))
        self.advance(generation, alias, *LOAD)

    def bring(self) -> None:
        """What the shell does for a model that is wanted: drain, take off, load."""
        alias = self.wanted.pop(0)
        if self.present is not None:
            there = max(each for each, name in self.alias_of.items() if name == self.present)
            self.advance(there, self.present, UNLOAD[0])
            self.finish_all()
            assert self.vacated.pop().generation == there
            self.advance(there, self.present, *UNLOAD[1:])
            self.present = None
        if alias in self.broken:
            generation = GenerationId(len(self.alias_of) + 1)
            self.alias_of[generation] = alias
            self.advance(generation, alias, *LOAD[:2], GenerationEvent.GIVE_UP)
            self.tell(ev.SwitchFailed(alias))
            self.advance(generation, alias, GenerationEvent.UNLOADED)
        else:
            self.publish(alias)

    def pass_to(self, moment_s: float) -> None:
        """Let time pass, waking the core whenever it asked for it, and bring what it wants."""
        self.serve_wishes()
        while (wakeup_s := self.core.next_wakeup()) is not None and wakeup_s <= moment_s:
            assert wakeup_s >= self.now or wakeup_s == pytest.approx(self.now), (
                "a moment that has passed is not asked for"
            )
            self.now = max(self.now, wakeup_s)
            self.tell(ev.TimePassed())
            self.serve_wishes()
        self.now = moment_s
        self.tell(ev.TimePassed())
        self.serve_wishes()

    def serve_wishes(self) -> None:
        while self.brings and self.wanted:
            self.bring()

    def served_by(self, request: RequestId) -> str:
        """The alias of the generation that the request was placed with last."""
        return self.alias_of[[generation for each, generation in self.placed if each == request][-1]]


@pytest.fixture
def board() -> Board:
    return Board()


def test_a_model_stays_its_dwell_time_and_goes_when_another_is_waited_for(board: Board) -> None:
    board.pass_to(3.0)
    request = board.ask("two")
    assert board.core.next_wakeup() == DWELL_S
    board.pass_to(DWELL_S - 0.001)
    assert (board.present, board.refused) == ("one", {})
    board.pass_to(DWELL_S)
    board.finish_all()
    assert board.present == "two"
    assert board.served_by(request) == "two"
    assert board.ended == {request: "Finish"}


def test_after_its_dwell_time_it_stays_while_no_other_is_waited_for(board: Board) -> None:
    board.ask("one")
    board.pass_to(100.0)
    assert board.wanted == []
    request = board.ask("two")
    board.serve_wishes()
    board.finish_all()
    assert board.ended[request] == "Finish"
    assert board.published[-1] == ("two", 100.0)


def test_who_did_not_have_a_lane_waits_for_the_next_turn_of_its_model(board: Board) -> None:
    mine = [board.ask("one") for _ in range(4)]
    other = board.ask("two")
    board.pass_to(DWELL_S)
    assert set(board.ended) == set(mine[:2])
    board.pass_to(2 * DWELL_S)
    board.finish_all()
    assert board.present == "one"
    assert set(board.ended) == {*mine, other}
    assert [board.served_by(each) for each in (*mine, other)] == ["one"] * 4 + ["two"]


def test_the_alias_that_has_been_waited_for_longest_comes_first_whoever_of_them_leaves(board: Board) -> None:
    first = board.ask("three")
    board.ask("two")
    board.ask("three")
    board.tell(ev.Cancelled(first, CancelReason.CLIENT_GONE))
    board.pass_to(2 * DWELL_S)
    assert [alias for alias, _ in board.published] == ["one", "three", "two"]


def test_one_that_nobody_waits_for_any_more_is_not_brought(board: Board) -> None:
    gone = board.ask("two")
    board.tell(ev.Cancelled(gone, CancelReason.CLIENT_GONE))
    assert board.core.next_wakeup() != DWELL_S
    board.pass_to(100.0)
    assert board.present == "one"


def test_a_wait_ends_with_its_deadline() -> None:
    board = Board(policy=Policy(admission=AdmissionPolicy(deadline_default_s=4.0)))
    request = board.ask("two")
    board.pass_to(5.0)
    assert board.refused == {request: "deadline_exceeded"}


def test_while_one_is_on_its_way_nothing_more_is_wanted_and_the_service_is_ok(board: Board) -> None:
    board.brings = False
    board.ask("two")
    board.now = DWELL_S
    board.tell(ev.TimePassed())
    assert board.wanted == ["two"]
    assert board.core.snapshot().status.word == "ok"
    board.ask("three")
    board.tell(ev.TimePassed())
    board.advance(GenerationId(1), "one", UNLOAD[0])
    assert board.core.snapshot().status.word == "ok"
    assert board.wanted == ["two"]
    assert board.core.next_wakeup() != DWELL_S


def test_an_operators_load_is_waited_for_too(board: Board) -> None:
    board.ask("two")
    board.advance(GenerationId(9), "three", *LOAD[:2])
    board.pass_to(50.0)
    assert board.wanted == []
    board.advance(GenerationId(9), "three", GenerationEvent.GIVE_UP)
    assert board.wanted == ["two"]


# ---- loads that fail -------------------------------------------------------------------------------------------------


def test_a_model_that_cannot_be_loaded_is_refused_and_the_one_before_comes_back(board: Board) -> None:
    board.broken = {"two"}
    request = board.ask("two")
    board.pass_to(DWELL_S)
    assert board.refused == {request: "load_failed"}
    assert board.present == "one"
    assert [alias for alias, _ in board.published] == ["one", "one"]


def test_for_a_while_who_asks_for_it_is_told_at_once_and_then_it_is_tried_again(board: Board) -> None:
    board.broken = {"two"}
    board.ask("two")
    board.pass_to(DWELL_S)
    told = board.ask("two")
    assert board.refused[told] == "load_failed"
    board.broken = set()
    board.now += 5.0
    hopes = board.ask("two")
    board.pass_to(board.now + DWELL_S)
    board.finish_all()
    assert board.ended[hopes] == "Finish"
    assert board.core._fleet.residency._pauses["two"].failures == 0


def test_a_failing_model_does_not_hold_the_others_up(board: Board) -> None:
    board.broken = {"two"}
    board.ask("two")
    other = board.ask("three")
    board.pass_to(DWELL_S)
    board.finish_all()
    assert board.ended == {other: "Finish"}
    assert [alias for alias, _ in board.published] == ["one", "three"]


def test_an_empty_device_tries_the_last_model_again_and_again_in_growing_pauses(board: Board) -> None:
    board.broken = {"one", "two"}
    board.ask("two")
    board.pass_to(DWELL_S)
    assert board.present is None
    assert board.core.snapshot().status.word in ("failed", "loading")
    wakeup_s = board.core.next_wakeup()
    assert wakeup_s == DWELL_S + 5.0
    board.pass_to(wakeup_s)
    assert board.core.next_wakeup() == wakeup_s + 10.0
    board.broken = set()
    board.pass_to(wakeup_s + 10.0)
    assert board.present == "one"


def test_on_an_empty_device_who_is_waited_for_comes_at_once(board: Board) -> None:
    board.broken = {"one", "two"}
    board.ask("two")
    board.pass_to(DWELL_S)
    request = board.ask("three")
    board.serve_wishes()
    board.finish_all()
    assert board.ended == {request: "Finish"}


def test_a_word_of_failure_about_a_model_that_is_there_or_was_forgone_changes_nothing(board: Board) -> None:
    board.tell(ev.SwitchFailed("one"))
    board.tell(ev.SwitchFailed("nobody"))
    request = board.ask("one")
    board.finish_all()
    assert board.ended == {request: "Finish"}


# ---- operators, faults, the end --------------------------------------------------------------------------------------


def test_a_model_that_an_operator_takes_away_is_not_waited_for(board: Board) -> None:
    waits = board.ask("two")
    board.tell(ev.ModelForgone("two"))
    assert board.refused == {waits: "model_unloaded"}
    assert board.refused | {board.ask("two"): "loading"} == board.refused
    board.pass_to(100.0)
    assert board.present == "one"


def test_a_device_whose_only_model_was_taken_away_stays_empty_until_another_is_waited_for(board: Board) -> None:
    board.advance(GenerationId(1), "one", UNLOAD[0])
    board.tell(ev.ModelForgone("one"))
    board.advance(GenerationId(1), "one", *UNLOAD[1:])
    board.present = None
    board.pass_to(500.0)
    assert (board.present, board.core.next_wakeup()) == (None, None)
    request = board.ask("two")
    board.serve_wishes()
    board.finish_all()
    assert board.ended == {request: "Finish"}


def test_a_wish_for_a_model_that_is_then_forgone_is_over(board: Board) -> None:
    board.brings = False
    board.ask("two")
    board.pass_to(DWELL_S)
    board.tell(ev.ModelForgone("two"))
    board.ask("three")
    assert board.wanted == ["two", "three"]


def test_a_service_that_ends_or_a_device_that_recovers_wants_nothing(board: Board) -> None:
    board.brings = False
    board.ask("one")
    board.ask("two")
    job = board.jobs[0]
    board.tell(ev.JobUnknown(job.job, job.generation, FaultReason.TIMEOUT))
    board.pass_to(DWELL_S + 1)
    assert board.wanted == []
    board = Board()
    board.brings = False
    board.tell(ev.DrainBegan(100.0))
    board.pass_to(DWELL_S + 1)
    assert board.wanted == []


def test_each_alias_is_scheduled_by_its_own_policy() -> None:
    own = Policy(batch=BatchPolicy(profiles=(1,)))
    host = Host(policies={"two": own})
    host.load()
    for alias in ("one", "two"):
        for _ in range(2):
            host.ask(alias)
    widths: dict[GenerationId, set[int]] = {}
    while host.jobs:
        if isinstance(host.jobs[0], DecodeJob):
            widths.setdefault(host.jobs[0].generation, set()).add(host.jobs[0].profile.compiled_batch)
        host.finish()
    assert widths[GenerationId(2)] == {1}
    assert widths[GenerationId(1)] != {1}


# ---- any order -------------------------------------------------------------------------------------------------------

ALIASES = ("one", "two", "three", "four")
ASKED = st.tuples(st.floats(0.0, 8.0), st.sampled_from(ALIASES), st.integers(1, 4))


@given(st.lists(ASKED, max_size=60), st.sets(st.sampled_from(ALIASES[2:])))
@settings(deadline=None, max_examples=80)
def test_nobody_hungers_nothing_thrashes_and_everybody_is_answered_once_by_their_own_model(
    asked: list[tuple[float, str, int]], broken: set[str]
) -> None:
    board = Board(ALIASES)
    board.broken = broken
    wanted: dict[RequestId, str] = {}
    for pause_s, alias, tokens in asked:
        board.pass_to(board.now + pause_s)
        wanted[board.ask(alias, max_new_tokens=tokens)] = alias
        for _ in range(min(2, len(board.jobs))):
            board.finish()
    for _ in range(2 * len(ALIASES)):
        board.pass_to(board.now + DWELL_S)
        board.finish_all()
    assert set(board.ended) | set(board.refused) == set(wanted)
    assert not set(board.ended) & set(board.refused)
    for request, alias in wanted.items():
        if request in board.ended:
            assert board.served_by(request) == alias
        else:
            assert alias in broken
    moments = [moment_s for _, moment_s in board.published]
    assert len(moments) <= board.now / DWELL_S + 1
    assert all(after - before >= DWELL_S - 1e-9 for before, after in pairwise(moments))


@given(st.lists(st.sampled_from(ALIASES[1:]), min_size=1, max_size=40))
@settings(deadline=None, max_examples=50)
def test_each_alias_has_its_turn_after_all_others_at_the_latest(asked: list[str]) -> None:
    board = Board(ALIASES)
    since: dict[str, float] = {}
    for alias in asked:
        for each in ("one", alias):  # the first model is always busy
            board.ask(each)
        if board.present != alias:
            since.setdefault(alias, board.now)
        board.pass_to(board.now + DWELL_S / 2)
        for each, began_s in list(since.items()):
            if any(name == each and moment_s >= began_s for name, moment_s in board.published):
                del since[each]
            else:
                assert board.now - began_s <= len(ALIASES) * DWELL_S
