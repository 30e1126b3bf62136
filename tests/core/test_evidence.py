"""Evidence: nothing is earned by a claim, nor by what was shown on another package, runtime or board."""

from __future__ import annotations

import attrs
import pytest

from calculet_trio.core.context_operations import CAPABILITY_OF, ContextOperation, judge
from calculet_trio.core.evidence import (
    CAPABILITIES,
    CHUNKED_PREFILL_CONDITIONS,
    Combination,
    Evidence,
    EvidenceRecord,
    Level,
    batch_capability,
)

HERE = Combination("sha of this package", "0.7.6", "calculet")


def record(*passed: str, combination: Combination = HERE, name: str = "r1") -> EvidenceRecord:
    return EvidenceRecord(combination, frozenset(passed), name)


@pytest.mark.parametrize("name", sorted(set(CAPABILITIES) - {"append"}))
def test_nothing_but_the_baseline_is_earned_without_a_record(name: str) -> None:
    evidence = Evidence(HERE)
    standing = evidence.standing(CAPABILITIES[name])
    assert not evidence.allows(name)
    assert standing.level is CAPABILITIES[name].unproven is not Level.C0
    assert standing.record is None
    assert CAPABILITIES[name].missing in standing.missing


def test_the_baseline_needs_no_record() -> None:
    assert Evidence(HERE).allows("append")
    assert Evidence(HERE).standing(batch_capability(1)).earned


def test_a_record_that_shows_every_condition_earns_it() -> None:
    evidence = Evidence(HERE, [record("remove_tail_boundaries", "something else")])
    standing = evidence.standing(CAPABILITIES["remove_tail"])
    assert (standing.earned, standing.level, standing.record, standing.missing) == (True, Level.C0, "r1", "")
    assert not evidence.allows("ping_pong")


@pytest.mark.parametrize(
    "change",
    [{"package_sha256": "another"}, {"runtime_version": "0.7.7"}, {"board_kind": "emulated"}],
    ids=["package", "runtime", "board"],
)
def test_what_was_shown_elsewhere_is_not_heard(change: dict[str, str]) -> None:
    elsewhere = attrs.evolve(HERE, **change)
    assert not Evidence(HERE, [record("remove_tail_boundaries", combination=elsewhere)]).allows("remove_tail")


@pytest.mark.parametrize("absent", CHUNKED_PREFILL_CONDITIONS)
def test_chunked_prefill_needs_all_five_conditions(absent: str) -> None:
    shown = [condition for condition in CHUNKED_PREFILL_CONDITIONS if condition != absent]
    standing = Evidence(HERE, [record(*shown)]).standing(CAPABILITIES["incremental_prefill"])
    assert not standing.earned
    assert standing.missing.endswith(f"conformance cases: {absent}")


def test_conditions_are_not_gathered_from_several_records() -> None:
    halves = [record(*CHUNKED_PREFILL_CONDITIONS[:3]), record(*CHUNKED_PREFILL_CONDITIONS[3:], name="r2")]
    standing = Evidence(HERE, halves).standing(CAPABILITIES["incremental_prefill"])
    assert not standing.earned
    assert standing.missing.endswith("conformance cases: chunk_boundaries, golden_and_performance")


def test_the_latest_record_is_named() -> None:
    records = [record("shift", name="old"), record("shift", name="new"), record(name="empty")]
    assert Evidence(HERE, records).standing(CAPABILITIES["shift"]).record == "new"


def test_a_larger_batch_is_earned_by_itself() -> None:
    eight = batch_capability(8)
    assert (eight.name, eight.unproven) == ("batch:8", Level.C3)
    assert not Evidence(HERE).standing(eight).earned
    assert Evidence(HERE, [record(*eight.conditions)]).standing(eight).earned


def test_every_context_operation_has_its_capability_and_only_append_is_free() -> None:
    assert set(CAPABILITY_OF) == set(ContextOperation)
    allowed = [operation for operation in ContextOperation if judge(operation, Evidence(HERE)).earned]
    assert allowed == [ContextOperation.APPEND]
    shown = Evidence(HERE, [record("remove_tail_boundaries")])
    assert judge(ContextOperation.REMOVE_TAIL, shown).earned
