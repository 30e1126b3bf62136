"""A chat over HTTP, turn after turn, on the CPU runtime: what was said is not computed again, and says the same."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from calculet_trio.settings.key_ring import key_digest
from tests.models import TinyModel

KEYS = {"acme": b"acme-key", "other": b"other-key"}
QUESTIONS = ("What is the sea?", "And a lake?", "Which is larger?")
COMMAND = (sys.executable, "-c", "from calculet_trio.cli.main import main; main()")
START_S = 120
STOP_S = 60


@pytest.fixture(scope="module", params=["fp32", "q8z"])
def home(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A user's home with a tiny package in it; in q8z, decode computes visibly otherwise than prefill."""
    pytest.importorskip("onnxruntime", reason="needs the host extra")
    home = tmp_path_factory.mktemp("home")
    TinyModel().write(home / "model.gguf")
    small = ("--weights", request.param, "--lanes", "4", "--max-seq", "256", "--no-earn")
    build = (*COMMAND, "package", "build", str(home / "model.gguf"), "-o", str(home / "tiny"), *small)
    subprocess.run(build, env=environment(home), check=True, timeout=START_S)
    return home


def environment(home: Path) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
    return {**own, "HOME": str(home), "PYTHONUNBUFFERED": "1"}


@contextmanager
def serving(home: Path, *, reuse: bool) -> Iterator[int]:
    """The port of a daemon that is ready; it ends in good order."""
    scheduler, service = home / f"scheduler-{reuse}.yaml", home / f"service-{reuse}.yaml"
    keys = {"schema": "calculet-scheduler/v1", "prefix_reuse": {"enabled": reuse, "min_tokens": 8}}
    scheduler.write_text(yaml.safe_dump(keys))
    tenants = [{"name": name, "key_sha256": key_digest(key)} for name, key in KEYS.items()]
    models = [{"package": str(home / "tiny"), "scheduler": str(scheduler)}]
    service.write_text(yaml.safe_dump({"schema": "calculet-service/v1", "models": models, "tenants": tenants}))
    with (home / f"stderr-{reuse}.log").open("w") as log:
        process = subprocess.Popen(
            [*COMMAND, "serve", "--config", str(service), "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment(home),
        )
        slow = threading.Timer(START_S, process.kill)  # ends the reading below
        slow.start()
        try:
            assert process.stdout is not None
            lines = (re.search(r"is ready on http://127\.0\.0\.1:(\d+)", line) for line in process.stdout)
            port = next((int(found[1]) for found in lines if found), None)
            assert port is not None, Path(log.name).read_text()
            yield port
            process.terminate()
            assert process.wait(STOP_S) == 0
        finally:
            slow.cancel()
            process.kill()
            process.wait(STOP_S)
            process.stdout.close()


def ask(port: int, messages: list[dict[str, str]], *, tenant: str = "acme", stream: bool = False) -> dict[str, Any]:
    """Text and usage of a greedy reply."""
    body: dict[str, Any] = {"model": "model", "messages": messages, "temperature": 0, "max_tokens": 8, "stream": stream}
    if stream:
        body["stream_options"] = {"include_usage": True}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEYS[tenant].decode()}"}
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        said = answer.read().decode()
    assert answer.status == 200, said
    if not stream:
        reply = json.loads(said)
        return {"text": reply["choices"][0]["message"]["content"], "usage": reply["usage"]}
    chunks = [json.loads(line[6:]) for line in said.splitlines() if line.startswith("data: {")]
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks if chunk["choices"])
    return {"text": text, "usage": chunks[-1]["usage"]}


def talk(port: int) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """Every reply of one chat, the last of them streamed, and the messages of its last turn."""
    messages: list[dict[str, str]] = []
    replies = []
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        replies.append(ask(port, messages, stream=question == QUESTIONS[-1]))
        asked = list(messages)
        messages.append({"role": "assistant", "content": replies[-1]["text"]})
    return replies, asked


def cached(reply: dict[str, Any]) -> int:
    return int(reply["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_each_turn_goes_on_from_the_one_before_and_says_what_it_says_without(home: Path) -> None:
    with serving(home, reuse=False) as port:
        without, _ = talk(port)
    assert [cached(reply) for reply in without] == [0, 0, 0]
    with serving(home, reuse=True) as port:
        replies, last = talk(port)
        assert [reply["text"] for reply in replies] == [reply["text"] for reply in without]
        prompts = [reply["usage"]["prompt_tokens"] for reply in replies]
        assert prompts == [reply["usage"]["prompt_tokens"] for reply in without]
        assert cached(replies[0]) == 0
        for before, now in ((0, 1), (1, 2)):
            assert cached(replies[now]) == prompts[before], "what was asked, and nothing that decode wrote"
        stranger = ask(port, last, tenant="other", stream=True)
        assert (stranger["text"], cached(stranger)) == (replies[-1]["text"], 0), "it is another's history"
        again = ask(port, last)
        assert (again["text"], cached(again)) == (replies[-1]["text"], prompts[-1] - 2), "two tokens for its logits"
