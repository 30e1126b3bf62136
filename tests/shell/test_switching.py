"""Aliases that share a device by time, in a living daemon: each is brought when somebody waits, and nobody is lost."""

from __future__ import annotations

from collections import Counter

import pytest
import trio

from calculet_trio.core.policy import AdmissionPolicy, Policy, ResidencyPolicy, ResidencyStrategy
from calculet_trio.errors import OperationRefused, ServiceUnavailable
from tests.shell.house import until
from tests.shell.shelf_house import Heard, living

DWELL_S = 0.2
BESIDE = ("new", "other")


def by_time(dwell_s=DWELL_S):
    return ResidencyPolicy(strategy=ResidencyStrategy.TIME_SHARING, dwell_s=dwell_s)


def sharing(*, beside=BESIDE, dwell_s=DWELL_S, **options):
    return living(beside=beside, residency=by_time(dwell_s), **options)


def configured(house):
    """The packages that were put on the device, in order."""
    return [call.removeprefix("configure ") for call in house.shelf.calls if call.startswith("configure ")]


async def code_of(asking):
    with pytest.raises(ServiceUnavailable) as caught:
        await asking
    return caught.value.code


async def test_who_asks_for_a_parked_model_waits_and_is_answered_by_it():
    async with sharing() as house:
        assert configured(house) == ["old"]
        assert await house.ask("m") == "old"
        assert await house.ask("new") == "new"
        assert await house.ask("other") == "other"
        assert await house.ask("m") == "old"
        assert configured(house) == ["old", "new", "other", "old"]
        assert len(house.shelf.resident) == 1
        assert house.service.health().status == "ok"


async def test_an_open_reply_ends_on_its_model_before_that_goes():
    async with sharing() as house:
        replies = {}

        async def one(name, alias, prompt):
            replies[name] = await house.ask(alias, prompt)

        async with trio.open_nursery() as clients:
            clients.start_soon(one, "runs", "m", "gated")
            await until(lambda: house.snapshot().jobs_in_flight)
            clients.start_soon(one, "waits", "new", "hi")
            await until(lambda: house.status().state == "draining")
            assert house.service.health().status == "ok"
            assert {model.alias for model in house.service.models()} >= {"m", "new"}
            clients.start_soon(one, "comes", "m", "hi")
            await until(lambda: house.snapshot().waiting_requests == 2)
            assert configured(house) == ["old"]
            house.shelf.let_through("g")
        assert replies == {"runs": "old end", "waits": "new", "comes": "old"}


async def test_under_a_crowd_everybody_is_answered_once_by_their_own_model_and_nothing_thrashes():
    found = Counter()
    async with sharing() as house:
        began_s = trio.current_time()

        async def ask_on(alias):
            for _ in range(15):
                found[alias, await house.ask(alias)] += 1

        async with trio.open_nursery() as clients:
            for alias in ("m", *BESIDE):
                for _ in range(3):
                    clients.start_soon(ask_on, alias)
        took_s = trio.current_time() - began_s
        assert found == {("m", "old"): 45, ("new", "new"): 45, ("other", "other"): 45}
        assert len(configured(house)) <= took_s / DWELL_S + 2


@pytest.mark.parametrize("step", ["configure", "inspect", "warm_up", "golden", "golden_differs"])
async def test_one_that_cannot_be_loaded_is_refused_the_one_before_comes_back_and_others_have_their_turn(step):
    async with sharing() as house:
        house.shelf.fails[step] = 1
        assert await code_of(house.ask("new")) == "load_failed"
        assert await code_of(house.ask("new")) == "load_failed"
        assert await house.ask("m") == "old"
        assert await house.ask("other") == "other"
        assert configured(house)[1:3] == ["new", "old"]
        assert house.status("new").state == "failed"
        assert house.status("new").error


async def test_a_damaged_package_is_noticed_before_the_present_model_is_touched():
    async with sharing() as house:
        house.shelf.fails["verify"] = 1
        assert await code_of(house.ask("new")) == "load_failed"
        assert await house.ask("m") == "old"
        assert configured(house) == ["old"]


async def test_a_wait_ends_with_its_deadline():
    async with sharing(dwell_s=60.0) as house:
        assert await code_of(house.ask("new", deadline_s=0.05)) == "deadline_exceeded"
        assert await house.ask("m") == "old"


