"""Every call of the admin socket, over the real socket, and what the audit log says of it."""

from __future__ import annotations

import os
import stat

import pytest
import trio

from calculet_trio.admin.audit import records, verify
from tests.admin.office import opened


async def test_a_load_is_a_job_that_can_be_followed_to_its_end(tmp_path):
    async with opened(tmp_path) as office:
        status, begun = await office.ask("POST", "/admin/models/m/load", {"package": "p"})
        assert (status, begun) == (202, {"job": "op-1"})
        status, job = await office.ask("GET", "/admin/jobs/op-1")
        assert (status, job["state"], [line["text"] for line in job["progress"]]) == (200, "running", ["checking"])

        office.operations.gate.set()
        status, lines = await office.ask("GET", "/admin/jobs/op-1/events")

        assert [line.get("text") for line in lines[:-1]] == ["checking", "ready"]
        assert (lines[-1]["state"], lines[-1]["result"]) == ("done", {"generation": 2})
        assert office.operations.asked == [("load", "m", "p")]


async def test_operations_on_the_device_take_turns(tmp_path):
    async with opened(tmp_path) as office:
        await office.ask("POST", "/admin/models/m/load")
        for path in (
            "/admin/models/m/unload",
            "/admin/models/n/load",
            "/admin/models/m/rollback",
            "/admin/device/reset",
        ):
            status, reply = await office.ask("POST", path)
            assert status == 409
            assert "op-1" in reply["error"]["message"]
        office.operations.gate.set()
        await office.ask("GET", "/admin/jobs/op-1/events")
        assert (await office.ask("POST", "/admin/models/m/unload"))[0] == 202
        assert office.operations.asked == [("load", "m", None), ("unload", "m")]


async def test_a_job_is_cancelled_by_name_and_says_so(tmp_path):
    async with opened(tmp_path) as office:
        await office.ask("POST", "/admin/models/m/load")
        assert (await office.ask("DELETE", "/admin/jobs/op-1"))[0] == 200
        _, lines = await office.ask("GET", "/admin/jobs/op-1/events")
        assert lines[-1]["state"] == "cancelled"


async def test_a_failed_operation_keeps_its_sentence_and_hint(tmp_path):
    async with opened(tmp_path) as office:
        office.operations.gate.set()
        await office.ask("POST", "/admin/models/m/load", {"package": "bad"})
        _, lines = await office.ask("GET", "/admin/jobs/op-1/events")
        assert (lines[-1]["state"], lines[-1]["error"], lines[-1]["hint"]) == (
            "failed",
            "the package is bad",
            "build it again",
        )


async def test_short_calls_are_answered_at_once(tmp_path):
    async with opened(tmp_path) as office:
        assert (await office.ask("GET", "/admin/models"))[1]["models"][0]["phases_s"] == {"configuring": 0.25}
        assert (await office.ask("POST", "/admin/device/trust-engines"))[1] == {"put_aside": "recovery"}
        assert (await office.ask("POST", "/admin/drain"))[1] == {"status": "draining"}
        assert (await office.ask("GET", "/admin/trace?seconds=0.5"))[0] == 200
        assert (await office.ask("POST", "/admin/debug-dump"))[1]["path"] == "dump-1.json"
        assert (await office.ask("POST", "/admin/debug-dump", {"include_prompts": "yes, include prompts"}))[0] == 200
        status, reply = await office.ask("POST", "/admin/reload")
        assert status == 422
        assert "weight is -1" in reply["error"]["message"]
        assert office.operations.asked == [("trust",), ("drain",), ("trace", 0.5), ("dump", False), ("dump", True)]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "word"),
    [
        ("GET", "/admin/jobs/op-9", None, 404, "no job"),
        ("GET", "/admin/registers", None, 404, "Not Found"),
        ("POST", "/admin/models", None, 405, "Method Not Allowed"),
        ("POST", "/admin/models/m/load", b"{", 400, "not JSON"),
        ("POST", "/admin/models/m/load", b"[1]", 400, "JSON object"),
        ("POST", "/admin/models/m/load", b"[" * 10_000, 400, "not JSON"),
        ("POST", "/admin/models/m/load", b'{"package": NaN}', 400, "NaN is no number of JSON's"),
        ("POST", "/admin/models/m/load", b'{"package": 1e400}', 400, "string"),
        ("POST", "/admin/models/m/load", b'{"package": ' + b"9" * 4000 + b"}", 400, "string"),
        ("POST", "/admin/models/m%0Aready/load", {"package": "p"}, 400, "'m\\nready' cannot be an alias"),
        ("POST", f"/admin/models/{'m' * 129}/load", {"package": "p"}, 400, "cannot be an alias; allowed: 1 to 128"),
        ("POST", "/admin/models/m/load", {"package": 7}, 400, "string"),
        ("POST", "/admin/models/m/load", {"pakage": "p"}, 400, "pakage is not an argument"),
        ("POST", "/admin/device/trust-engines", {"engine": "pong"}, 400, "engine is not an argument"),
        ("POST", "/admin/models/m/load", b" " * 20_000, 413, "Too Large"),
        ("POST", "/admin/debug-dump", {"include_prompts": True}, 400, "string"),
        ("POST", "/admin/debug-dump", {"include_prompts": "yes"}, 400, "yes, include prompts"),
        ("GET", "/admin/trace?seconds=61", None, 400, "at most 60"),
        ("GET", "/admin/trace?seconds=nan", None, 400, "above 0"),
        ("GET", "/admin/audit?last=0", None, 400, "1 to 1000"),
        ("GET", "/admin/audit?last=99999999999", None, 400, "1 to 1000"),
    ],
)
async def test_what_is_wrong_is_told_and_does_nothing(tmp_path, method, path, body, status, word):
    async with opened(tmp_path) as office:
        got, reply = await office.ask(method, path, body)
        assert got == status
        assert word in reply["error"]["message"]
        assert office.operations.asked == []


async def test_every_call_is_on_record_with_who_made_it_before_it_is_carried_out(tmp_path):
    async with opened(tmp_path) as office:
        office.operations.gate.set()
        await office.ask("POST", "/admin/models/m/load", {"package": "p\nGET /forged"})
        await office.ask("GET", "/admin/jobs/op-1/events")
        with trio.fail_after(10):
            while not any(record["event"] == "ended" for record in records(office.audit.directory)):  # noqa: ASYNC110
                await trio.sleep(0.01)
        found = list(records(office.audit.directory))
        assert verify(office.audit.directory).problem is None
    asked = found[0]
    assert (asked["event"], asked["call"], asked["uid"], asked["pid"]) == (
        "asked",
        "POST /admin/models/m/load",
        os.getuid(),
        os.getpid(),
    )
    assert asked["arguments"] == {"package": "p\nGET /forged"}
    assert ("answered", 202) in [(record["event"], record.get("status")) for record in found]
    assert ("ended", "done") in [(record["event"], record.get("outcome")) for record in found]


async def test_what_cannot_be_recorded_is_not_done(tmp_path):
    async with opened(tmp_path) as office:

        def full(_fields):
            raise OSError(28, "No space left on device")

        office.audit.append = full
        status, reply = await office.ask("POST", "/admin/drain")
        assert status == 503
        assert "No space left" in reply["error"]["message"]
        assert office.operations.asked == []


async def test_the_socket_is_this_users_alone_and_goes_with_the_daemon(tmp_path):
    async with opened(tmp_path) as office:
        assert stat.S_IMODE(office.socket.stat().st_mode) == 0o600
        assert stat.S_IMODE(office.socket.parent.stat().st_mode) == 0o700
    assert not office.socket.exists()
