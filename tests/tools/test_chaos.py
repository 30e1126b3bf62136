"""tools/chaos in its short form: it holds, and each thing that could go wrong with an answer is objected to."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"
RUN_S = 600


@pytest.fixture
def client(monkeypatch):
    monkeypatch.syspath_prepend(TOOLS)
    import chaos_client

    return chaos_client


def test_the_short_form_holds(tmp_path):
    pytest.importorskip("onnxruntime", reason="needs the host extra")
    verdicts = tmp_path / "verdicts.json"
    command = [sys.executable, TOOLS / "chaos.py", "--short", "--json", verdicts]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads(verdicts.read_text())
    assert [verdict["passed"] for verdict in found] == [True, True]
    assert ["seed 0" in found[0]["what"], "2 times kill -9" in found[1]["what"]] == [True, True]


KNOWN = {0: "hello world"}


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        ({"status": 200, "text": "hello world", "finish": "length", "is_whole": True}, None),
        ({"status": 200, "text": "hello", "is_whole": True, "code": "shutdown"}, None),
        ({"status": 200, "text": "hello", "left": True}, None),
        ({"status": 503, "code": "draining", "is_whole": True}, None),
        ({"status": 200, "text": "hello", "finish": "length", "is_whole": True}, "ended before"),
        ({"status": 200, "text": "hello hello", "is_whole": True, "code": "shutdown"}, "mixed up"),
        ({"status": 200, "text": "hello world", "finish": None}, "broke off without a word"),
        ({}, "broke off without a word"),
        ({"status": 400, "code": "deadline_too_short", "is_whole": True}, "400"),
        ({"status": 503, "is_whole": True}, "503"),
        ({"forgot": True}, "nothing came"),
    ],
)
def test_an_answer_is_held_against_the_undisturbed_one(client, answer, word):
    said = client.objection(client.Answer(**answer), client.calm_errand(0), KNOWN, may_break_off=False)
    assert said is None if word is None else word in said


def test_a_deadline_may_end_a_reply_early_or_keep_it_from_beginning(client):
    hurried = attrs.evolve(client.calm_errand(0), deadline_ms=5)
    early = client.Answer(status=200, text="hel", finish="length", is_whole=True)
    late = client.Answer(status=400, code="deadline_too_short", is_whole=True)
    assert client.objection(early, hurried, KNOWN, may_break_off=False) is None
    assert client.objection(late, hurried, KNOWN, may_break_off=False) is None


def reply(*lines, ends=True):
    """A stream's bytes, a chunk for each line."""
    chunks = b"".join(f"{len(line) + 2:x}\r\n{line}\n\n\r\n".encode() for line in lines)
    return b"HTTP/1.1 200 \r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + (b"0\r\n\r\n" if ends else b"")


TOKEN = 'data: {"choices":[{"text":"a","finish_reason":"stop"}]}'
ERROR = b'{"error":{"code":"failed"}}'


@pytest.mark.parametrize(
    ("raw", "seen"),
    [
        (reply(TOKEN, "data: [DONE]"), (200, "a", "stop", None, True)),
        (reply(TOKEN, ends=False), (200, "a", "stop", None, False)),
        (reply(TOKEN, 'data: {"error":{"code":"x"}}'), (200, "a", "stop", "x", True)),
        (b"HTTP/1.1 503 \r\nContent-Length: 27\r\n\r\n" + ERROR, (503, "", None, "failed", True)),
        (b"HTTP/1.1 503 \r\nContent-Length: 27\r\n\r\n" + ERROR[:-1], (503, "", None, None, False)),
        (b"", (0, "", None, None, False)),
    ],
)
def test_what_came_is_understood_also_where_it_broke_off(client, raw, seen):
    answer = client.understood(raw, is_over=True)
    assert (answer.status, answer.text, answer.finish, answer.code, answer.is_whole) == seen
