"""Evidence: what this package on this runtime and this board has been *shown* to do.

A capability is off until the conformance suite has passed for exactly this combination and a record says
so. A claim of a runtime, a header of an SDK or a finished design earns nothing. Evidence of an emulated
board counts for emulated boards only.

Source: SPEC section 1 "Capability ladder", 12 (S §1, §6, §9.3, §19, §20).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final

import attrs


class Level(Enum):
    """The ladder of S §1."""

    C0 = "C0"
    """In production: shown here, or the baseline that every package must pass to be Ready."""
    C1 = "C1"
    """The SDK hints at it."""
    C2 = "C2"
    """Built, behind a switch."""
    C3 = "C3"
    """Needs artefacts that the vendor has not delivered."""
    C4 = "C4"
    """Not supported by the runtime."""


@attrs.frozen
class Capability:
    """Something that may be earned.

    Args:
        name: ``ping_pong``, ``batch:8`` ...
        unproven: its level while no record exists.
        conditions: the named cases that must all have passed.
        missing: what must happen before it can be earned at all, for people.
    """

    name: str
    unproven: Level
    conditions: tuple[str, ...]
    missing: str


CHUNKED_PREFILL_CONDITIONS: Final = (
    "incremental_prefill_supported",
    "kv_equal_to_whole_prefill",
    "positions_and_csrs_clear",
    "chunk_boundaries",
    "golden_and_performance",
)
"""All five of S §6: runtime support, equal KV, clear positions, the boundaries 15/16/17 …, golden and speed."""

PREFIX_REUSE_CONDITIONS: Final = (*CHUNKED_PREFILL_CONDITIONS[:-1], "remove_tail_boundaries", "prefix_reuse")
"""A retained sequence is shortened and prefilled further: both must have been shown, and the two together.

Of S §6's five the last is left out: how long a prompt in pieces takes. Here none is cut.
"""

REPLY_REUSE_CONDITIONS: Final = (*PREFIX_REUSE_CONDITIONS, "reply_reuse")
"""Beside all that: what decode writes is, to the bit, what a prefill writes."""

BATCH_CONDITIONS: Final = ("lanes_1_to_b", "inactive_lane_writes_no_kv", "mixed_lengths")
"""Each lane is by itself, whoever else takes part."""

_BASELINE: Final = Capability("append", Level.C0, (), "")

CAPABILITIES: Final[dict[str, Capability]] = {
    capability.name: capability
    for capability in (
        _BASELINE,
        Capability("ping_pong", Level.C2, ("ping_pong_two_jobs",), "milestone M2 on this board"),
        Capability("remove_tail", Level.C2, ("remove_tail_boundaries",), "its boundary cases on this board"),
        Capability(
            "incremental_prefill", Level.C3, CHUNKED_PREFILL_CONDITIONS, "the vendor's word on incremental prefill"
        ),
        Capability("prefix_reuse", Level.C3, PREFIX_REUSE_CONDITIONS, "the vendor's word on incremental prefill"),
        Capability("reply_reuse", Level.C3, REPLY_REUSE_CONDITIONS, "decode that computes as prefill does"),
        Capability("lane_fault_isolation", Level.C3, ("lane_fault_isolation",), "the vendor's failure contract"),
        Capability("co_residency", Level.C3, ("co_residency",), "a runtime with model handles"),
        Capability("shift", Level.C2, ("shift",), "closed semantics of DoShift"),
        Capability("copy_sequence", Level.C3, ("copy_sequence",), "an adapter that implements it"),
        Capability("keep_one_sequence", Level.C3, ("keep_one_sequence",), "an adapter that implements it"),
        Capability("position_add", Level.C3, ("position_add",), "an adapter that implements it"),
        Capability("position_divide", Level.C3, ("position_divide",), "an adapter that implements it"),
        Capability("save_sequence", Level.C3, ("save_sequence",), "an adapter that implements it"),
        Capability("load_sequence", Level.C3, ("load_sequence",), "an adapter that implements it"),
        Capability("multi_device", Level.C4, ("multi_device",), "a runtime that opens more than one device"),
    )
}


def batch_capability(compiled_batch: int) -> Capability:
    """``batch:B``: decoding B lanes in one job. B=1 is the baseline."""
    if compiled_batch == 1:
        return Capability("batch:1", Level.C0, (), "")
    missing = f"a B={compiled_batch} package and milestone M3"
    return Capability(f"batch:{compiled_batch}", Level.C3, BATCH_CONDITIONS, missing)


@attrs.frozen
class Combination:
    """What evidence is about. The board's kind is read from the hardware, never from a library's name.

    Args:
        package_sha256: of the package's manifest.
        runtime_version: as the runtime reports it.
        board_kind: ``cpu``, ``emulated``, ``calculet`` ...
    """

    package_sha256: str
    runtime_version: str
    board_kind: str


@attrs.frozen
class EvidenceRecord:
    """One run of the conformance suite.

    Args:
        combination: what was tried.
        passed: names of the cases that passed.
        record_id: where to read more.
    """

    combination: Combination
    passed: frozenset[str]
    record_id: str


@attrs.frozen
class Standing:
    """How a capability stands.

    Args:
        level: C0 once earned.
        earned: whether it may be used and advertised.
        record: the id of the evidence, or None.
        missing: what is needed to earn it; empty once earned.
    """

    capability: str
    level: Level
    earned: bool
    record: str | None
    missing: str


class Evidence:
    """The records that count for one combination.

    Args:
        combination: what is being served.
        records: any records; those of other combinations are not heard.
    """

    def __init__(self, combination: Combination, records: Iterable[EvidenceRecord] = ()) -> None:
        self.combination = combination
        self._records = tuple(record for record in records if record.combination == combination)

    def standing(self, capability: Capability) -> Standing:
        """Whether one record shows all of the capability's conditions; the latest that does is named."""
        if not capability.conditions:
            return Standing(capability.name, capability.unproven, capability.unproven is Level.C0, None, "")
        for record in reversed(self._records):
            if record.passed.issuperset(capability.conditions):
                return Standing(capability.name, Level.C0, True, record.record_id, "")
        best: frozenset[str] = max(
            (record.passed.intersection(capability.conditions) for record in self._records),
            key=len,
            default=frozenset(),
        )
        open_cases = ", ".join(name for name in capability.conditions if name not in best)
        return Standing(
            capability.name, capability.unproven, False, None, f"{capability.missing}; conformance cases: {open_cases}"
        )

    def allows(self, name: str) -> bool:
        """Whether the named capability of `CAPABILITIES` has been earned."""
        return self.standing(CAPABILITIES[name]).earned
