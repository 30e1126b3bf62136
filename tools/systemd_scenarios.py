"""What the unit does when it starts, crashes, hangs and stops; inside the lab of tools/systemd_lab.py."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import traceback
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

UNIT = "calculet-trio.service"
HOME = Path(os.environ.get("HOME", "/nonexistent"))
CONFIG = HOME / ".config" / "calculet-trio" / "service.yaml"
SCRIPT = HOME / "script.yaml"
SERVICE_LOG = HOME.parent / "service.log"
PORT = 8080
PATIENCE_S = 60
SEEN = ("ActiveState", "SubState", "Result", "ExecMainStatus", "NRestarts", "MainPID", "StatusText")

GOOD_CONFIG = f"""\
schema: calculet-service/v1
listen: {{port: {PORT}}}
device: {{runtime: scripted}}
models: [{{package: {SCRIPT}}}]
timeouts: {{job_s: 12, job_per_token_ms: 0, watchdog_s: 20, drain_s: 32, streams_s: 20, quiet_s: 2}}
"""
SCRIPT_TEXT = """\
model: m
load_s: {load_s}
replies:
  - {{when: hang, tokens: [{{text: a, fault: hang}}]}}
  - {{when: stuck, tokens: [{{text: a, fault: stuck}}]}}
  - {{when: slow, tokens: [{{text: slow, delay_s: 10}}]}}
  - {{when: stream, tokens: [{{text: x, delay_s: 0.3, times: 10}}]}}
  - {{tokens: [hello]}}
