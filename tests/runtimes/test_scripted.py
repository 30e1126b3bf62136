"""The scripted runtime: its file format, its gates, and the socket that works them."""

from __future__ import annotations

import json
import re
import socket
import threading
from pathlib import Path

import pytest
import yaml

from calculet_trio.core.events import FaultReason
from calculet_trio.core.jobs import EngineId, LaneWork, PrefillJob
from calculet_trio.errors import PackageError
from calculet_trio.ids import GenerationId, JobId, LaneId, RequestId
from calculet_trio.runtimes.port import Allocated, Finished, NotAllocated, NotSubmitted, Submitted, Unknown
from calculet_trio.runtimes.script import load_script, parse_script
from calculet_trio.runtimes.script_control import Gates
from calculet_trio.runtimes.scripted import ScriptedRuntime

GENERATION = GenerationId(1)
PING = EngineId.PING


def opened(script):
    """A runtime with its one generation configured."""
    runtime = ScriptedRuntime(script)
    runtime.configure(GENERATION, Path())
    return runtime


def prefill(runtime, prompt=b"hi", *, lane=0, position=0, sequence=None):
    """Allocate a sequence (unless given) and hand its prompt over."""
    if sequence is None:
        allocated = runtime.allocate(GENERATION, LaneId(lane), 8)
        assert isinstance(allocated, Allocated)
        sequence = allocated.sequence
    work = LaneWork(RequestId(1), sequence, LaneId(lane), 0, list(prompt), position)
    return sequence, runtime.submit(PING, PrefillJob(JobId(1), GENERATION, runtime.script.shape.prefill, work))


def first_token(runtime, **kwargs):
    _, taken = prefill(runtime, **kwargs)
    assert isinstance(taken, Submitted)
    return runtime.wait(PING, taken.ticket, 0.05)


def test_the_documented_script_loads():
    text = Path("calculet_trio/runtimes/SCRIPTS.md").read_text(encoding="utf-8")
    document = yaml.safe_load(re.search(r"```yaml\n(.*?)```", text, re.DOTALL)[1])
    script = parse_script(document | {"control": ""})
    said = [script.tokenizer.token_bytes(t.token) for t in script.reply_to("the weather?").tokens]
    assert b"".join(said) == "It is 😸!<|im_end|>never seen".encode()
    assert script.shape.prefill.max_seq == 1024


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ([], "script must be a mapping"),
        ({"schema": "other/v1"}, "schema"),
        ({"lanes": 0}, "lanes"),
        ({"lanes": True}, "script.lanes"),
        ({"profiles": [1, 9]}, "profiles"),
        ({"sepcial": []}, "'sepcial'"),
        ({"step_s": -1}, "script.step_s"),
        ({"replies": [{"tokens": [{"bytes": "f"}]}]}, "hexadecimal"),
        ({"replies": [{"tokens": [{"text": "a", "eos": True}]}]}, "exactly one"),
        ({"replies": [{"tokens": [{"special": "<|no|>"}]}]}, "replies[0].tokens[0].special"),
        ({"replies": [{"tokens": [{"text": "a", "fault": "odd"}]}]}, "allowed: busy"),
        ({"replies": [{"tokens": ["a", {"text": "b", "gaet": "g"}]}]}, "replies[0].tokens[1]"),
        ({"replies": [{"afterwards": "repeat"}]}, "no tokens to repeat"),
    ],
)
def test_a_wrong_script_is_refused_by_the_path_of_its_key(document, named):
    with pytest.raises(PackageError, match=re.escape(named)):
        parse_script(document)


def test_an_unreadable_script_says_which(tmp_path):
    (tmp_path / "s.yaml").write_text("a: [")
    for path in (tmp_path / "s.yaml", tmp_path / "none.yaml"):
        with pytest.raises(PackageError, match=path.name):
            load_script(path)


