"""Loads, swaps, unloads and rollbacks of a living daemon, on a device that holds one model or all of them."""

from __future__ import annotations

import threading

import attrs
import pytest
import trio

from calculet_trio.core.generation import GenerationState
from calculet_trio.errors import (
    GenerationFailed,
    LoadBroken,
    ModelNotFound,
    OperationFailed,
    OperationRefused,
    PackageError,
    ServiceUnavailable,
)
from calculet_trio.text.params import ChatPrompt
from calculet_trio.text.tokenizer import Segment
from tests.shell.house import ask, asking, read, until
from tests.shell.shelf import MODEL_BYTES
from tests.shell.shelf_house import Heard, living

ONE, SEVERAL = pytest.param(False, id="holds one"), pytest.param(True, id="holds several")


async def keep_asking(house, found, stop):
    while not stop.is_set():
        found.append((await ask(house.service, "hi"))[0])
        await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("holds_several", [ONE, SEVERAL])
async def test_a_swap_under_load_fails_nobody_and_no_reply_is_of_two_models(holds_several):
    found, stop = [], trio.Event()
    async with living(holds_several=holds_several) as house:
        async with trio.open_nursery() as clients:
            for _ in range(8):
                clients.start_soon(keep_asking, house, found, stop)
            await until(lambda: len(found) > 20)
            result = await house.load("new")
            seen = len(found)
            await until(lambda: len(found) > seen + 20)
            stop.set()
        assert set(found) == {"old", "new"}
        assert found[-1] == "new"
        assert result["generation"] == 2
        assert (result["downtime_s"] > 0) != holds_several
        assert list(house.shelf.resident) == [2]
        status = house.status()
        assert (status.state, status.package, status.package_version) == ("ready", "digest-of-new", "new")
        last = ["served new", "unload", "released old"] if holds_several else ["released old", "served new"]
        assert house.shelf.calls[-len(last) :] == last, "good before the old one is waited for"
        expected = {"verify", "validate", "plan", "configure", "inspect", "prove", "publish", "retain"}
        assert set(status.phases_s) - {"resolve"} >= expected
        [model] = house.service.models()
        assert model.meta["package_version"] == "new"


@pytest.mark.parametrize("holds_several", [ONE, SEVERAL])
async def test_who_runs_ends_on_the_old_model_and_who_comes_is_answered_by_the_new(holds_several):
    async with living(holds_several=holds_several) as house:
        replies = {}

        async def one(name, prompt):
            replies[name] = (await ask(house.service, prompt))[0]

        async with trio.open_nursery() as clients:
            clients.start_soon(one, "runs", "gated")
            await until(lambda: house.alive._loop.snapshot().jobs_in_flight)
            clients.start_soon(house.load, "new")
            await until(lambda: house.shelf.calls.count("configure new") or house.status().state == "draining")
            if holds_several:
                await until(lambda: house.status().generation == 2)
            clients.start_soon(one, "comes", "hi")
            await until(lambda: house.alive._loop.snapshot().waiting_requests == (0 if holds_several else 1))
            house.shelf.let_through("g")
        assert replies == {"runs": "old end", "comes": "new"}


class Template:
    """Renders at once, or not before its model goes; then it ends as the real one does."""

    def __init__(self, *, holds=False):
        self.holds = holds
        self.asked = threading.Event()
        self.closed = threading.Event()

    def render(self, prompt):
        self.asked.set()
        if self.holds:
            assert self.closed.wait(30)
            raise ServiceUnavailable("the model is being unloaded", code="unloading")
        return [Segment("hi")]

    def close(self):
        self.closed.set()


async def chat(house, replies):
    """One conversation: its reply's text, or why there is none."""
    request = attrs.evolve(asking(), prompt=ChatPrompt(messages=({"role": "user", "content": "hi"},)))
    try:
        async with house.service.open(request) as handle:
            replies.append(await read(handle))
    except ServiceUnavailable as refused:
        replies.append(refused.code)


async def test_a_prompt_that_is_prepared_when_its_model_goes_is_prepared_again_for_the_next():
    templates = {"old": Template(holds=True), "new": Template()}
    async with living(holds_several=False, templates=templates) as house:
        replies = []
        async with trio.open_nursery() as clients:
            clients.start_soon(chat, house, replies)
            await until(templates["old"].asked.is_set)
            await house.load("new")
        assert replies == ["new"]


async def test_a_prompt_that_is_prepared_when_its_model_goes_for_good_is_refused():
    templates = {"old": Template(holds=True)}
    async with living(holds_several=False, templates=templates) as house:
        replies = []
        with trio.fail_after(30):
            async with trio.open_nursery() as clients:
                clients.start_soon(chat, house, replies)
                await until(templates["old"].asked.is_set)
                await house.models.unload("m", Heard())
        assert replies == ["model_unloaded"]


