"""What the service manager hears, and that nothing fails when nobody listens."""

from __future__ import annotations

import os
import socket
from contextlib import contextmanager

import attrs
import pytest
import structlog
import trio

from calculet_trio.shell import notify
from calculet_trio.shell.notify import Notifier, NotifySocket, notify_socket, watchdog_s
from tests.shell.house import ask, living, until

HELLO = {"replies": [{"tokens": ["a"]}]}


@attrs.define
class Manager:
    """A service manager's end of the socket."""

    socket: socket.socket
    address: str

    def heard(self) -> list[dict[str, str]]:
        """Every datagram that has come since the last look."""
        found = []
        while True:
            try:
                datagram = self.socket.recv(4096).decode()
            except BlockingIOError:
                return found
            found.append(dict(line.split("=", 1) for line in datagram.split("\n")))


@contextmanager
def listening(address):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.setblocking(False)
        listener.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        yield Manager(listener, address)


@pytest.fixture
def manager(tmp_path):
    with listening(str(tmp_path / "notify")) as manager:
        yield manager


@attrs.define
class Daemon:
    """What a notifier asks of its daemon, in a test's hands."""

    hindrance: str | None = None
    doing: str | None = None

    def notifier(self, address, period_s=None):
        return Notifier(
            NotifySocket(address),
            watchdog_s=period_s,
            hindrance=lambda: self.hindrance,
            doing=lambda: self.doing,
        )


@contextmanager
def running(nursery, notifier):
    scope = trio.CancelScope()

    async def run():
        with scope:
            await notifier.run()

    nursery.start_soon(run)
    try:
        yield
    finally:
        scope.cancel()
        notifier.close()


# ---- the socket ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_reaches_both_kinds_of_sockets(kind, tmp_path):
    with listening(f"@calculet-test-{os.getpid()}" if kind == "abstract" else str(tmp_path / "s")) as manager:
        end = notify_socket({"NOTIFY_SOCKET": manager.address})
        assert end.send("READY=1", "STATUS=x")
        assert manager.heard() == [{"READY": "1", "STATUS": "x"}]
        end.close()


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "@"}, {"NOTIFY_SOCKET": "vsock:2:1"}])
def test_no_socket_that_can_be_spoken_to(environ):
    assert notify_socket(environ) is None


@pytest.mark.parametrize("address", ["/nowhere/at/all", "@nobody-listens-here", f"/{'long' * 100}", "/zero\0byte"])
def test_an_unreachable_socket_is_logged_once_and_never_an_error(address):
    with structlog.testing.capture_logs() as logs:
        end = NotifySocket(address)
        assert [end.send("READY=1") for _ in range(3)] == [False] * 3
        end.close()
        assert not end.send("READY=1")
    assert [entry["event"] for entry in logs] == ["service_manager_unreachable"]


def test_a_full_socket_does_not_block(manager):
    end = NotifySocket(manager.address)
    taken = 0
    while end.send("WATCHDOG=1"):
        taken += 1
        assert taken < 100_000
    assert len(manager.heard()) == taken
    assert end.send("WATCHDOG=1")
    end.close()


