"""The audit log: what was written can be read, and what was changed shows."""

from __future__ import annotations

import json
import os
import stat
from contextlib import closing

import pytest

from calculet_trio.admin import audit
from calculet_trio.admin.audit import GENESIS, AuditLog, records, segments, verify
from calculet_trio.errors import Unavailable


def written(directory, count=5):
    with closing(AuditLog(directory)) as log:
        return [log.append({"event": "asked", "call": f"POST /admin/{number}"}) for number in range(count)]


def append(directory, **fields):
    with closing(AuditLog(directory)) as log:
        log.append(fields)


def test_records_are_chained_private_and_numbered(tmp_path):
    digests = written(tmp_path)
    found = list(records(tmp_path))
    assert [record["n"] for record in found] == [1, 2, 3, 4, 5]
    assert [record["before"] for record in found] == [GENESIS, *digests[:-1]]
    assert verify(tmp_path) == audit.Verdict(5, digests[-1])
    assert stat.S_IMODE(segments(tmp_path)[0].stat().st_mode) == 0o600


def test_a_log_is_continued_by_the_next_process(tmp_path):
    first = written(tmp_path, 2)
    second = written(tmp_path, 2)
    assert verify(tmp_path) == audit.Verdict(4, second[-1])
    assert list(records(tmp_path))[2]["before"] == first[-1]


@pytest.mark.parametrize(
    "text",
    ["a\nb", "a\r\n{}", "\u2028\u0085\x00\x1b[2J", '"}\n{"n":1', "\ud800", "ü" * 10_000, "\x00" * 9_000, "😀" * 900],
)
def test_no_text_makes_a_second_line_or_a_long_one(tmp_path, text):
    written(tmp_path, 1)
    append(tmp_path, arguments={"package": text, "nested": {"deep": [text]}}, query=text)
    assert verify(tmp_path).records == 2
    [path] = segments(tmp_path)
    assert len(path.read_bytes().splitlines()) == len(path.read_text().splitlines()) == 2
    assert max(map(len, path.read_bytes().splitlines())) < audit.LINE_BYTES


@pytest.mark.parametrize(
    "value",
    ["ü" * 512, "\U0010ffff" * 512, "\x00" * 512, '"' * 512, 10**4000, -(10**18), 1e308, float("inf"), float("nan")],
)
def test_the_longest_record_that_anybody_can_ask_for_is_one_that_can_be_read(tmp_path, value):
    written(tmp_path, 1)
    most = {f"{number}{'😀' * 70}": value for number in range(20)}
    append(tmp_path, event="asked", call="POST /" + "ü" * 9_000, arguments=most, query=value, pid=1, uid=2, gid=3)
    written(tmp_path, 1)  # the next process continues it
    assert verify(tmp_path).records == 3
    assert verify(tmp_path).problem is None


@pytest.mark.parametrize("line", range(5))
def test_a_changed_record_a_missing_one_and_a_doubled_one_are_found_where_they_are(tmp_path, line):
    written(tmp_path)
    [path] = segments(tmp_path)
    whole = path.read_bytes().splitlines(keepends=True)

    changed = json.loads(whole[line])
    changed["call"] = "POST /admin/forged"
    for lines in (
        [*whole[:line], json.dumps(changed).encode() + b"\n", *whole[line + 1 :]],
        [*whole[: line + 1], *whole[line:]],
        [*whole[:line], b"\n", *whole[line:]],
    ):
        path.write_bytes(b"".join(lines))
        verdict = verify(tmp_path)
        assert verdict.problem is not None
        assert line <= verdict.records <= line + 1
        assert f"after record {verdict.records}" in verdict.problem
    if 0 < line < 4:
        path.write_bytes(b"".join([*whole[:line], *whole[line + 1 :]]))
        assert f"after record {line}" in verify(tmp_path).problem


def test_a_cut_end_shows_to_who_noted_the_head(tmp_path):
    digests = written(tmp_path)
    [path] = segments(tmp_path)
    assert verify(tmp_path, head=digests[2]).problem is None
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    assert verify(tmp_path).problem is None
    assert "no longer there" in verify(tmp_path, head=digests[-1]).problem
    assert verify(tmp_path, head=digests[2]).problem is None


