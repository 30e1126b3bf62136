"""A trace has a job's beginning and its end on one clock: the moments at which the core decided and was told."""

from __future__ import annotations

import trio

from calculet_trio.core.effects import SubmitJob
from tests.shell.house import ask, living

LATE_S = 0.02


async def test_no_job_begins_when_it_is_performed_and_ends_when_it_was_heard(monkeypatch):
    script = {"replies": [{"tokens": ["a", "b", "c"]}]}
    async with living(script) as house:
        perform, decided = house.alive._loop._perform, house.alive._trace.decided
        heard, noted = [], []

        def late(event, effects, heard_s):
            heard.extend(heard_s for effect in effects if isinstance(effect, SubmitJob))
            until_s = trio.current_time() + LATE_S
            while trio.current_time() < until_s:
                pass
            perform(event, effects, heard_s)

        def noting(effect, now):
            noted.extend([now] if isinstance(effect, SubmitJob) else [])
            decided(effect, now)

        monkeypatch.setattr(house.alive._loop, "_perform", late)
        monkeypatch.setattr(house.alive._trace, "decided", noting)
        house.alive._trace.begin(trio.current_time())
        assert (await ask(house.service))[0] == "abc"
        found = house.alive._trace.end()
    assert noted == heard
    jobs = [event["dur"] for event in found["traceEvents"] if "dur" in event]
    assert jobs
    assert min(jobs) >= 0
