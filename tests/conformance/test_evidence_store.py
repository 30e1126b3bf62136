"""Evidence on disk: what is read at load, what a later failure takes back, and what a damaged file cannot do."""

from __future__ import annotations

import errno
import json
import os

import attrs
import pytest

from calculet_trio.conformance import evidence_store
from calculet_trio.conformance.evidence_store import KEPT_PER_COMBINATION
from calculet_trio.conformance.result import Result, Verdict
from calculet_trio.conformance.run_record import RunRecord, combination_of
from calculet_trio.core.evidence import CAPABILITIES, CHUNKED_PREFILL_CONDITIONS
from calculet_trio.core.jobs import EngineId
from calculet_trio.errors import Unavailable
from calculet_trio.packages.signing import SigningKey
from calculet_trio.packages.trust import Trust
from calculet_trio.runtimes.port import DeviceInfo
from tests.conformance.stores import store_in

DEVICE = DeviceInfo("cpu", "a processor", (EngineId.PING,), {"onnxruntime": "1.32.0"})
PACKAGE = "ab" * 32
HERE = combination_of(PACKAGE, DEVICE)


def record(number=0, *, combination=HERE, passed=CHUNKED_PREFILL_CONDITIONS, failed=()):
    """A finished run, the ``number``th of its day."""
    results = [Result(name, Verdict.PASS, "seen", 0.5) for name in passed]
    results += [Result(name, Verdict.FAIL, "row 3: a logit differs", 0.5) for name in failed]
    return RunRecord(
        record_id=f"{combination.board_kind}-20261129T10{number:02}00Z-0123abcd",
        begun_at=f"2026-11-29T10:{number:02}:00+00:00",
        suite_version="0.1.0",
        combination=combination,
        model="m",
        device="a processor",
        short=False,
        results=tuple(results),
    )


def may_chunk(store, combination=HERE):
    return store.found().evidence(combination).allows("incremental_prefill")


def test_a_kept_record_is_read_again_as_it_was(tmp_path):
    store = store_in(tmp_path / "state" / "evidence")
    assert store.found().records == ()
    store.keep(record())
    assert store.found() == type(store.found())((record(),), ())
    assert may_chunk(store)
    standing = store.found().evidence(HERE).standing(CAPABILITIES["incremental_prefill"])
    assert standing.record == record().record_id


@pytest.mark.parametrize("missing", CHUNKED_PREFILL_CONDITIONS)
def test_all_five_conditions_are_needed(tmp_path, missing):
    store = store_in(tmp_path)
    store.keep(record(passed=[name for name in CHUNKED_PREFILL_CONDITIONS if name != missing]))
    assert not may_chunk(store)
    assert missing in store.found().evidence(HERE).standing(CAPABILITIES["incremental_prefill"]).missing


@pytest.mark.parametrize(
    "other",
    [
        attrs.evolve(HERE, package_sha256="cd" * 32),
        attrs.evolve(HERE, runtime_version="onnxruntime 1.33.0"),
        attrs.evolve(HERE, board_kind="emulated"),
    ],
)
def test_it_counts_for_its_own_package_runtime_and_board_only(tmp_path, other):
    store = store_in(tmp_path)
    store.keep(record(combination=other))
    assert may_chunk(store, other)
    assert not may_chunk(store)


def test_every_version_that_the_runtime_reports_is_part_of_the_combination():
    device = attrs.evolve(DEVICE, versions={"driver": "2", "calrt": "1"})
    assert combination_of(PACKAGE, device).runtime_version == "calrt 1, driver 2"


def test_a_later_failure_takes_back_and_a_later_pass_gives_again(tmp_path):
    store = store_in(tmp_path)
    store.keep(record(1))
    store.keep(record(2, passed=(), failed=["chunk_boundaries"]))
    assert not may_chunk(store)
    store.keep(record(3))
    assert may_chunk(store)
    assert store.found().evidence(HERE).standing(CAPABILITIES["incremental_prefill"]).record == record(3).record_id


def test_a_later_failure_of_something_else_takes_nothing_back(tmp_path):
    store = store_in(tmp_path)
    store.keep(record(1))
    store.keep(record(2, passed=(), failed=["mixed_lengths"]))
    assert may_chunk(store)


def test_the_oldest_of_a_combination_are_forgotten(tmp_path):
    store = store_in(tmp_path)
    elsewhere = record(0, combination=attrs.evolve(HERE, board_kind="emulated"))
    store.keep(elsewhere)
    for number in range(KEPT_PER_COMBINATION + 3):
        store.keep(record(number))
    kept = [each for each in store.found().records if each.combination == HERE]
    assert [each.record_id for each in kept] == [record(n).record_id for n in range(3, KEPT_PER_COMBINATION + 3)]
    assert elsewhere in store.found().records