@pytest.mark.parametrize("holds_several", [ONE, SEVERAL])
@pytest.mark.parametrize("step", ["verify", "configure", "inspect", "warm_up", "golden", "golden_differs", "publish"])
async def test_a_failure_at_any_step_leaves_the_old_model_serving(holds_several, step):
    async with living(holds_several=holds_several) as house:
        house.shelf.fails[step] = 1
        with pytest.raises(PackageError):
            await house.load("new")
        assert (await ask(house.service, "hi"))[0] == "old"
        assert len(house.shelf.resident) == 1
        status = house.status()
        assert (status.state, status.package) == ("ready", "digest-of-old")
        assert status.error is not None
        assert house.service.health().status == "ok"
        assert house.shelf.memory().used_bytes == MODEL_BYTES
        was_taken_off = "unload" in house.shelf.calls
        assert was_taken_off == (step != "verify")
        assert (await house.load("new"))["generation"] > 2
        assert (await ask(house.service, "hi"))[0] == "new"
        assert house.status().error is None


async def test_where_the_old_one_does_not_come_back_either_those_who_wait_are_told():
    async with living(holds_several=False) as house:
        house.shelf.fails["configure"] = 2
        answers = []

        async def one():
            try:
                answers.append((await ask(house.service, "gated"))[0])
            except (ServiceUnavailable, GenerationFailed) as error:
                answers.append(error.code)

        async with trio.open_nursery() as clients:
            clients.start_soon(one)
            await until(lambda: house.alive._loop.snapshot().jobs_in_flight)

            async def fails():
                with pytest.raises(PackageError):
                    await house.load("new")

            clients.start_soon(fails)
            await until(lambda: house.status().state == "draining")
            clients.start_soon(one)
            await until(lambda: house.alive._loop.snapshot().waiting_requests == 1)
            house.shelf.let_through("g")
        assert sorted(answers) == ["model_unloaded", "old end"]
        assert house.status().state == "failed"
        assert house.service.health().status == "failed"
        with pytest.raises(ServiceUnavailable):
            await ask(house.service, "hi")
        await house.load("old")
        assert (await ask(house.service, "hi"))[0] == "old"
        assert house.service.health().status == "ok"


@pytest.mark.parametrize("holds_several", [ONE, SEVERAL])
async def test_an_unload_frees_everything_and_a_load_brings_it_back(holds_several):
    async with living(holds_several=holds_several) as house:
        heard = Heard()
        result = await house.models.unload("m", heard)
        assert result == {"generation": 1, "freed_bytes": MODEL_BYTES}
        assert house.shelf.resident == {}
        assert house.status().state == "unloaded"
        assert house.service.models() == ()
        assert not heard.returns
        with pytest.raises(ServiceUnavailable):
            await ask(house.service, "hi")
        with pytest.raises(OperationRefused, match="not loaded"):
            await house.models.unload("m", Heard())
        await house.load("old")
        assert (await ask(house.service, "hi"))[0] == "old"


async def test_an_unload_that_the_device_does_not_confirm_says_so():
    async with living(holds_several=False) as house:
        house.shelf.certain = False
        with pytest.raises(OperationFailed, match="not certain"):
            await house.models.unload("m", Heard())


async def test_a_swap_whose_old_model_does_not_leave_for_certain_says_so_and_the_new_one_chats():
    templates = {"old": Template(), "new": Template()}
    async with living(holds_several=True, templates=templates) as house:
        house.shelf.certain = False
        with pytest.raises(OperationFailed, match="not certain to be rid of m"):
            await house.load("new")
        replies = []
        await chat(house, replies)
        assert replies == ["new"]
        assert not templates["new"].closed.is_set()
        assert "released old" in house.shelf.calls
        assert "released new" not in house.shelf.calls
        assert "served new" in house.shelf.calls, "it is good all the same: a rollback may come back to it"


async def test_a_text_side_that_was_opened_for_the_old_model_s_way_back_is_closed_if_that_fails():
    template = Template()
    async with living(holds_several=False, templates={"old": template}) as house:
        house.shelf.fails["publish"] = 2
        with pytest.raises(PackageError, match="publish failed"):
            await house.load("new")
        assert house.status().state == "failed"
        assert template.closed.is_set()


@pytest.mark.parametrize("holds_several", [ONE, SEVERAL])
async def test_an_error_that_nobody_foresaw_ends_the_load_and_not_the_daemon(holds_several):
    async with living(holds_several=holds_several) as house:

        def breaks():
            raise OSError(5, "the disk is gone")

        with pytest.raises(LoadBroken, match=r"checking signature and files of m broke off: OSError: .* is gone"):
            await house.models.load(house.shelf.source("m", "new", verify=breaks))
        assert (await ask(house.service, "hi"))[0] == "old"
        assert house.status().state == "ready"


