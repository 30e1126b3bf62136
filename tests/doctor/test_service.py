"""Checks of the address, the port and the service, against real sockets with servers of every kind behind them."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import attrs
import pytest

from calculet_trio.doctor import addresses
from calculet_trio.doctor.finding import Mark
from calculet_trio.doctor.host_tree import HostTree
from calculet_trio.doctor.service import probe
from calculet_trio.doctor.surroundings import Surroundings
from tests.doctor.recorded import assert_found, surroundings

JOIN_S = 30
LIVE = {"status": "ok"}


@pytest.fixture
def around(tmp_path: Path) -> Surroundings:
    return surroundings(HostTree(tmp_path), tmp_path)


@contextmanager
def serving(around: Surroundings, answers: dict[str, tuple[int, Any]]) -> Iterator[Surroundings]:
    """A server on a free port that knows these paths; everything else is a 404."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answers.get(self.path, (404, {"error": "no such page"}))
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield attrs.evolve(around, port=server.server_address[1])
        finally:
            server.shutdown()
            thread.join(JOIN_S)


@contextmanager
def listening(around: Surroundings, answer: Callable[[socket.socket], None] | None = None) -> Iterator[Surroundings]:
    """A listener that treats each connection with ``answer``; without one it never accepts any."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ended = threading.Event()

        def accept() -> None:
            while not ended.is_set():
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    continue
                with connection:
                    assert answer is not None
                    answer(connection)

        thread = threading.Thread(target=accept)
        if answer is not None:
            listener.settimeout(0.05)
            thread.start()
        try:
            yield attrs.evolve(around, port=listener.getsockname()[1])
        finally:
            ended.set()
            if answer is not None:
                thread.join(JOIN_S)


def say_banner(connection: socket.socket) -> None:
    """What a mail server does."""
    connection.recv(4096)
    connection.sendall(b"220 mail.example ESMTP\r\n")


def hang_up(connection: socket.socket) -> None:
    """Close without a word, all read."""
    connection.recv(4096)


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]  # type: ignore[no-any-return]


# ---- port -----------------------------------------------------------------------------------------------


def test_a_free_port_is_well(around: Surroundings, free_port: int) -> None:
    assert_found("port", attrs.evolve(around, port=free_port), Mark.OK, f"127.0.0.1:{free_port} is free")


def test_a_port_that_our_service_holds_is_well(around: Surroundings) -> None:
    with serving(around, {"/health/live": (200, LIVE)}) as there:
        assert_found("port", there, Mark.OK, "held by calculet-trio")


def test_a_port_that_another_server_holds_is_a_failure(around: Surroundings) -> None:
    with serving(around, {"/health": (200, LIVE)}) as there:  # llama-server's answer, without /health/live
        assert_found("port", there, Mark.FAILURE, "another program")


@pytest.mark.parametrize("answer", [say_banner, hang_up])
def test_a_port_that_something_else_holds_is_a_failure(
    around: Surroundings, answer: Callable[[socket.socket], None]
) -> None:
    with listening(around, answer) as there:
        assert_found("port", there, Mark.FAILURE, "another program")
        assert_found("health", there, Mark.FAILURE)


def test_a_program_that_does_not_answer_is_a_failure(around: Surroundings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "ANSWER_S", 0.05)
    with listening(around) as there:
        assert_found("port", there, Mark.FAILURE, "does not answer")
        assert_found("health", there, Mark.FAILURE, "does not answer")


def test_a_port_that_needs_power_is_a_failure(around: Surroundings, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_self: socket.socket, _address: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    assert_found("port", around, Mark.FAILURE, "Permission denied")


# ---- health ---------------------------------------------------------------------------------------------


def health(status: int, body: Any) -> dict[str, tuple[int, Any]]:
    return {"/health/live": (200, LIVE), "/health": (status, body)}


def test_a_ready_service_is_well(around: Surroundings) -> None:
    with serving(around, health(200, LIVE)) as there:
        assert_found("health", there, Mark.OK, "ready")


@pytest.mark.parametrize(
    ("status", "mark"),
    [
        ("loading", Mark.WARNING),
        ("draining", Mark.WARNING),
        ("recovering", Mark.WARNING),
        ("failed", Mark.FAILURE),
        ("unheard of", Mark.FAILURE),
    ],
)
def test_a_service_that_is_not_ready_says_why(around: Surroundings, status: str, mark: Mark) -> None:
    body = {"status": status, "error": {"message": f"the service is {status}: golden"}}
    with serving(around, health(503, body)) as there:
        assert_found("health", there, mark, "503", f"the service is {status}: golden")


def test_the_status_line_counts_and_not_the_word_alone(around: Surroundings) -> None:
    with serving(around, health(503, LIVE)) as there:
        assert_found("health", there, Mark.FAILURE, "503")
    with serving(around, {"/health": (200, LIVE), "/health/live": (500, LIVE)}) as there:
        assert_found("port", there, Mark.FAILURE, "another program")


@pytest.mark.parametrize("body", [b"", b"[]", b"\xff", b'{"error": 3}', b"[" * 60_000])
def test_a_broken_answer_of_a_service_is_a_failure(around: Surroundings, body: bytes) -> None:
    with serving(around, health(200, body)) as there:
        assert_found("health", there, Mark.FAILURE, "200")


def test_no_service_is_a_warning(around: Surroundings, free_port: int) -> None:
    assert_found("health", attrs.evolve(around, port=free_port), Mark.WARNING, "no service runs")


def test_another_server_is_not_taken_for_ours(around: Surroundings) -> None:
    with serving(around, {"/health": (200, LIVE)}) as there:
        assert_found("health", there, Mark.WARNING, "is not calculet-trio")


def test_what_a_server_says_cannot_command_the_terminal(around: Surroundings) -> None:
    body = {"status": "failed", "error": {"message": "\x1b[2J\nall is well\u202e" + "x" * 10_000}}
    with serving(around, health(503, body)) as there:
        assert_found("health", there, Mark.FAILURE, "\ufffd[2J all is well\ufffdxxx")


# ---- the address ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "localhost"])
def test_loopback_is_well(around: Surroundings, host: str) -> None:
    assert_found("listen", attrs.evolve(around, host=host), Mark.OK, host)


def test_an_address_that_others_reach_is_a_warning(around: Surroundings) -> None:
    assert_found("listen", attrs.evolve(around, host="0.0.0.0"), Mark.WARNING, "0.0.0.0", "no key")


def test_an_address_that_others_reach_with_keys_is_well(around: Surroundings) -> None:
    assert_found("listen", attrs.evolve(around, host="0.0.0.0", asks_for_keys=True), Mark.OK, "must show a key")


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host", "x" * 300, "a..b"])
def test_an_address_that_is_not_this_machines_is_a_failure(around: Surroundings, host: str) -> None:
    assert_found("listen", attrs.evolve(around, host=host), Mark.FAILURE, host[:50])
    assert_found("port", attrs.evolve(around, host=host), Mark.FAILURE, host[:50])


def test_a_name_of_which_one_address_works_is_enough(monkeypatch: pytest.MonkeyPatch, free_port: int) -> None:
    both = [(socket.AF_INET, "192.0.2.1"), (socket.AF_INET, "127.0.0.1")]
    monkeypatch.setattr(addresses, "resolved", lambda _host: both)
    assert addresses.try_bind("somewhere", free_port) == ["127.0.0.1"]


def test_a_port_taken_on_one_address_of_a_name_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        both = [(socket.AF_INET, "127.0.0.2"), (socket.AF_INET, "127.0.0.1")]
        monkeypatch.setattr(addresses, "resolved", lambda _host: both)
        with pytest.raises(OSError, match="Address already in use"):
            addresses.try_bind("somewhere", listener.getsockname()[1])


def test_wildcards_are_reached_by_loopback_and_ipv6_is_bracketed() -> None:
    assert [addresses.to_connect(host) for host in ("0.0.0.0", "::", "10.0.0.1")] == ["127.0.0.1", "::1", "10.0.0.1"]
    assert addresses.shown("::1", 80) == "[::1]:80"
    assert addresses.shown("127.0.0.1", 80) == "127.0.0.1:80"
    assert addresses.is_loopback("::1")
    assert not addresses.is_loopback("fe80::1%eth0")