# ---- damage -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": "calculet-evidence/v2"}, "this version reads"),
        ({"record_id": "../../elsewhere"}, "record_id"),
        ({"results": [{"case": "x", "verdict": "MAYBE", "why": "", "took_s": 0}]}, "results[0].verdict"),
        ({"surprise": 1}, "unknown keys: surprise"),
    ],
)
def test_a_damaged_record_earns_nothing_and_is_named(tmp_path, change, words):
    store = store_in(tmp_path)
    path = store.keep(record())
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    found = store.found()
    assert found.records == ()
    assert len(found.unreadable) == 1
    assert words in found.unreadable[0]
    assert not may_chunk(store)


def test_garbage_beside_good_records_stops_nobody(tmp_path):
    store = store_in(tmp_path)
    store.keep(record())
    (tmp_path / "zero.json").write_bytes(b"")
    (tmp_path / "huge.json").write_bytes(b" " * (5 << 20))
    (tmp_path / "notes.txt").write_text("not looked at")
    assert may_chunk(store)
    assert len(store.found().unreadable) == 2


def test_a_state_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(Unavailable, match="cannot be written"):
        store_in(tmp_path / "file" / "evidence", keys=tmp_path / "keys").keep(record())


class FullDisk:
    """A file that takes nothing."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def write(self, _data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_room_is_asked_for_and_nothing_is_left_of_it(tmp_path, monkeypatch):
    store = store_in(tmp_path / "evidence", keys=tmp_path / "keys")
    store.require_room()
    assert list(store.root.iterdir()) == []
    monkeypatch.setattr(evidence_store, "TemporaryFile", lambda **_: FullDisk())
    with pytest.raises(Unavailable, match="No space left"):
        store.require_room()


# ---- an interrupted run -------------------------------------------------------------------------------


def test_an_interrupted_run_is_found_until_it_is_finished(tmp_path):
    store = store_in(tmp_path)
    assert store.interrupted(HERE) is None
    begun = record(passed=["golden"])
    store.remember(begun)
    assert store.interrupted(HERE) == begun
    assert store.interrupted(attrs.evolve(HERE, board_kind="emulated")) is None
    assert store.found().records == (), "what is not finished is no evidence"
    store.keep(begun)
    assert store.interrupted(HERE) is None


def test_a_run_begins_under_a_name_that_its_file_may_have():
    begun = RunRecord.begin(HERE, DEVICE, model="m", short=True)
    assert begun.record_id.startswith("cpu-")
    assert (begun.results, begun.short, begun.is_emulated) == ((), True, False)


# ---- signatures ---------------------------------------------------------------------------------------


def refusal(store):
    found = store.found()
    assert found.records == ()
    [sentence] = found.unreadable
    return sentence


def test_what_nobody_signed_or_somebody_changed_earns_nothing(tmp_path):
    store = store_in(tmp_path)
    path = store.keep(record())
    kept = path.read_text()
    record().save(path)
    assert "earns nothing: it is not signed" in refusal(store)
    changed = json.loads(kept)
    changed["results"][0]["why"] = "seen by somebody else"
    path.write_text(json.dumps(changed))
    assert "signed was something else" in refusal(store)
    path.write_text(kept)
    assert may_chunk(store)


def test_another_machines_key_counts_only_where_it_is_named(tmp_path):
    path = store_in(tmp_path, keys=tmp_path / "theirs").keep(record())
    assert path.exists()
    mine = store_in(tmp_path, keys=tmp_path / "mine")
    assert "not trusted for it" in refusal(mine)
    named = Trust(named=(SigningKey.local(tmp_path / "theirs").public,))
    mine._trust = lambda: named
    assert may_chunk(mine)


def test_this_machines_key_is_not_enough_for_a_board(tmp_path):
    store = store_in(tmp_path)
    board = attrs.evolve(HERE, board_kind="calculet")
    store.keep(record(combination=board))
    assert "not trusted for it" in refusal(store)


def test_the_cases_whose_latest_verdict_is_fail_are_known(tmp_path):
    store = store_in(tmp_path)
    store.keep(record(1, passed=["one"], failed=["two", "three"]))
    store.keep(record(2, passed=["two"], failed=["four"]))
    store.keep(record(3, combination=attrs.evolve(HERE, board_kind="emulated"), passed=["three"]))
    assert store.found().failures(HERE) == {"three", "four"}
