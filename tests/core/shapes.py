"""Small models and policies for the core's tests, and requests out of the blue for the modules below it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from calculet_trio.core.evidence import BATCH_CONDITIONS, CAPABILITIES, Combination, Evidence, EvidenceRecord
from calculet_trio.core.lanes import KvLane
from calculet_trio.core.policy import AdmissionPolicy, Policy, RecoveryPolicy
from calculet_trio.core.profiles import BatchProfile, InactiveLanePolicy, LaneLayout, ModelShape, PrefillProfile
from calculet_trio.core.request import Request, RequestEvent
from calculet_trio.ids import GenerationId, LaneId, RequestId, SequenceId

GENERATION = GenerationId(1)
ALIAS = "model"


def small_shape(
    lanes: int = 4,
    *,
    batches: tuple[int, ...] = (1, 2, 4),
    max_seq: int = 64,
    prefill_max_seq: int | None = None,
    holds: Mapping[int, int] | None = None,
    pools: Mapping[int, str] | None = None,
    layout: LaneLayout = LaneLayout.CONTIGUOUS,
    lane_fault_isolation: bool = False,
) -> ModelShape:
    """A model of a few lanes; profiles that are larger than it are left out.

    ``holds`` and ``pools`` say, by batch, which profiles have a ``max_seq`` or a KV pool of their own.
    """
    return ModelShape(
        prefill=PrefillProfile("prefill", max_seq if prefill_max_seq is None else prefill_max_seq),
        decode=tuple(
            BatchProfile(
                f"decode_b{batch}",
                batch,
                (holds or {}).get(batch, max_seq),
                InactiveLanePolicy.VALID_MASK,
                (pools or {}).get(batch, "main"),
            )
            for batch in batches
            if batch <= lanes
        ),
        lanes=lanes,
        max_seq=max_seq,
        vocab_size=1_000_000,
        layout=layout,
        lane_fault_isolation=lane_fault_isolation,
    )


def evidence_of(capability: str) -> Evidence:
    """Evidence that has earned the one capability, beside all batches."""
    here = Combination("sha of this package", "0.7.6", "emulated")
    passed = frozenset((*CAPABILITIES[capability].conditions, *BATCH_CONDITIONS))
    return Evidence(here, [EvidenceRecord(here, passed, "record 1")])


NO_RESETS = RecoveryPolicy(max_resets_per_10min=0)
"""A fault that nobody can look past is the end of the device; `tests.core.test_recovery` has resets."""


def small_policy(**admission: Any) -> Policy:
    """The default policy with other admission budgets, and without resets."""
    return Policy(admission=AdmissionPolicy(**admission), recovery=NO_RESETS)


def make_request(
    number: int,
    *,
    tenant: str = "a",
    prompt_tokens: int = 3,
    max_new_tokens: int = 4,
    deadline_s: float = 1000.0,
    order_deadline_s: float | None = None,
) -> Request:
    """A request that was just created, with its prompt known already."""
    request = Request(
        RequestId(number),
        tenant=tenant,
        alias=ALIAS,
        generation=GENERATION,
        arrived_s=0.0,
        deadline_s=deadline_s,
        order_deadline_s=deadline_s if order_deadline_s is None else order_deadline_s,
    )
    request.prompt = tuple(range(1, prompt_tokens + 1))
    request.max_new_tokens = max_new_tokens
    return request


def waiting_request(number: int, **known: Any) -> Request:
    """A request that waits for a lane."""
    request = make_request(number, **known)
    request.advance(RequestEvent.QUEUE)
    return request


def admitted_request(number: int, *, lane: int, **known: Any) -> Request:
    """A request that holds a lane and waits for its prefill."""
    request = waiting_request(number, **known)
    request.advance(RequestEvent.ADMIT)
    request.lane = KvLane(LaneId(lane))
    request.lane.reserve(request.id, request.tokens_at_most)
    request.lane.allocated(SequenceId(100 + number))
    return request


def decoding_request(number: int, *, lane: int, **known: Any) -> Request:
    """A request whose prompt is committed and whose first token was sampled."""
    request = admitted_request(number, lane=lane, **known)
    assert request.lane is not None
    request.lane.submit(len(request.prompt))
    request.lane.commit()
    request.prefilled_tokens = len(request.prompt)
    request.weight = 1.0  # charged, as every admitted request is
    request.advance(RequestEvent.SUBMIT)
    request.advance(RequestEvent.COMMIT)
    request.generated.append(1000 * number + 1)
    return request
