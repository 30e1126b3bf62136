"""The admin socket's file, and connections that behave badly."""

from __future__ import annotations

import socket
from contextlib import AsyncExitStack

import pytest
import trio

from calculet_trio.admin import server
from calculet_trio.admin.listening import CONNECTIONS_MAX, bound_socket
from calculet_trio.errors import Unavailable
from tests.admin.office import opened


def test_a_socket_that_a_dead_process_left_is_replaced(tmp_path):
    path = tmp_path / "admin.sock"
    bound_socket(path).close()
    assert path.is_socket()
    with bound_socket(path):
        assert path.is_socket()


def test_a_socket_at_which_somebody_listens_is_left_alone(tmp_path):
    path = tmp_path / "admin.sock"
    with bound_socket(path):
        with pytest.raises(Unavailable, match="another daemon listens"):
            bound_socket(path)
        assert path.is_socket()


def test_what_is_no_socket_is_left_alone(tmp_path):
    path = tmp_path / "admin.sock"
    path.write_text("mine")
    with pytest.raises(Unavailable, match="is no socket"):
        bound_socket(path)
    assert path.read_text() == "mine"


def test_a_path_that_no_socket_can_have_is_told_with_the_limit(tmp_path):
    with pytest.raises(Unavailable, match="at most 107"):
        bound_socket(tmp_path / ("x" * 200))
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="cannot listen"):
        bound_socket(tmp_path / "file" / "admin.sock")


async def test_the_file_of_another_daemon_is_not_taken_away(tmp_path):
    async with opened(tmp_path) as office:
        office.socket.unlink()
        other = socket.socket(socket.AF_UNIX)
        other.bind(str(office.socket))
    assert office.socket.is_socket()
    other.close()


async def test_operators_have_a_bound_and_leaving_makes_room(tmp_path):
    async with opened(tmp_path) as office:
        silent = []
        for _ in range(CONNECTIONS_MAX):
            silent.append(await trio.open_unix_socket(str(office.socket)))
        one_more = await trio.open_unix_socket(str(office.socket))
        with trio.fail_after(10):
            assert await one_more.receive_some() == b""
        await one_more.aclose()
        for stream in silent:
            await stream.aclose()
        with trio.fail_after(10):
            while (await _status(office)) != 200:  # noqa: ASYNC110
                await trio.sleep(0.01)


async def _status(office):
    """None while the server has not yet seen that others have left."""
    try:
        return (await office.ask("GET", "/admin/models"))[0]
    except ConnectionError:
        return None


async def test_one_that_does_not_read_holds_no_shutdown_up(tmp_path):
    async with AsyncExitStack() as stack, opened(tmp_path) as office:
        stream = await stack.enter_async_context(await trio.open_unix_socket(str(office.socket)))
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        with trio.move_on_after(2):
            while True:
                await stream.send_all(b"GET /admin/audit?last=1000 HTTP/1.1\r\nHost: x\r\n\r\n" * 100)
        before_s = trio.current_time()
    assert trio.current_time() - before_s < server.WRITE_STALL_S