def test_the_first_matching_reply_speaks_and_the_end_token_follows():
    runtime = opened(parse_script({"replies": [{"when": "b", "tokens": ["B"]}, {"tokens": ["A"]}]}))
    assert first_token(runtime, prompt=b"abc").logits[0].argmax() == ord("B")
    assert first_token(runtime, prompt=b"xyz", lane=1).logits[0].argmax() == ord("A")
    silent = opened(parse_script({}))
    assert first_token(silent).logits[0].argmax() == silent.script.tokenizer.special.eos


def test_a_lane_holds_one_sequence_and_a_job_must_fit_its_history():
    runtime = opened(parse_script({"lanes": 1, "profiles": [1], "context_tokens": 8}))
    sequence, taken = prefill(runtime, b"1234")
    assert runtime.allocate(GENERATION, LaneId(0), 8) == NotAllocated(FaultReason.NO_CAPACITY)
    runtime.wait(PING, taken.ticket, 1)
    wrong = [
        {"position": 3, "sequence": sequence},
        {"position": 5, "sequence": sequence},
        {"position": 4, "sequence": sequence, "lane": 1},
        {"position": 0, "sequence": sequence + 1},
    ]
    for case in wrong:
        assert prefill(runtime, **case)[1] == NotSubmitted(FaultReason.RUNTIME_ERROR)
    assert not runtime.release(GENERATION, LaneId(1), sequence)
    assert runtime.release(GENERATION, LaneId(0), sequence)
    assert not runtime.release(GENERATION, LaneId(0), sequence)


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        ("output", Finished(None, FaultReason.OUTPUT_ERROR)),
        ("hang", Unknown(FaultReason.TIMEOUT)),
        ("lost", Unknown(FaultReason.DEVICE_LOST)),
    ],
)
def test_faults_happen_as_often_as_the_script_says(fault, outcome):
    runtime = opened(parse_script({"replies": [{"tokens": [{"text": "a", "fault": fault}]}]}))
    assert first_token(runtime) == outcome
    assert first_token(runtime, lane=1).failed is None


def test_a_busy_device_takes_the_job_later():
    runtime = opened(parse_script({"replies": [{"tokens": [{"text": "a", "fault": "busy"}]}]}))
    sequence, refused = prefill(runtime)
    assert refused == NotSubmitted(FaultReason.DEVICE_BUSY)
    assert isinstance(prefill(runtime, sequence=sequence)[1], Submitted)


def test_a_gate_that_stays_shut_ends_the_wait_by_its_timeout():
    runtime = opened(parse_script({"replies": [{"tokens": [{"text": "a", "gate": "g"}]}]}))
    assert first_token(runtime) == Unknown(FaultReason.TIMEOUT)
    runtime.gates.release("g")
    assert first_token(runtime, lane=1).failed is None
    runtime.close()
    assert first_token(runtime, lane=2).failed is None, "closing opens every gate"


def test_gates_wake_those_who_wait():
    gates = Gates()
    passed = threading.Event()
    threading.Thread(target=lambda: gates.pass_through("g", 10) and passed.set(), daemon=True).start()
    assert gates.wait_for({"waiting": 1}, 5)
    gates.release("other")
    assert not passed.is_set()
    gates.release("g")
    assert passed.wait(5)
    assert not gates.wait_for({"finished": 1}, 0.01)


def test_the_control_socket_releases_counts_and_waits(tmp_path):
    path = tmp_path / "control.sock"
    runtime = opened(parse_script({"control": str(path)}))
    runtime.open()
    runtime.allocate(GENERATION, LaneId(0), 8)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        lines = client.makefile("rw")

        def say(command):
            lines.write(command + "\n")
            lines.flush()
            return json.loads(lines.readline())

        assert say('{"state": true}') == {"ok": True, "configuring": 1, "allocated": 1, "resident": 1}
        assert say('{"release": "g", "count": 2}')["ok"]
        assert runtime.gates.pass_through("g", 0)
        assert say('{"wait_for": {"allocated": 1}, "timeout_s": 1}')["ok"]
        assert not say('{"wait_for": {"allocated": 2}, "timeout_s": 0.01}')["ok"]
        for nonsense in ("", "{", "[]", '{"release": "g", "count": "x"}', '{"wait_for": 5}'):
            assert not say(nonsense)["ok"]
    runtime.close()
