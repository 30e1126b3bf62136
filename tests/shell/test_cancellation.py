"""A request and a load, cancelled at every scheduling point of the whole daemon, with real threads."""

from __future__ import annotations

import itertools

import attrs
import trio

from calculet_trio.core.lanes import LaneState
from calculet_trio.shell.loading import ModelText
from calculet_trio.shell.operations import Unheard
from tests.shell.checkpoints import POINTS_MAX, Remains, StrikeAt
from tests.shell.house import ask, idle, living, until

SCRIPT = {
    "lanes": 2,
    "step_s": 0.001,
    "replies": [{"when": "struck", "tokens": ["a", "b", "c"]}, {"tokens": ["Hello"]}],
}


async def nothing_is_left(house):
    """Every lane is free, every job and sequence accounted for, and nobody remembers a request."""
    await idle(house)
    alive = house.alive
    await until(lambda: not alive._executor.bounds_s and len(alive._dispatcher) == 0)
    seen = alive._loop.snapshot()
    assert seen.lanes_by_state[LaneState.UNKNOWN] == 0
    assert (seen.jobs_in_flight, seen.jobs_unknown) == (0, 0)
    assert (seen.kv_tokens_reserved, seen.kv_tokens_used, seen.waiting_prompt_tokens) == (0, 0, 0)
    counted = house.runtime.gates.state()
    assert counted.get("allocated", 0) == counted.get("released", 0)
    assert counted.get("submitted", 0) == counted.get("finished", 0)
    assert house.runtime.resident == 0
    assert not house.runtime._jobs
    assert (len(alive._samplers), len(house.metrics._lives)) == (0, 0)


async def strike_at_every_point(house, doing, afterwards, *, may_strike=lambda: True):
    """Run ``doing`` again and again, cancelled one point later each time, until it ends before it is struck.

    Args:
        house: the daemon.
        doing: what is cancelled.
        afterwards: looks at what is left.
        may_strike: whether it is at a point at which somebody may cancel it.

    Returns:
        How many points it was cancelled at.
    """
    remains = Remains()
    caught = 0
    for point in itertools.count(1):
        assert point < POINTS_MAX
        with trio.fail_after(20), trio.CancelScope() as scope:

            def cancel(scope=scope):
                if may_strike():
                    scope.cancel()

            with StrikeAt(point, cancel) as strike:
                await doing()
        caught += scope.cancelled_caught
        await afterwards()
        await remains.are_gone()
        if not strike.has_struck:
            assert caught > 5, "it was cancelled at the points that it has"
            return caught
    raise AssertionError("count() ends")


async def test_a_request_cancelled_at_every_point_leaves_nothing():
    async with living(SCRIPT) as house:

        async def doing():
            assert (await ask(house.service, "struck"))[0] == "abc"

        async def afterwards():
            await nothing_is_left(house)
            assert (await ask(house.service))[0] == "Hello"
            await nothing_is_left(house)

        await strike_at_every_point(house, doing, afterwards)


async def test_a_request_cancelled_beside_another_never_touches_it():
    script = {**SCRIPT, "replies": [*SCRIPT["replies"][:1], {"when": "other", "tokens": list("undisturbed")}]}
    async with living(script) as house:
        texts = []

        async def other():
            texts.append((await ask(house.service, "other"))[0])

        async def doing():
            assert (await ask(house.service, "struck"))[0] == "abc"

        async def beside():
            # In the house's nursery, out of reach of what strikes.
            house.nursery.start_soon(other)
            await doing()

        async def afterwards():
            await until(lambda: texts)  # it may not even have begun when the other was struck
            await nothing_is_left(house)
            assert texts == ["undisturbed"]
            texts.clear()

        await strike_at_every_point(house, beside, afterwards)


async def test_a_queued_request_cancelled_at_every_point_of_its_wait_leaves_nothing():
    script = {"lanes": 1, "step_s": 0.001, "replies": [{"when": "first", "tokens": list("abc")}, {"tokens": ["Hello"]}]}
    async with living(script) as house:
        texts = []

        async def first():
            texts.append((await ask(house.service, "first"))[0])

        async def doing():
            house.nursery.start_soon(first)
            await until(lambda: house.alive._loop.snapshot().lanes_in_use)
            assert (await ask(house.service))[0] == "Hello"

        async def afterwards():
            await until(lambda: texts)
            await nothing_is_left(house)
            assert texts == ["abc"]
            texts.clear()

        await strike_at_every_point(house, doing, afterwards)


@attrs.define(eq=False)
class Template:
    """Stands for a model's template process, which somebody must let go."""

    is_open: bool = True

    def close(self):
        self.is_open = False


class Cancellable(Unheard):
    """A job that an operator may cancel until the device is touched."""

    may_be_cancelled = True

    def past_return(self):
        self.may_be_cancelled = False


async def test_a_load_cancelled_at_every_point_leaves_what_is_served_as_it_was():
    async with living({**SCRIPT, "load_s": 0.001}) as house:
        templates = []

        def open_text():
            templates.append(Template())
            return ModelText(house.runtime.script.tokenizer, templates[-1])

        source = attrs.evolve(house.alive._daemon.source, open_text=open_text)
        report = Cancellable()

        async def doing():
            report.may_be_cancelled = True
            await house.alive._models.load(source, report)

        async def afterwards():
            assert house.alive._models.step is None
            await nothing_is_left(house)
            await until(lambda: house.service.health().status == "ok")
            await until(lambda: len(house.alive._loop._core._fleet.generations) == 1)
            assert (await ask(house.service))[0] == "Hello"
            await nothing_is_left(house)
            [serving] = [prompts._template for prompts in house.alive._desk._prompts.values()]
            assert [one for one in templates if one.is_open] == ([] if serving is None else [serving])

        await strike_at_every_point(house, doing, afterwards, may_strike=lambda: report.may_be_cancelled)
        assert templates[-1].is_open, "the last load was not cancelled"
        assert any(not one.is_open for one in templates), "some were cancelled after their text was opened"
