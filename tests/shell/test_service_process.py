"""The daemon as a service manager sees it: a process with a notification socket, signals and an exit code."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from queue import SimpleQueue

import attrs
import pytest
import yaml

PATIENCE_S = 60

SCRIPT = {
    "model": "m",
    "lanes": 2,
    "replies": [
        {"when": "stuck", "tokens": [{"text": "a", "fault": "stuck"}]},
        {"when": "hang", "tokens": [{"text": "a", "fault": "hang"}]},
        {"when": "endless", "tokens": [{"text": "x", "delay_s": 0.02}], "afterwards": "repeat"},
        {"tokens": ["hello"]},
    ],
}
CONFIG = {
    "schema": "calculet-service/v1",
    "listen": {"port": 0},
    "device": {"runtime": "scripted"},
    "timeouts": {"job_s": 0.5, "job_per_token_ms": 0, "streams_s": 1, "write_stall_s": 10},
}


@attrs.define
class Process:
    """A daemon that was started as a service manager starts it."""

    process: subprocess.Popen[str]
    said: SimpleQueue[bytes]
    port: int = 0

    def hear(self, wanted: str) -> dict[str, str]:
        """Its words up to the first that has ``wanted``, merged, a later one over an earlier one."""
        heard: dict[str, str] = {}
        while wanted not in heard:
            words = self.said.get(timeout=PATIENCE_S).decode()
            heard |= dict(line.split("=", 1) for line in words.split("\n"))
        return heard

    def becomes_ready(self) -> None:
        status = self.hear("READY")["STATUS"]
        self.port = int(re.fullmatch(r"serving m on port (\d+)", status)[1])

    def begin_chat(self, prompt: str) -> socket.socket:
        body = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": prompt}]})
        client = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nConnection: close\r\n"
        )
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        return client

    def ends(self) -> int:
        return self.process.wait(PATIENCE_S)


def read_all(client: socket.socket) -> str:
    with client:
        return b"".join(iter(lambda: client.recv(65536), b"")).decode()


@contextmanager
def listening_at(address: str):
    """What is said there, taken at once as a manager does: some kernels keep no more than ten datagrams."""
    said: SimpleQueue[bytes] = SimpleQueue()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(address)

        def listen() -> None:
            while word := end.recv(4096):
                said.put(word)

        listener = threading.Thread(target=listen, daemon=True)
        listener.start()
        yield said
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
            last.sendto(b"", address)
        listener.join(PATIENCE_S)


@contextmanager
def starting(*, config=None, script=None, address="path", script_exists=True, home=None):
    """Start it, and let nothing of it be left, unless in a ``home`` that the test has."""
    with ExitStack() as outer:
        directory = Path(outer.enter_context(nullcontext(home) if home else tempfile.TemporaryDirectory(prefix="ct")))
        Path(directory / "n").unlink(missing_ok=True)
        bound = {"path": str(directory / "n"), "abstract": f"@calculet-{os.getpid()}-{time.monotonic_ns()}"}
        said = outer.enter_context(listening_at(bound.get(address, bound["path"]).replace("@", "\0", 1)))
        if script_exists:
            (directory / "script.yaml").write_text(yaml.safe_dump({**SCRIPT, **(script or {})}))
        models = [{"package": str(directory / "script.yaml")}]
        (directory / "config.yaml").write_text(
            yaml.safe_dump({**CONFIG, "state": str(directory / "state"), "models": models, **(config or {})})
        )
        command = [sys.executable, "-c", "from calculet_trio.cli.main import main; main()"]
        command += ["serve", "--config", str(directory / "config.yaml")]
        environment = {name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"}
        named = {"unset": None, "unreachable": str(directory / "nobody")}.get(address, bound.get(address))
        if named is not None:
            environment |= {"NOTIFY_SOCKET": named, "WATCHDOG_USEC": "1000000"}
        with (
            (directory / "log").open("w+") as log,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment) as process,
        ):
            try:
                yield Process(process, said)
            finally:
                process.kill()


@pytest.mark.parametrize("address", ["path", "abstract"])
def test_ready_means_that_a_chat_is_answered_and_stopping_comes_before_the_end(address):
    with starting(address=address, script={"load_s": 1.0}) as daemon:
        early = daemon.hear("EXTEND_TIMEOUT_USEC")
        assert "READY" not in early
        daemon.becomes_ready()
        assert "hello" in read_all(daemon.begin_chat("hi"))
        assert daemon.hear("WATCHDOG")["WATCHDOG"] == "1"
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.hear("STOPPING")["STATUS"] == "letting open replies end"
        assert daemon.ends() == 0


@pytest.mark.parametrize("address", ["unset", "unreachable"])
def test_no_manager_to_talk_to_is_no_error(address):
    with starting(address=address) as daemon:
        for line in daemon.process.stdout:
            if found := re.search(r"is ready on http://127\.0\.0\.1:(\d+)", line):
                daemon.port = int(found[1])
                break
        assert "hello" in read_all(daemon.begin_chat("hi"))
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.ends() == 0


@pytest.mark.parametrize(("fault", "code"), [("hang", "timeout"), ("stuck", "stuck_wait")])
def test_a_job_that_never_returns_ends_the_process_with_75(fault, code):
    with starting() as daemon:
        daemon.becomes_ready()
        reply = read_all(daemon.begin_chat(fault))
        assert reply.startswith("HTTP/1.1 503")
        assert f'"code":"{code}"' in reply
        assert daemon.hear("STOPPING")["STATUS"] == f"leaving: the fate of a device call is unknown ({code})"
        assert daemon.ends() == 75


def test_a_drain_with_a_stuck_job_ends_with_75_too_and_cuts_nobody_off_without_a_word():
    with starting() as daemon:
        daemon.becomes_ready()
        with daemon.begin_chat("stuck") as stuck, daemon.begin_chat("endless") as waiting:
            wait_for_metric(daemon, "vllm:num_requests_running", 2)
            daemon.process.send_signal(signal.SIGTERM)
            assert int(daemon.hear("STOPPING")["EXTEND_TIMEOUT_USEC"]) >= 1_000_000
            assert daemon.ends() == 75
            assert '"error"' in read_all(stuck)
            assert '"error"' in read_all(waiting)


def wait_for_metric(daemon: Process, name: str, value: float) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        with urllib.request.urlopen(f"http://127.0.0.1:{daemon.port}/metrics", timeout=PATIENCE_S) as answer:
            if f"{name} {value:.1f}" in answer.read().decode():
                return
    raise AssertionError(f"{name} never became {value}")


def test_a_taken_port_is_unavailable():
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        starting(config={"listen": {"port": other.getsockname()[1]}}) as daemon,
    ):
        assert daemon.ends() == 69


@pytest.mark.parametrize("wrong", [{"config": {"colour": "blue"}}, {"script_exists": False}, {"script": {"lanes": 0}}])
def test_what_is_refused_is_refused_for_good_and_was_never_ready(wrong):
    with starting(**wrong) as daemon:
        assert daemon.ends() == 78
    assert daemon.said.empty()


def test_after_75_the_device_is_shown_quiet_first_and_76_says_that_it_is_not(tmp_path):
    home = tempfile.mkdtemp(prefix="ct", dir=tmp_path)
    with starting(home=home) as daemon:
        daemon.becomes_ready()
        read_all(daemon.begin_chat("hang"))
        assert daemon.ends() == 75
    kept = json.loads((Path(home) / "state" / "faults" / "scripted-m.json").read_text())
    assert kept["restarts"] == 1
    assert kept["holding"]["lost_to"] == "timeout"
    assert [kept["faults"][0][key] for key in ("reason", "engine", "next_step")] == ["timeout", "ping", "restart"]
    assert kept["faults"][0]["quarantine"] == {"jobs": 1, "lanes": 1, "buffers": 1}
    quick = {**CONFIG["timeouts"], "quiet_s": 0.2}
    with starting(home=home, script={"left_over": 1}, config={"timeouts": quick}) as daemon:
        assert daemon.ends() == 76
        log = (Path(home) / "log").read_text()
        assert "error: the device is not quiet: after 0.2 s it still has 1 job" in log
        assert "device_must_be_quiet" in log
    with starting(home=home) as daemon:
        daemon.becomes_ready()
        assert "hello" in read_all(daemon.begin_chat("hi"))
        assert "device_quiet" in (Path(home) / "log").read_text()
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.ends() == 0
    kept = json.loads((Path(home) / "state" / "faults" / "scripted-m.json").read_text())
    assert kept["holding"] is None


def test_a_damaged_history_is_set_aside_and_reported_and_the_daemon_serves(tmp_path):
    home = tempfile.mkdtemp(prefix="ct", dir=tmp_path)
    history = Path(home) / "state" / "faults" / "scripted-m.json"
    history.parent.mkdir(parents=True)
    history.write_text('{"schema": "calculet-faults/v1", "resets": [{"began_unix')
    with starting(home=home) as daemon:
        daemon.becomes_ready()
        with urllib.request.urlopen(f"http://127.0.0.1:{daemon.port}/health", timeout=PATIENCE_S) as answer:
            said = json.load(answer)
        assert said == {"status": "ok", "notes": ["the fault history could not be read and was set aside"]}
        assert "fault_history_set_aside" in (Path(home) / "log").read_text()
    assert len(list(history.parent.glob("*.set-aside-*"))) == 1
