"""The commands to a running daemon, as an operator types them: real processes, a real socket, one log."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.clients.daemon import SCRIPT, STOP_S, Daemon


def calculet(*arguments):
    """One command's exit code, output and errors."""
    command = [sys.executable, "-c", "from calculet_trio.cli.main import main; main()", *map(str, arguments)]
    wide = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, env=wide)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def place():
    with tempfile.TemporaryDirectory() as short:  # a Unix socket's path is at most 107 bytes long
        yield Path(short)


def started(place, *, script=SCRIPT, scheduler=None, **config):
    settings = {"state": str(place / "state"), "admin_socket": str(place / "run" / "admin.sock"), **config}
    return Daemon(place, script, config=settings, scheduler=scheduler)


def test_an_operators_session(place):
    daemon = started(place)
    config = place / "config.yaml"
    try:
        code, out, _ = calculet("models", "list", "--config", config)
        assert code == 0
        assert "ready" in out
        code, out, _ = calculet("models", "list", "--config", config, "--json")
        [model] = json.loads(out)
        assert (model["alias"], model["state"], model["doing"]) == ("m", "ready", None)
        steps = ["verify", "validate", "plan", "configure", "inspect", "prove", "publish", "retain"]
        assert list(model["phases_s"]) == steps

        code, out, _ = calculet("trace", "--config", config, "--seconds", "0.2", "--out", place / "trace.json")
        assert code == 0
        assert "traceEvents" in json.loads((place / "trace.json").read_text())

        code, out, _ = calculet("debug-dump", "--config", config, "--json")
        dump = Path(json.loads(out)["path"])
        assert dump.parent == place / "state" / "dumps"
        contents = json.loads(dump.read_text())
        assert contents["counts"]["status"]["word"] == "ok"
        assert "prompts" not in contents
        code, out, err = calculet("debug-dump", "--config", config, "--include-prompts", "yes")
        assert code == 1
        assert "yes, include prompts" in err
        code, out, _ = calculet("debug-dump", "--config", config, "--include-prompts", "yes, include prompts", "--json")
        assert json.loads(Path(json.loads(out)["path"]).read_text())["prompts"] == {}

        config.write_text(config.read_text() + "tenants: [{name: default, weight: -1}]\n")
        code, _, err = calculet("reload", "--socket", place / "run" / "admin.sock")
        assert code == 1
        assert "tenants[0].weight" in err

        code, _, err = calculet("models", "load", "nobody", "--socket", place / "run" / "admin.sock")
        assert code == 1
        assert "error:" in err

        assert calculet("drain", "--socket", place / "run" / "admin.sock")[0] == 0
        assert daemon.process.wait(STOP_S) == 0
    finally:
        daemon.kill()
    assert not (place / "run" / "admin.sock").exists()
    code, _, err = calculet("drain", "--socket", place / "run" / "admin.sock")
    assert code == 69
    assert "no daemon listens" in err

    config.write_text("schema: calculet-service/v1\nstate: state\n")
    code, out, _ = calculet("audit", "show", "--config", config, "--json")
    records = [json.loads(line) for line in out.splitlines()]
    assert {record["uid"] for record in records if record["event"] == "asked"} == {os.getuid()}
    assert [record["call"] for record in records if record["event"] == "asked"][-1] == "POST /admin/drain"
    code, out, _ = calculet("audit", "verify", "--config", config)
    assert code == 0
    head = out.split("head ")[1].split()[0]
    [log] = (place / "state" / "audit").glob("*.jsonl")
    whole = log.read_bytes()
    log.write_bytes(whole.replace(b"/admin/drain", b"/admin/dring", 1))
    code, _, err = calculet("audit", "verify", "--config", config)
    assert code == 1
    assert "changed" in err
    log.write_bytes(b"".join(whole.splitlines(keepends=True)[:-2]))
    assert calculet("audit", "verify", "--config", config)[0] == 0
    assert calculet("audit", "verify", "--config", config, "--head", head)[0] == 1


