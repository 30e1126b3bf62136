"""``curl``, which is how everybody tries it first."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import pytest

from tests.clients.daemon import Daemon

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


def curl(*arguments: str) -> str:
    command = ["curl", "--silent", "--show-error", "--no-buffer", "--max-time", "30", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def body(content: str, **fields: Any) -> list[str]:
    said = {"model": "m", "messages": [{"role": "user", "content": content}], **fields}
    return ["-H", "Content-Type: application/json", "-d", json.dumps(said)]


def test_a_whole_reply(base_url: str) -> None:
    reply = json.loads(curl(f"{base_url}/v1/chat/completions", *body("hi")))
    assert reply["choices"][0]["message"]["content"] == "Hello world"


def test_a_stream_reads_as_lines(base_url: str) -> None:
    lines = curl("-N", f"{base_url}/v1/chat/completions", *body("hi", stream=True)).splitlines()
    assert lines[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "Hello world"


@pytest.mark.parametrize("version", ["--http1.0", "--http1.1", "--http2"])
def test_whatever_version_curl_would_like(base_url: str, version: str) -> None:
    assert json.loads(curl(version, f"{base_url}/health")) == {"status": "ok"}
    assert "[DONE]" in curl(version, f"{base_url}/v1/chat/completions", *body("hi", stream=True))


def test_a_body_too_large_is_told_so(base_url: str, tmp_path: Any) -> None:
    large = tmp_path / "large.json"
    large.write_text('{"x": "' + "y" * 9_000_000 + '"}')
    reply = curl("-H", "Content-Type: application/json", "-d", f"@{large}", f"{base_url}/v1/chat/completions")
    assert json.loads(reply)["error"]["code"] == "body_too_large"


def test_curl_that_is_stopped_ends_its_request(daemon: Daemon) -> None:
    released = daemon.control(state=True).get("released", 0)
    command = ["curl", "--silent", "--no-buffer", f"{daemon.base_url}/v1/chat/completions"]
    with subprocess.Popen([*command, *body("slowly", stream=True)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.terminate()
    daemon.control(wait_for={"released": released + 1}, timeout_s=20)