async def test_an_unload_whose_time_is_over_waits_for_the_submitted_job_and_frees_nothing_before():
    async with living(holds_several=False, drain_s=0.3) as house:
        ended = []

        async def one():
            try:
                await ask(house.service, "gated")
            except GenerationFailed as error:
                ended.append((error.reason, error.retryable))

        async with trio.open_nursery() as clients:
            clients.start_soon(one)
            await until(lambda: house.alive._loop.snapshot().jobs_in_flight)
            clients.start_soon(house.models.unload, "m", Heard())
            await until(lambda: house.service.health().status == "recovering")
            assert "unload" not in house.shelf.calls
            house.shelf.let_through("g")
        assert ended == [("model_unloaded", True)]
        assert house.shelf.resident == {}
        assert house.status().state == "unloaded"


@pytest.mark.parametrize("holds_several", [ONE, SEVERAL])
async def test_a_swap_whose_drain_s_time_is_over_frees_nothing_before_the_submitted_job_has_ended(holds_several):
    async with living(holds_several=holds_several, drain_s=0.3) as house:
        ended, swapped = [], []

        async def one():
            try:
                await ask(house.service, "gated")
            except GenerationFailed as error:
                ended.append((error.reason, error.retryable))

        async def swap():
            swapped.append(await house.load("new"))

        async with trio.open_nursery() as clients:
            clients.start_soon(one)
            await until(lambda: house.alive._loop.snapshot().jobs_in_flight)
            clients.start_soon(swap)
            await until(lambda: house.snapshot().generations["m"].get(GenerationState.RECOVERING))
            assert "unload" not in house.shelf.calls
            assert not swapped
            house.shelf.let_through("g")
        assert ended == [("model_unloaded", True)]
        assert list(house.shelf.resident) == [2]
        assert (await ask(house.service, "hi"))[0] == "new"


async def test_a_second_model_is_refused_by_name_where_one_fits_and_served_beside_where_both_do():
    async with living(holds_several=False) as house:
        with pytest.raises(OperationRefused, match="holds m"):
            await house.models.load_named("n", "other", Heard())
        assert house.status("n").state == "failed"
        assert (await ask(house.service, "hi"))[0] == "old"
    async with living(holds_several=True) as house:
        await house.models.load_named("n", "other", Heard())
        async with house.service.open(attrs.evolve(asking("hi"), alias="n")) as handle:
            assert "".join([output.text async for output in handle]) == "other"
        assert (await ask(house.service, "hi"))[0] == "old"


async def test_a_package_without_room_is_refused_before_the_device_is_touched():
    async with living(holds_several=True) as house:

        def no_room(_used, _beside):
            raise PackageError("it needs 28.150 GiB, and 3 are left")

        source = house.shelf.source("m", "new", fits=no_room)
        calls = list(house.shelf.calls)
        with pytest.raises(PackageError, match=r"28\.150"):
            await house.models.load(source)
        assert house.shelf.calls == [*calls, "released new"]
        assert (await ask(house.service, "hi"))[0] == "old"


async def test_a_rollback_is_one_call_and_what_is_unknown_is_named():
    async with living(holds_several=True) as house:
        await house.load("new")
        await house.models.roll_back("m", Heard())
        assert (await ask(house.service, "hi"))[0] == "old"
        with pytest.raises(PackageError, match="there is no package"):
            await house.load("nothing")
        for call in (house.models.roll_back("x", Heard()), house.models.load_named("x", None, Heard())):
            with pytest.raises(ModelNotFound):
                await call
        with pytest.raises(OperationRefused):
            await house.models.unload("x", Heard())


async def test_a_daemon_that_leaves_loads_nothing_more_and_says_so():
    async with living(holds_several=True) as house:
        house.models.leave()
        for call in (house.load("new"), house.load(None), house.models.roll_back("m", Heard())):
            with pytest.raises(OperationRefused, match="leaving"):
                await call
        assert (await ask(house.service, "hi"))[0] == "old"


async def test_its_own_package_again_is_a_new_generation():
    async with living(holds_several=False) as house:
        assert (await house.load(None))["generation"] == 2
        assert (await ask(house.service, "hi"))[0] == "old"


async def test_a_load_that_is_cancelled_before_the_drain_changes_nothing():
    async with living(holds_several=False) as house:
        begun = trio.Event()

        async with trio.open_nursery() as operator:

            class Leaving(Heard):
                def __call__(self, line):
                    super().__call__(line)
                    begun.set()
                    operator.cancel_scope.cancel()

            operator.start_soon(house.load, "new", Leaving())
        assert begun.is_set()
        assert (await ask(house.service, "hi"))[0] == "old"
        assert house.shelf.calls.count("unload") == 0
        assert (await house.load("new"))["generation"] >= 2


async def test_a_hundred_swaps_leave_nothing_behind():
    async with living(holds_several=False) as house:
        for number in range(100):
            await house.load("new" if number % 2 == 0 else "old")
        assert len(house.shelf.resident) == 1
        core = house.alive._loop._core
        assert len(core._fleet.generations) == len(core._fleet.served) == 1
        assert len(house.alive._desk._prompts) == 1
        assert house.models.residents._vacated == {}