def test_long_operations_are_listed_and_one_that_has_ended_is_not_cancelled(place):
    daemon = started(place)
    config = ("--config", place / "config.yaml")
    try:
        assert calculet("models", "load", "nobody", *config)[0] == 1
        [job] = json.loads(calculet("jobs", "list", "--json", *config)[1])
        assert (job["what"], job["alias"], job["state"]) == ("load", "nobody", "failed")
        assert "load nobody" in calculet("jobs", "list", *config)[1]
        code, _, err = calculet("jobs", "cancel", job["job"], *config)
        assert (code, f"{job['job']} had ended before: failed" in err) == (1, True)
    finally:
        daemon.kill()


def test_a_second_daemon_with_the_same_socket_is_refused(place):
    daemon = started(place)
    try:
        script = place / "script.yaml"
        code, _, err = calculet("serve", "--config", place / "config.yaml", "--runtime", "scripted", "--script", script)
        assert code == 69
        assert "another daemon listens" in err
        assert stat.S_ISSOCK((place / "run" / "admin.sock").stat().st_mode)
    finally:
        daemon.kill()


def test_a_daemon_without_a_named_socket_makes_way(place, monkeypatch):
    (place / "run").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place / "run"))
    first = Daemon(place, config={"state": str(place / "state")})
    try:
        assert (place / "run" / "calculet-trio" / "admin.sock").is_socket()
        (place / "second").mkdir()
        second = Daemon(place / "second", config={"state": str(place / "second" / "state")})
        try:
            assert "no_admin_socket" in second.stderr()
        finally:
            second.kill()
    finally:
        first.kill()


def test_an_operators_word_brings_both_engines_back(place):
    script = {
        **SCRIPT,
        "replies": [{"when": "break", "tokens": ["a", {"text": "b", "fault": "raise"}, "c"]}, {"tokens": ["Hello"]}],
    }
    daemon = started(
        place,
        script=script,
        scheduler={"executor": {"max_inflight": 2, "probation_jobs": None}, "recovery": {"replay": True}},
    )
    trust = ("device", "trust-engines", "--config", place / "config.yaml")
    try:
        assert engines(daemon) == {"mode": "ping_pong", "doubt": None}
        code, out, _ = calculet(*trust)
        assert (code, out) == (0, "nothing was doubted: both engines get new jobs\n")

        assert told(daemon, "break") == "abc", "reset in its middle, and written again to there"
        assert engines(daemon) == {"mode": "degraded", "doubt": "recovery"}
        assert told(daemon, "hi") == "Hello"
        code, out, _ = calculet(*trust, "--json")
        assert (code, json.loads(out)) == (0, {"put_aside": "recovery"})
        assert engines(daemon) == {"mode": "ping_pong", "doubt": None}
        assert told(daemon, "hi") == "Hello"
        code, out, _ = calculet("audit", "show", "--config", place / "config.yaml", "--json")
        calls = [json.loads(line) for line in out.splitlines()]
        assert sum(call.get("call") == "POST /admin/device/trust-engines" for call in calls) == 4, "asked and answered"
        assert daemon.stop() == 0
    finally:
        daemon.kill()


def test_where_one_engine_works_no_word_makes_a_pair(place):
    daemon = started(place)
    try:
        code, _, err = calculet("device", "trust-engines", "--config", place / "config.yaml")
        assert code == 1
        assert "one job in flight" in err
        assert "executor.max_inflight" in err
    finally:
        daemon.kill()


def told(daemon, prompt):
    """One reply's text."""
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": prompt}]}).encode()
    request = Request(f"{daemon.base_url}/v1/chat/completions", body, {"Content-Type": "application/json"})
    with urlopen(request, timeout=STOP_S) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]


def engines(daemon):
    """How the daemon says that it uses its engines."""
    with urlopen(f"{daemon.base_url}/props", timeout=STOP_S) as answer:
        return json.load(answer)["engines"]