"""


class Unlike(Exception):
    """Something else was seen than what should be."""


# ---- what a person would type ---------------------------------------------------------------------


def systemctl(*words: str) -> subprocess.CompletedProcess[str]:
    """Ask the user manager."""
    return subprocess.run(
        ["systemctl", "--user", *words], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def look() -> dict[str, str]:
    """What systemd knows of the service."""
    shown = systemctl("show", UNIT, "--property", ",".join(SEEN)).stdout
    return dict(line.split("=", 1) for line in shown.splitlines())


def chat(prompt: str = "hi") -> str:
    """The reply to a prompt, or what came instead of one."""
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": prompt}]}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}/v1/chat/completions", body)
    request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return str(json.load(answer)["choices"][0]["message"]["content"])
    except urllib.error.HTTPError as error:
        with error:
            return f"HTTP {error.code} {json.load(error)['error']['code']}"
    except OSError as error:
        return f"no answer: {error}"


def health() -> str:
    """The status of /health and, unless it is well, its sentence."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=PATIENCE_S) as answer:
            return str(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return f"{error.code} {json.load(error)['error']['message']}"
    except OSError as error:
        return f"no answer: {error}"


def say(text: str) -> None:
    """One line below the scenario's."""
    print(f"    {text}", flush=True)


def show(state: dict[str, str], *names: str) -> None:
    """Say some of what systemd knows."""
    say(", ".join(f"{name}={state.get(name, '')}" for name in names))


def expect(what: str, seen: object, right: object) -> None:
    """Raise `Unlike` if it is not right."""
    if seen != right:
        raise Unlike(f"{what}: {seen!r} was seen, and should be {right!r}")


def wait_for(what: str, holds: Callable[[dict[str, str]], bool]) -> dict[str, str]:
    """Look at the service until it is as it should be."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds(state := look()):
        if time.monotonic() > deadline_s:
            raise Unlike(f"{what} was not seen within {PATIENCE_S} s; last: {state}")
        time.sleep(0.05)
    return state


def start(*, load_s: float = 0.2) -> dict[str, str]:
    """A service that runs, begun anew if none does."""
    SCRIPT.write_text(SCRIPT_TEXT.format(load_s=load_s))
    CONFIG.parent.mkdir(parents=True, exist_ok=True)
    CONFIG.write_text(GOOD_CONFIG)
    if look()["ActiveState"] != "active":
        systemctl("reset-failed", UNIT)
        answer = systemctl("start", UNIT)
        expect("systemctl start", (answer.returncode, answer.stderr), (0, ""))
    return look()


def restarted(before: dict[str, str], *, result: str, statuses: tuple[str, ...]) -> str:
    """It ended as it should, is up again by itself, and answers; by which status it ended."""
    ended = wait_for("the end", lambda now: now["SubState"] == "auto-restart" or now["MainPID"] != before["MainPID"])
    show(ended, "SubState", "Result", "ExecMainStatus")
    expect("how it ended", ended["Result"], result)
    expect("its status", ended["ExecMainStatus"] in statuses, True)
    count = str(int(before["NRestarts"]) + 1)
    after = wait_for("a restart", lambda now: now["ActiveState"] == "active" and now["NRestarts"] == count)
    show(after, "ActiveState", "NRestarts", "StatusText")
    expect("a chat after it", chat(), "hello")
    return ended["ExecMainStatus"]


# ---- scenarios ------------------------------------------------------------------------------------


def starts() -> None:
    """The start is over when, and not before, a chat is answered."""
    state = start()
    show(state, "ActiveState", "SubState", "StatusText")
    expect("the state", (state["ActiveState"], state["SubState"]), ("active", "running"))
    expect("the status", state["StatusText"], f"serving m on port {PORT}")
    expect("a chat at once", chat(), "hello")


def loads_longer_than_a_start_may_take() -> None:
    """A load of 20 s under TimeoutStartSec=12 is waited for, because it says that it goes on."""
    systemctl("stop", UNIT)
    SCRIPT.write_text(SCRIPT_TEXT.format(load_s=20))
    systemctl("start", "--no-block", UNIT)
    state = wait_for("a status while loading", lambda now: "configuring m" in now["StatusText"])
    show(state, "ActiveState", "StatusText")
    expect("the state while loading", state["ActiveState"], "activating")
    expect("a chat while loading", chat(), "HTTP 503 loading")
    state = wait_for("the end of the load", lambda now: now["ActiveState"] != "activating")
    show(state, "ActiveState", "Result", "NRestarts", "StatusText")
    expect("the state", (state["ActiveState"], state["NRestarts"]), ("active", "0"))
    expect("a chat", chat(), "hello")


def is_killed() -> None:
    """Killed with -9: a new process."""
    before = start()
    os.kill(int(before["MainPID"]), signal.SIGKILL)
    restarted(before, result="signal", statuses=("9",))


def hangs() -> None:
    """A device job that never ends: the client is told, exit code 75, a new process."""
    before = start()
    answer = chat("hang")
    say(f"the client: {answer}")
    expect("the answer", answer, "HTTP 503 timeout")
    restarted(before, result="exit-code", statuses=("75",))


def gets_stuck() -> None:
    """A Wait that never returns: health turns, the client is told, 75, a quiet device, and it serves again."""
    before = start()
    logged = SERVICE_LOG.stat().st_size
    began_s = time.monotonic()
    command = [sys.executable, __file__, "chat", "stuck"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
        seen = ""
        while client.poll() is None and time.monotonic() < began_s + PATIENCE_S:
            if (now := health()) != seen:
                say(f"{time.monotonic() - began_s:4.1f} s  health: {now}")
                seen = now
            if "past its bound" in seen:
                break
            time.sleep(0.1)
        expect("the health while the call is out", seen, "503 the service is failed: past its bound: engine ping")
        answer = client.communicate(timeout=PATIENCE_S)[0].strip()
    say(f"{time.monotonic() - began_s:4.1f} s  the client: {answer}")
    expect("the answer", answer, "HTTP 503 stuck_wait")
    restarted(before, result="exit-code", statuses=("75",))
    say(f"{time.monotonic() - began_s:4.1f} s  health: {health()}")
    with SERVICE_LOG.open("rb") as log:
        log.seek(logged)
        text = log.read().decode(errors="replace")
    lines = [line for line in text.splitlines() if line.startswith(("timestamp=", "error:"))]
    print("\n".join(f"    | {line}" for line in lines if "event=load_step" not in line), flush=True)
    for word in ("call_stuck", "engine_quarantined", "device_left_behind", "device_must_be_quiet", "device_quiet"):
        expect(f"{word} in the log", word in text, True)


def finds_the_device_at_work() -> None:
    """After 75 the device still has a job: 76, not configured, tried again, and it serves once the job is gone."""
    before = start()
    expect("the answer", chat("hang"), "HTTP 503 timeout")
    SCRIPT.write_text(SCRIPT_TEXT.format(load_s=0.2) + "left_over: 1\n")
    ended = wait_for("76", lambda now: now["ExecMainStatus"] == "76")
    show(ended, "SubState", "Result", "ExecMainStatus")
    expect("why", "error: the device is not quiet: after 2 s it still has 1 job" in SERVICE_LOG.read_text(), True)
    SCRIPT.write_text(SCRIPT_TEXT.format(load_s=0.2))
    after = wait_for("a start", lambda now: now["ActiveState"] == "active" and now["MainPID"] != before["MainPID"])
    show(after, "ActiveState", "NRestarts", "StatusText")
    expect("a chat after it", chat(), "hello")


def is_told_to_stop_too_early() -> None:
    """A drain time beyond the unit's TimeoutStopSec=40, drop-in included: 78, with both values."""
    systemctl("stop", UNIT)
    CONFIG.write_text(GOOD_CONFIG.replace("drain_s: 32", "drain_s: 45"))
    systemctl("start", UNIT)
    state = wait_for("the end", lambda now: now["ActiveState"] == "failed")
    show(state, "ActiveState", "SubState", "Result", "ExecMainStatus")
    expect("the end", state["ExecMainStatus"], "78")
    said = "timeouts.drain_s (45 s) must be less than the unit's TimeoutStopSec (40 s)"
    expect("why", said in SERVICE_LOG.read_text(), True)


def freezes() -> None:
    """A process that does nothing any more: the watchdog ends it, the log shows where it stood, a new process."""
    before = start()
    os.kill(int(before["MainPID"]), signal.SIGSTOP)
    # All threads stand still until systemd lets them go with SIGABRT. If another than the main one takes it, the main
    # thread runs while its stack is read, and faulthandler may end by SIGSEGV in the middle of it.
    ended = restarted(before, result="watchdog", statuses=("6", "11"))
    log = SERVICE_LOG.read_text(errors="replace")
    expect("that the log says so", "Fatal Python error: Aborted" in log, True)
    expect("the stacks in the log", "cli/serve.py" in log or ended == "11", True)


def is_slow() -> None:
    """A step of 10 s under WatchdogSec=6 is no hang."""
    before = start()
    expect("the reply", chat("slow"), "slow")
    after = look()
    show(after, "ActiveState", "NRestarts", "StatusText")
    expect("the process", (after["MainPID"], after["NRestarts"]), (before["MainPID"], before["NRestarts"]))


def stops() -> None:
    """Stopped: the open reply ends, exit code 0, no restart."""
    start()
    command = [sys.executable, __file__, "chat", "stream"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
        metrics = f"http://127.0.0.1:{PORT}/metrics"
        deadline_s = time.monotonic() + PATIENCE_S
        while b"vllm:num_requests_running 1.0" not in urllib.request.urlopen(metrics, timeout=PATIENCE_S).read():
            if time.monotonic() > deadline_s:
                raise Unlike("the open reply was not seen in /metrics")
        systemctl("stop", UNIT)
        reply = client.communicate(timeout=PATIENCE_S)[0].strip()
    say(f"the client: {reply}")
    state = look()
    show(state, "ActiveState", "Result", "ExecMainStatus")
    expect("the open reply", reply, "x" * 10)
    expect("the end", [state[name] for name in SEEN[:4]], ["inactive", "dead", "success", "0"])


def is_misconfigured() -> None:
    """A configuration that is refused: exit code 78, and it stays down."""
    systemctl("stop", UNIT)
    CONFIG.write_text(GOOD_CONFIG + "colour: blue\n")
    systemctl("start", UNIT)
    state = wait_for("the end", lambda now: now["ActiveState"] != "activating")
    show(state, "ActiveState", "SubState", "Result", "ExecMainStatus", "NRestarts")
    # "failed" is for good: a unit that is to be restarted is "activating (auto-restart)" until then.
    expect("the end", [state[name] for name in SEEN[:5]], ["failed", "failed", "exit-code", "78", "0"])


SHORT = (starts, is_killed, gets_stuck, freezes, stops, is_misconfigured)
ALL = (
    starts,
    loads_longer_than_a_start_may_take,
    is_killed,
    hangs,
    gets_stuck,
    finds_the_device_at_work,
    freezes,
    is_slow,
    stops,
    is_misconfigured,
    is_told_to_stop_too_early,
)


def run(*, short: bool) -> int:
    """Every scenario, whatever the ones before say; 0 if all was as it should be."""
    deadline_s = time.monotonic() + PATIENCE_S
    while systemctl("daemon-reload").returncode:
        if time.monotonic() > deadline_s:
            print("FAIL: the user manager does not answer\n" + tail(HOME.parent / "user-manager.log"))
            return 1
        time.sleep(0.1)
    print(subprocess.run(["systemctl", "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0])
    failed = []
    scenarios = SHORT if short else ALL
    for number, scenario in enumerate(scenarios, 1):
        began_s = time.monotonic()
        print(f"{number}. {scenario.__name__.replace('_', ' ')}: {scenario.__doc__}", flush=True)
        try:
            scenario()
            print(f"  ✓ {time.monotonic() - began_s:.1f} s", flush=True)
        except Exception as error:  # noqa: BLE001 - the others are still worth seeing
            failed.append(scenario.__name__)
            print(f"  ✗ {error if isinstance(error, Unlike) else traceback.format_exc()}", flush=True)
            print(tail(SERVICE_LOG), flush=True)
    systemctl("stop", UNIT)
    print(f"FAIL: {', '.join(failed)}" if failed else f"PASS: {len(scenarios)} scenarios")
    return 1 if failed else 0


def tail(log: Path, lines: int = 20) -> str:
    """The last lines of a log, set off from what the lab says."""
    text = log.read_text(errors="replace").splitlines() if log.exists() else ["(nothing was logged)"]
    return "\n".join(f"    | {line}" for line in text[-lines:])


if __name__ == "__main__":
    print(chat(sys.argv[2]))