@pytest.mark.parametrize("kept", [0, 1, 20])
def test_a_torn_last_line_is_set_aside_and_that_is_on_record(tmp_path, kept):
    written(tmp_path, 3)
    [path] = segments(tmp_path)
    with path.open("ab") as file:
        file.write(path.read_bytes().splitlines()[0][: kept or None][:kept] or b"{")
    append(tmp_path, event="asked")
    assert verify(tmp_path).problem is None
    assert [record["event"] for record in records(tmp_path)][3:] == ["torn_line_set_aside", "asked"]
    assert len(list(tmp_path.glob("*.torn-*"))) == 1


def test_a_log_whose_first_line_was_torn_begins_anew(tmp_path):
    (tmp_path / "audit-000000000001.jsonl").write_bytes(b'{"n":')
    AuditLog(tmp_path).close()
    assert verify(tmp_path).records == 1


def test_a_log_with_a_foreign_end_is_not_written_to(tmp_path):
    written(tmp_path, 2)
    [path] = segments(tmp_path)
    with path.open("ab") as file:
        file.write(b'{"n": 3}\n')
    with pytest.raises(Unavailable, match="no record of ours"):
        AuditLog(tmp_path)


def test_a_log_stays_within_its_bound_and_says_what_it_let_go(tmp_path, monkeypatch):
    monkeypatch.setattr(audit, "SEGMENT_BYTES", 600)
    monkeypatch.setattr(audit, "SEGMENTS_KEPT", 3)
    digests = written(tmp_path, 40)
    assert len(segments(tmp_path)) == 3
    verdict = verify(tmp_path)
    assert (verdict.problem, verdict.head) == (None, digests[-1])
    assert "let go" in verdict.note
    assert verdict.records == len(list(records(tmp_path)))
    segments(tmp_path)[1].unlink()
    assert "does not follow" in verify(tmp_path).problem


def test_a_directory_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="cannot be written"):
        AuditLog(tmp_path / "file")


def test_an_empty_file_is_no_log_yet(tmp_path):
    digest = written(tmp_path, 2)[-1]
    (tmp_path / "audit-000000000003.jsonl").write_bytes(b"")
    log = AuditLog(tmp_path)
    log.append({"event": "after"})
    log.close()
    assert (verify(tmp_path).problem, verify(tmp_path).records) == (None, 3)
    assert list(records(tmp_path))[-1]["before"] == digest


def test_what_a_full_disk_did_not_take_whole_is_not_left_in_part(tmp_path, monkeypatch):
    written(tmp_path, 2)
    log = AuditLog(tmp_path)
    write = os.write

    def full(descriptor, data):
        if len(data) < 20:
            raise OSError(28, "No space left on device")
        return write(descriptor, data[:10])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space"):
            log.append({"event": "lost"})
    log.append({"event": "kept"})
    log.close()
    assert (verify(tmp_path).problem, verify(tmp_path).records) == (None, 3)


def test_two_processes_do_not_write_one_log(tmp_path):
    with closing(AuditLog(tmp_path)), pytest.raises(Unavailable, match="another process writes"):
        AuditLog(tmp_path)
    AuditLog(tmp_path).close()


@pytest.mark.parametrize(
    "line",
    [
        b'{"n":2,"before":"x","a":NaN,"digest":"y"}',
        b'{"n":2,"before":"x","a":' + b"1" * 9_000 + b"}",
        b'{"n":2,"before":"x","a":' + b"[" * 9_000,
        b'[{"n":2}]',
        b'["digest"]',
        b"3",
        b"null",
        b"\xff\xfe\x00",
        b"x" * 40_000,
    ],
)
def test_what_is_put_in_is_named_by_its_place_whatever_it_is(tmp_path, line):
    written(tmp_path, 2)
    [path] = segments(tmp_path)
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(whole[0] + line + b"\n" + whole[1])
    assert "after record 1: a line that is no record" in verify(tmp_path).problem
    assert [record["n"] for record in records(tmp_path)] == [1]
