"""The trace: whole, bounded, and without anything a client said."""

from __future__ import annotations

import json

from calculet_trio.core.effects import Admit, Deliver, SubmitJob
from calculet_trio.core.events import Arrived, JobFinished, LaneResult, Offered, TimePassed
from calculet_trio.core.jobs import EngineId, LaneWork, PrefillJob
from calculet_trio.core.profiles import PrefillProfile
from calculet_trio.observe import trace
from calculet_trio.observe.trace import EventTrace


def job():
    work = LaneWork(request=1, sequence=4, lane=2, index=0, tokens=(31337, 31338), position=0)
    return PrefillJob(7, 1, PrefillProfile("prefill", max_seq=64), work)


def test_nothing_is_kept_while_nobody_asked():
    one = EventTrace()
    one.heard(Arrived(1, "t", "m", None), 1.0)
    one.decided(Admit(1, 3, 4, 0.0, None), 1.0)
    assert one.begin(2.0)
    assert not one.begin(2.0)
    assert one.end()["traceEvents"] == []
    assert one.begin(3.0)


def test_a_job_is_a_slice_of_its_engine_and_everything_else_a_mark():
    one = EventTrace()
    one.begin(10.0)
    one.heard(TimePassed(), 10.0)
    one.decided(SubmitJob(EngineId.PONG, job()), 10.5)
    one.heard(JobFinished(7, 1, (LaneResult(2, 1, 31339, output="secret"),)), 10.75)
    one.decided(Admit(1, 3, 4, 0.25, None), 11.0)
    found = one.end()["traceEvents"]
    assert [(record["name"], record["ph"], record["tid"], record["ts"]) for record in found] == [
        ("SubmitJob", "i", "decided", 500_000),
        ("prefill", "X", "pong", 500_000),
        ("JobFinished", "i", "heard", 750_000),
        ("Admit", "i", "decided", 1_000_000),
    ]
    assert found[1]["dur"] == 250_000
    assert found[1]["args"] == {"job": 7, "phase": "prefill", "lanes": [2], "outcome": "JobFinished"}
    assert found[3]["args"] == {"request": 1, "prompt_tokens": 3, "max_new_tokens": 4, "queued_s": 0.25}


def test_no_prompt_and_no_text_gets_in():
    one = EventTrace()
    one.begin(0.0)
    one.heard(Offered(1, 1, (31337, 31338), 5), 0.1)
    one.decided(Deliver(1, "secret"), 0.2)
    one.decided(SubmitJob(EngineId.PING, job()), 0.3)
    one.heard(JobFinished(7, 1, (LaneResult(2, 1, 31339, output="secret"),)), 0.4)
    said = json.dumps(one.end())
    assert "secret" not in said
    assert "3133" not in said


def test_a_trace_is_bounded_and_counts_what_it_left_out(monkeypatch):
    monkeypatch.setattr(trace, "RECORDS_MAX", 3)
    one = EventTrace()
    one.begin(0.0)
    for _ in range(5):
        one.heard(Arrived(1, "t", "m", None), 0.1)
    found = one.end()
    assert (len(found["traceEvents"]), found["otherData"]) == (3, {"left_out": 2})
