"""The core as a whole, with more than one generation: nobody waits for another's model, and none stays for ever."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from calculet_trio.core import events as ev
from calculet_trio.core.events import FaultReason
from calculet_trio.core.generation import GenerationEvent, GenerationState
from calculet_trio.core.policy import Policy
from calculet_trio.ids import GenerationId
from tests.core.models_host import FIRST, LOAD, SECOND, SHAPE, UNLOAD, Host


@pytest.fixture
def host() -> Host:
    host = Host()
    host.load()
    return host


# ---- waiting ---------------------------------------------------------------------------------------------------


def test_a_model_that_is_not_ready_holds_up_no_other(host: Host) -> None:
    running = [host.ask("one") for _ in range(2)]
    waits = [host.ask("one") for _ in range(2)]
    host.advance(FIRST, "one", GenerationEvent.FAULT)
    served = [host.ask("two") for _ in range(4)]
    host.finish_all()
    assert host.waiting() == len(waits)
    assert [asked.request for asked in host.asked] == [*running, *served]


def test_whoever_waited_through_a_recovery_is_served_in_the_old_order(host: Host) -> None:
    running = [host.ask("one") for _ in range(2)]
    waits = [host.ask("one") for _ in range(3)]
    host.advance(FIRST, "one", GenerationEvent.FAULT)
    host.finish_all()
    host.tell(ev.Cancelled(waits[1], ev.CancelReason.CLIENT_GONE))
    assert [asked.request for asked in host.asked] == running
    host.advance(FIRST, "one", GenerationEvent.RECOVERED)
    host.finish_all()
    assert [asked.request for asked in host.asked] == [*running, waits[0], waits[2]]
    assert host.waiting() == 0


def test_a_wait_for_a_model_that_is_not_ready_ends_with_its_deadline(host: Host) -> None:
    for _ in range(3):
        host.ask("one")
    host.advance(FIRST, "one", GenerationEvent.FAULT)
    host.finish_all()
    host.now = host.core.next_wakeup() or 0.0
    host.tell(ev.TimePassed())
    assert list(host.refused.values()) == ["deadline_exceeded"]
    assert host.core.next_wakeup() is None


# ---- turns -----------------------------------------------------------------------------------------------------


def test_generations_take_turns(host: Host) -> None:
    for alias in ("one", "two"):
        host.ask(alias, max_new_tokens=40)
    served = [host.finish() for _ in range(40)]
    assert Counter(served) == {FIRST: 20, SECOND: 20}
    assert all(one != other for one, other in pairwise(served[1:]))


# ---- unloading ---------------------------------------------------------------------------------------------------


def test_an_unloaded_generation_is_let_go_and_its_name_with_it(host: Host) -> None:
    host.ask("one")
    host.finish_all()
    host.advance(FIRST, "one", *UNLOAD)
    assert list(host.core._served) == list(host.core._fleet.generations) == [SECOND]
    assert host.core.snapshot().kv_tokens_total == SHAPE.lanes * SHAPE.max_seq
    late = host.ask("one")
    assert host.refused == {late: "loading"}
    host.ask("two")
    host.finish_all()
    assert host.waiting() == 0


def test_whoever_still_waits_for_an_unloaded_model_is_told(host: Host) -> None:
    for _ in range(2):
        host.ask("one")
    waits, other = host.ask("one"), host.ask("two")
    host.advance(FIRST, "one", GenerationEvent.DRAIN)
    assert host.refused == {waits: "model_unloaded"}
    host.finish_all()
    host.advance(FIRST, "one", *UNLOAD[1:])
    assert other not in host.refused
    assert list(host.core._served) == [SECOND]


def test_a_generation_stays_until_its_last_lane_is_back(host: Host) -> None:
    host.answers_releases = False
    host.ask("one")
    host.finish_all()
    host.advance(FIRST, "one", *UNLOAD)
    assert FIRST in host.core._served
    host.release()
    assert FIRST not in host.core._served


def test_a_generation_with_an_unknown_lane_stays_for_good(host: Host) -> None:
    host.answers_releases = False
    host.ask("one")
    host.finish_all()
    host.release(confirmed=False)
    host.advance(FIRST, "one", *UNLOAD)
    host.tell(ev.TimePassed())
    assert FIRST in host.core._served


def test_a_reset_of_the_device_frees_it_and_brings_nobody_back_who_left_or_is_leaving() -> None:
    host = Host(Policy())
    host.load()
    third = GenerationId(3)
    host.advance(third, "three", *LOAD)
    host.answers_releases = False
    host.ask("one")
    host.finish_all()
    host.release(confirmed=False)
    host.advance(FIRST, "one", *UNLOAD)
    host.advance(third, "three", GenerationEvent.DRAIN)
    host.ask("two")
    job = host.jobs.pop()
    host.tell(ev.JobUnknown(job.job, job.generation, FaultReason.CCU_FAULT))
    host.tell(ev.DeviceReset())
    states = {generation.id: generation.state for generation in host.core._fleet.generations.values()}
    assert states == {SECOND: GenerationState.READY, third: GenerationState.DRAINING}


def test_a_name_that_went_to_a_newer_generation_stays_there() -> None:
    host = Host()
    host.advance(FIRST, "one", *LOAD)
    host.advance(SECOND, "one", *LOAD)
    host.advance(FIRST, "one", *UNLOAD)
    host.ask("one")
    assert [asked.generation for asked in host.asked] == [SECOND]


def test_a_load_that_failed_is_let_go_too() -> None:
    host = Host()
    host.advance(FIRST, "one", *LOAD[:2], GenerationEvent.GIVE_UP)
    assert host.core.snapshot().status.word == "failed"
    host.advance(FIRST, "one", GenerationEvent.UNLOADED)
    assert not host.core._fleet.generations
    assert host.core.snapshot().status.word == "loading"


def test_a_hundred_loads_leave_one_generation() -> None:
    host = Host()
    for number in range(1, 101):
        host.advance(GenerationId(number), "one", *LOAD)
        host.ask("one")
        host.finish_all()
        if number > 1:
            host.advance(GenerationId(number - 1), "one", *UNLOAD)
    assert list(host.core._served) == list(host.core._fleet.generations) == [100]


def test_lanes_of_an_unloaded_generation_do_not_hide_the_loss_of_the_last(host: Host) -> None:
    host.advance(FIRST, "one", *UNLOAD)
    host.answers_releases = False
    for _ in range(2):
        host.ask("two", max_new_tokens=1)
    host.finish_all()
    for _ in range(2):
        host.release(confirmed=False)
    assert host.core.snapshot().status.word == "failed"
    assert host.core.snapshot().status.reason == f"device: {FaultReason.UNCONFIRMED_RELEASE.value}"
