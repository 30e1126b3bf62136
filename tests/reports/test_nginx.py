"""B42 behind Debian's nginx, with its defaults: buffering, HTTP/1.0 to us, sixty seconds of patience."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.wire import WAIT_S, connected, get, post
from tests.clients.daemon import free_port
from tests.reports.served import CHAT, Served, ask

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")

pytestmark = pytest.mark.skipif(NGINX is None, reason="nginx is not installed (Debian: apt-get install nginx-light)")

CONFIG = """\
daemon off;
pid {directory}/nginx.pid;
error_log {directory}/error.log warn;
events {{}}
http {{
    access_log off;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://127.0.0.1:{behind};
        }}
    }}
}}
"""
"""Only where it listens and writes is ours; all that concerns proxying is nginx's default."""


@pytest.fixture
def proxied(served: Served) -> Iterator[int]:
    """The port of an nginx before the daemon."""
    assert NGINX is not None
    with tempfile.TemporaryDirectory(prefix="ct") as directory:
        Path(directory).chmod(0o755)  # nginx's workers are another account where its master is root
        port = free_port()
        config = Path(directory) / "nginx.conf"
        config.write_text(CONFIG.format(directory=directory, port=port, behind=served.daemon.port))
        with subprocess.Popen([NGINX, "-c", str(config)], stderr=subprocess.PIPE, text=True) as process:
            try:
                yield port
            finally:
                process.terminate()
                _, said = process.communicate(timeout=WAIT_S)
        assert "[emerg]" not in said
        assert "[error]" not in (Path(directory) / "error.log").read_text()


async def test_b42_nginx_passes_the_first_event_on_before_the_second_token_is_made(
    served: Served, proxied: int
) -> None:
    wire = await connected(proxied)
    await wire.stream.send_all(post(CHAT, ask("brief", stream=True)))
    await served.release("brief")
    await wire.read_until(b'"content":"one"')
    assert b" two" not in wire.raw
    await served.release("brief")
    await wire.read_until(b"data: [DONE]")
    await wire.aclose()


async def test_b42_nginx_passes_replies_errors_and_large_bodies(served: Served, proxied: int) -> None:
    wire = await connected(proxied)
    assert (await wire.answer(get("/health"))).json() == {"status": "ok"}
    assert (await wire.answer(post(CHAT, ask("hi")))).json()["choices"][0]["message"]["content"] == "Hello world"
    assert (await wire.answer(post(CHAT, ask("hi", top_p=7)))).error["param"] == "top_p"
    assert (await wire.answer(post(CHAT, ask("x" * 500_000)))).error["code"] == "context_length_exceeded"
    await wire.aclose()


async def test_b45_a_client_that_leaves_nginx_is_a_client_that_leaves_us(served: Served, proxied: int) -> None:
    wire = await connected(proxied)
    await wire.stream.send_all(post(CHAT, ask("proxied", stream=True)))
    await served.release("proxied")
    await wire.read_until(b'"content":"x "')
    async with served.freeing():
        await wire.aclose()
        await served.release("proxied", 100)  # nginx hears of it in its own time
