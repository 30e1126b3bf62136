"""Keys and tenants on the real process: who may ask what, and SIGHUP (reports B36, B54)."""

from __future__ import annotations

import http.client
import json
import signal
import tempfile
import threading
import time
from pathlib import Path

import pytest
import yaml

from calculet_trio.settings.key_ring import key_digest
from tests.clients.daemon import Daemon

ACME, BYTES, OPERATOR = b"acme-key", b"caf\xe9", b"operator-key"
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]})
ONE_LANE = {
    "model": "m",
    "lanes": 1,
    "profiles": [1],
    "replies": [{"tokens": [{"text": "x", "gate": "g"}], "afterwards": "eos"}],
}


def configuration(**acme: object) -> dict[str, object]:
    return {
        "schema": "calculet-service/v1",
        "tenants": [
            {"name": "acme", "key_sha256": [key_digest(ACME), key_digest(BYTES)], **acme},
            {"name": "ops", "key_sha256": key_digest(OPERATOR), "role": "operator"},
        ],
    }


@pytest.fixture(scope="module")
def keyed():
    with tempfile.TemporaryDirectory(prefix="ct") as directory:
        daemon = Daemon(Path(directory), config=configuration())
        try:
            yield daemon, Path(directory) / "config.yaml"
            assert daemon.stop() == 0
        finally:
            daemon.kill()


def ask(daemon, headers=(), *, method="POST", path="/v1/chat/completions"):
    """Status, headers and body of one request with exactly these headers beside the body's."""
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=30)
    connection.putrequest(method, path)
    body = BODY.encode() if method == "POST" else b""
    for name, value in (("Content-Type", "application/json"), ("Content-Length", str(len(body))), *headers):
        connection.putheader(name, value)
    connection.endheaders(body)
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, response.headers, text


@pytest.mark.parametrize(
    "headers",
    [
        [("Authorization", b"Bearer " + ACME)],
        [("Authorization", b"bearer " + ACME)],
        [("Authorization", b"Bearer  " + ACME)],
        [("Authorization", b"Bearer " + BYTES)],
        [("x-api-key", ACME)],
    ],
)
def test_a_known_key_is_served_however_it_is_presented(keyed, headers):
    assert ask(keyed[0], headers)[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("Authorization", b"Bearer")],
        [("Authorization", b"Bearer caf\xe8")],
        [("Authorization", b"Bearer wrong")],
        [("Authorization", b"Basic eA==")],
        [("Authorization", b"Bearer " + ACME), ("Authorization", b"Bearer " + ACME)],
        [("Authorization", b"Bearer " + ACME), ("x-api-key", ACME)],
        [("Authorization", b"Bearer " + key_digest(ACME).encode())],
    ],
)
def test_anything_else_is_told_401_in_our_shape_and_names_no_key(keyed, headers):
    status, answered, text = ask(keyed[0], headers)
    assert (status, answered["WWW-Authenticate"]) == (401, "Bearer")
    assert json.loads(text)["error"]["code"] == "invalid_api_key"
    assert "acme" not in keyed[0].stderr()


def test_health_needs_no_key_and_metrics_need_an_operators(keyed):
    daemon = keyed[0]
    for path in ("/health", "/health/live", "/v1/health"):
        assert ask(daemon, method="GET", path=path)[0] == 200
    assert ask(daemon, method="GET", path="/metrics")[0] == 401
    assert ask(daemon, [("x-api-key", ACME)], method="GET", path="/metrics")[0] == 403
    assert ask(daemon, [("x-api-key", OPERATOR)], method="GET", path="/metrics")[0] == 200
    assert ask(daemon, method="GET", path="/v1/models")[0] == 401