async def test_a_daemon_that_ends_refuses_those_who_wait():
    async with sharing(dwell_s=60.0) as house, trio.open_nursery() as clients:
        codes = []

        async def one():
            codes.append(await code_of(house.ask("new")))

        clients.start_soon(one)
        await until(lambda: house.snapshot().waiting_requests)
        house.alive._begin_drain(1.0)
        await until(lambda: codes)
        assert codes == ["draining"]


async def test_a_reply_longer_than_the_drain_time_is_not_cut_by_another_models_turn():
    policy = Policy(admission=AdmissionPolicy(deadline_default_s=30.0))
    async with sharing(drain_s=0.05, policy=policy) as house:
        replies = []

        async def one(alias, prompt):
            replies.append(await house.ask(alias, prompt))

        async with trio.open_nursery() as clients:
            clients.start_soon(one, "m", "gated")
            await until(lambda: house.snapshot().jobs_in_flight)
            clients.start_soon(one, "new", "hi")
            await until(lambda: house.status().state == "draining")
            await trio.sleep(0.2)
            house.shelf.let_through("g")
        assert replies == ["old end", "new"]


# ---- operators -------------------------------------------------------------------------------------------------------


async def test_an_operators_load_gives_the_device_at_once_and_its_own_package_from_then_on():
    async with sharing(dwell_s=60.0) as house:
        await house.models.load_named("new", None, Heard())
        assert await house.ask("new") == "new"
        assert configured(house) == ["old", "new"]
        await house.models.load_named("m", "other", Heard())
        assert await house.ask("m") == "other"
        await house.models.load_named("new", None, Heard())
        await house.models.load_named("m", None, Heard())
        assert await house.ask("m") == "other"


async def test_a_new_alias_joins_those_who_take_turns():
    async with sharing(beside=()) as house:
        await house.models.load_named("n", "other", Heard())
        assert await house.ask("m") == "old"
        assert await house.ask("n") == "other"


async def test_an_unloaded_alias_has_no_more_turns():
    async with sharing() as house:
        assert await house.models.unload("new", Heard()) == {"generation": None, "freed_bytes": 0}
        assert await code_of(house.ask("new")) == "loading"
        with pytest.raises(OperationRefused):
            await house.models.unload("new", Heard())
        await house.models.unload("m", Heard())
        assert house.shelf.resident == {}
        assert {model.alias for model in house.service.models()} == {"other"}
        assert await house.ask("other") == "other"
        assert await code_of(house.ask("m")) == "loading"


async def test_an_exchange_that_fails_brings_the_old_package_back_once():
    async with sharing() as house:
        house.shelf.fails["configure"] = 1
        with pytest.raises(Exception, match="as was planned"):
            await house.models.load_named("m", "other", Heard())
        assert await house.ask("m") == "old"
        assert configured(house) == ["old", "other", "old"]


async def test_where_the_old_package_does_not_come_back_either_the_others_are_served():
    async with sharing() as house:
        house.shelf.fails["configure"] = 3  # the new one, the old one, and the core's own try
        with pytest.raises(Exception, match="as was planned"):
            await house.models.load_named("m", "other", Heard())
        assert await house.ask("new") == "new"
        assert await code_of(house.ask("m")) == "load_failed"


async def test_a_package_is_held_while_it_is_parked_and_given_up_when_nothing_needs_it():
    async with sharing(beside=("new",)) as house:
        await house.ask("new")
        await house.ask("m")
        assert not any(call.startswith("released") for call in house.shelf.calls)
        await house.models.unload("new", Heard())
        assert house.shelf.calls[-1] == "released new"


# ---- the other strategies --------------------------------------------------------------------------------------------


async def test_a_single_strategy_holds_one_alias_whatever_the_device_could_and_swaps_it_without_a_gap():
    single = ResidencyPolicy(strategy=ResidencyStrategy.SINGLE)
    async with living(holds_several=True, residency=single) as house:
        with pytest.raises(OperationRefused, match="holds m"):
            await house.models.load_named("n", "other", Heard())
        assert (await house.load("new"))["downtime_s"] == 0.0
        assert await house.ask("m") == "new"


async def test_co_resident_models_are_all_there_from_the_start():
    async with living(holds_several=True, beside=BESIDE) as house:
        assert [await house.ask(alias) for alias in ("m", *BESIDE)] == ["old", "new", "other"]
        assert len(house.shelf.resident) == 3


async def test_a_failed_load_gives_its_package_up():
    async with living(holds_several=True) as house:
        house.shelf.fails["golden"] = 1
        with pytest.raises(Exception, match="as was planned"):
            await house.load("new")
        assert house.shelf.calls.count("released new") == 1
        assert "released old" not in house.shelf.calls