@pytest.mark.parametrize(
    ("environ", "period_s"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "7"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdogs_period(environ, period_s):
    assert watchdog_s(environ, 7) == period_s


# ---- the phases, in virtual time ------------------------------------------------------------------


async def test_a_long_load_asks_for_more_time_again_and_again(manager, nursery, autojump_clock):
    daemon = Daemon(doing="loading m")
    heard = []
    with running(nursery, daemon.notifier(manager.address, 90.0)):
        for _ in range(121):
            await trio.sleep(1)
            heard += manager.heard()  # some kernels keep no more than ten
    assert len(heard) == 1 + 121 // notify.REPEAT_S
    assert all(int(word["EXTEND_TIMEOUT_USEC"]) > 2 * notify.REPEAT_S * 1e6 for word in heard)
    assert {word["STATUS"] for word in heard} == {"loading m"}
    assert not any("READY" in word or "WATCHDOG" in word for word in heard)


async def test_a_load_that_stands_still_gets_no_more_time(manager, nursery, autojump_clock):
    daemon = Daemon(hindrance="past its bound: configuring m")
    with running(nursery, daemon.notifier(manager.address)):
        await trio.sleep(61)
        assert manager.heard() == [{"STATUS": "no progress: past its bound: configuring m"}]
        daemon.hindrance = None
        await trio.sleep(notify.REPEAT_S)
        assert "EXTEND_TIMEOUT_USEC" in manager.heard()[-1]


async def test_the_watchdog_is_fed_at_half_its_period(manager, nursery, autojump_clock):
    notifier = Daemon().notifier(manager.address, 40.0)
    with running(nursery, notifier):
        await trio.sleep(1)
        manager.heard()
        notifier.ready("serving m")
        assert manager.heard() == [{"READY": "1", "STATUS": "serving m"}]
        await trio.sleep(101)
        assert manager.heard() == [{"WATCHDOG": "1"}] * 5  # at 5, then every 20


async def test_without_a_watchdog_nothing_is_repeated(manager, nursery, autojump_clock):
    notifier = Daemon().notifier(manager.address)
    notifier.ready("serving m")
    with running(nursery, notifier):
        await trio.sleep(100)
        assert manager.heard() == [{"READY": "1", "STATUS": "serving m"}]


async def test_a_load_beside_what_serves_is_the_status_until_it_has_ended(manager, nursery, autojump_clock):
    daemon = Daemon()
    notifier = daemon.notifier(manager.address)
    notifier.ready("serving m")
    with running(nursery, notifier):
        await trio.sleep(1)
        manager.heard()
        for doing in ("configuring n", "golden of n", None):
            daemon.doing = doing
            await trio.sleep(2 * notify.REPEAT_S)
            assert manager.heard() == [{"STATUS": doing or "serving m"}]


async def test_the_watchdog_starves_without_progress_and_soon_hears_of_its_return(manager, nursery, autojump_clock):
    daemon = Daemon()
    notifier = daemon.notifier(manager.address, 40.0)
    notifier.ready("serving m")
    with running(nursery, notifier), structlog.testing.capture_logs() as logs:
        await trio.sleep(1)
        manager.heard()
        daemon.hindrance = "the loop has not completed a round"
        await trio.sleep(100)
        assert manager.heard() == [{"STATUS": "no progress: the loop has not completed a round"}]
        daemon.hindrance = None
        await trio.sleep(40 / 8)
        assert manager.heard()[:2] == [{"STATUS": "serving m"}, {"WATCHDOG": "1"}]
    assert [entry["event"] for entry in logs] == ["no_progress"]


async def test_stopping_says_why_and_how_long_and_keeps_the_watchdog(manager, nursery, autojump_clock):
    notifier = Daemon().notifier(manager.address, 40.0)
    notifier.ready("serving m")
    with running(nursery, notifier):
        await trio.sleep(1)
        manager.heard()
        notifier.stopping("two\nlines", within_s=32.0)
        assert manager.heard() == [{"STOPPING": "1", "EXTEND_TIMEOUT_USEC": "32000000", "STATUS": "two lines"}]
        notifier.ready("too late")
        await trio.sleep(40)
        assert manager.heard() == [{"WATCHDOG": "1"}] * 2


async def test_a_load_that_stands_still_again_is_said_again(manager, nursery, autojump_clock):
    daemon = Daemon(doing="loading m")
    with running(nursery, daemon.notifier(manager.address)):
        for _ in range(2):
            daemon.hindrance = "past its bound: configuring m"
            await trio.sleep(2 * notify.REPEAT_S)
            assert {"STATUS": "no progress: past its bound: configuring m"} in manager.heard()
            daemon.hindrance = None
            await trio.sleep(2 * notify.REPEAT_S)
            manager.heard()


async def test_a_status_that_was_not_taken_is_new_at_the_next_beat(tmp_path, nursery, autojump_clock):
    daemon = Daemon()
    notifier = daemon.notifier(str(tmp_path / "late"))
    notifier.ready("serving m")
    with running(nursery, notifier):
        daemon.doing = "configuring n"
        await trio.sleep(2 * notify.REPEAT_S)
        with listening(str(tmp_path / "late")) as manager:
            await trio.sleep(2 * notify.REPEAT_S)
            assert {"STATUS": "configuring n"} in manager.heard()


async def test_what_did_not_arrive_is_said_again(tmp_path, nursery, autojump_clock):
    notifier = Daemon().notifier(str(tmp_path / "late"), 40.0)
    with running(nursery, notifier):
        notifier.ready("serving m")
        with listening(str(tmp_path / "late")) as manager:
            await trio.sleep(notify.REPEAT_S + 1)
            assert {"READY": "1", "STATUS": "serving m"} in manager.heard()


# ---- the daemon -----------------------------------------------------------------------------------


@pytest.fixture
def watched(manager, monkeypatch):
    """The environment of a service with a watchdog."""
    monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
    monkeypatch.setenv("WATCHDOG_USEC", "50000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    return manager


async def test_a_daemon_tells_of_its_whole_life(watched):
    async with living({"load_s": 0.2, **HELLO}, ready=False) as house:
        await until(lambda: house.alive._models.step is not None and house.alive._models.step.doing == "configuring m")
        assert all("READY" not in word and "EXTEND_TIMEOUT_USEC" in word for word in watched.heard())
        with trio.fail_after(10):
            heard = []
            while not any("READY" in word for word in heard):
                await trio.sleep(0.002)
                heard += watched.heard()
        assert any(word["STATUS"].startswith("configuring m, for ") for word in heard)
        assert (await ask(house.service))[0] == "a"
        await until(lambda: {"WATCHDOG": "1"} in watched.heard())
    [farewell] = [word for word in watched.heard() if "STOPPING" in word]
    assert farewell["STATUS"] == "letting open replies end"
    assert int(farewell["EXTEND_TIMEOUT_USEC"]) > 5e6  # the house's drain time


async def test_a_long_step_and_an_empty_queue_are_progress(watched):
    script = {"replies": [{"tokens": [{"text": "a", "gate": "g"}]}]}
    async with living(script) as house:
        for _ in range(5):
            await until(lambda: {"WATCHDOG": "1"} in watched.heard())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, house.service)
            await until(lambda: house.alive._executor.bounds_s)
            watched.heard()
            for _ in range(5):
                await until(lambda: {"WATCHDOG": "1"} in watched.heard())
            house.runtime.gates.release("g")


async def test_a_loop_that_takes_no_round_is_no_progress():
    async with living(HELLO) as house:
        progress = house.alive._progress
        progress.hindrance()
        rounds = house.alive._loop.rounds
        await until(lambda: house.alive._loop.rounds > rounds)
        assert progress.hindrance() is None
        assert progress.hindrance() == "the loop has not completed a round"


async def test_a_call_past_its_bound_is_no_progress():
    async with living(HELLO) as house:
        house.alive._executor._bounds_s["engine ping"] = trio.current_time() - 60
        await until(lambda: house.alive._progress.hindrance() == "past its bound: engine ping")
        del house.alive._executor._bounds_s["engine ping"]