def test_slots_and_device_show_a_tenant_its_own_and_an_operator_all():
    config = configuration()
    config["tenants"].insert(1, {"name": "other", "key_sha256": key_digest(b"other-key")})
    script = {**ONE_LANE, "lanes": 2, "replies": [{"tokens": [{"text": "secret", "gate": "g"}]}]}
    with tempfile.TemporaryDirectory(prefix="ct") as directory:
        daemon = Daemon(Path(directory), script, config=config)
        try:
            asking = threading.Thread(target=ask, args=(daemon, [("x-api-key", ACME)]))
            asking.start()
            daemon.control(wait_for={"waiting": 1}, timeout_s=30)
            seen = {
                key: json.loads(ask(daemon, [("x-api-key", key)], method="GET", path="/slots")[2])
                for key in (ACME, b"other-key", OPERATOR)
            }
            assert ask(daemon, method="GET", path="/slots")[0] == 401
            assert [(slot["id"], slot["tenant"]) for slot in seen[ACME]] == [(0, "acme"), (1, None)]
            assert [(slot["id"], slot["is_processing"]) for slot in seen[b"other-key"]] == [(1, False)]
            assert seen[OPERATOR] == seen[ACME]
            assert "secret" not in str(seen)
            assert ask(daemon, method="GET", path="/calrt/device")[0] == 401
            device = json.loads(ask(daemon, [("x-api-key", ACME)], method="GET", path="/calrt/device")[2])
            assert device["status"] == {"ok": True, "word": "scripted"}
            assert device["memory_total_bytes"] == 2 * 2048 * 8
            daemon.control(release="g")
            asking.join(30)
            assert daemon.stop() == 0
        finally:
            daemon.kill()


def test_sighup_changes_limits_at_once_and_a_bad_file_changes_nothing(keyed):
    daemon, file = keyed

    def reload_until(word):
        before = daemon.stderr().count(word)
        daemon.process.send_signal(signal.SIGHUP)
        deadline_s = time.monotonic() + 20
        while daemon.stderr().count(word) == before:
            assert time.monotonic() < deadline_s, daemon.stderr()
            assert ask(daemon, method="GET", path="/health")[0] == 200

    def statuses(count):
        return [ask(daemon, [("x-api-key", ACME)])[0] for _ in range(count)]

    assert statuses(4) == [200] * 4
    file.write_text(yaml.safe_dump(configuration(requests_per_s=0.01)))
    reload_until("tenants_reloaded")
    assert statuses(3) == [200, 429, 429]
    _status, headers, text = ask(daemon, [("x-api-key", ACME)])
    assert json.loads(text)["error"]["code"] == "rate_limited"
    assert int(headers["Retry-After"]) > 50
    file.write_text("schema: calculet-service/v1\ntenants: [{nmae: acme}]")
    reload_until("reload_refused")
    assert statuses(1) == [429]
    assert ask(daemon, [("x-api-key", OPERATOR)])[0] == 200
    file.write_text(yaml.safe_dump(configuration()))
    reload_until("tenants_reloaded")
    assert statuses(4) == [200] * 4


def test_a_page_of_an_allowed_origin_can_read_why_it_was_refused():
    with tempfile.TemporaryDirectory(prefix="ct") as directory:
        config = configuration() | {"listen": {"cors_origins": ["http://o"]}}
        daemon = Daemon(Path(directory), config=config)
        try:
            status, headers, _ = ask(daemon, [("Origin", "http://o"), ("x-api-key", "wrong")])
            assert (status, headers["Access-Control-Allow-Origin"]) == (401, "http://o")
            status, headers, _ = ask(daemon, [("Origin", "http://other"), ("x-api-key", "wrong")])
            assert (status, headers["Access-Control-Allow-Origin"]) == (401, None)
            assert daemon.stop() == 0
        finally:
            daemon.kill()


def test_one_tenants_flood_lets_another_in_after_the_job_that_runs():
    order = []

    def one(name, key):
        assert ask(daemon, [("x-api-key", key)])[0] == 200
        order.append(name)

    with tempfile.TemporaryDirectory(prefix="ct") as directory:
        daemon = Daemon(Path(directory), ONE_LANE, config=configuration())
        try:
            threads = [threading.Thread(target=one, args=("flood", ACME)) for _ in range(6)]
            for thread in threads:
                thread.start()
            until_waiting(daemon, 5)
            threads.append(threading.Thread(target=one, args=("other", OPERATOR)))
            threads[-1].start()
            until_waiting(daemon, 6)
            daemon.control(release="g", count=7)
            for thread in threads:
                thread.join(30)
            assert order.index("other") <= 1, order
            assert len(order) == 7
            assert daemon.stop() == 0
        finally:
            daemon.kill()


def until_waiting(daemon, count):
    """Ask the metrics until so many requests wait; each question takes a round trip."""
    deadline_s = time.monotonic() + 20
    while (
        f"vllm:num_requests_waiting {count}.0"
        not in ask(daemon, [("x-api-key", OPERATOR)], method="GET", path="/metrics")[2]
    ):
        assert time.monotonic() < deadline_s
