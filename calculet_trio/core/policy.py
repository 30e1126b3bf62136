"""Frozen policy: the numbers an operator may set, as the core reads them.

``calculet_trio.settings`` builds these from configuration; the defaults are those of S §15.

Source: SPEC section 4, 5, 10 (S §5.1, §6, §15).
"""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class AdmissionPolicy:
    """The budgets of S §5.1. ``max_sequences`` and ``max_kv_tokens`` of None mean: what the package holds."""

    max_sequences: int | None = None
    max_kv_tokens: int | None = None
    max_waiting_requests: int = 128
    max_waiting_prompt_tokens: int = 262_144
    max_inflight_jobs: int = 1
    deadline_default_s: float = 120.0


@attrs.frozen(kw_only=True)
class QueuePolicy:
    """Service opportunities of S §6: decode and the three prefill classes, and where the classes end."""

    decode_weight: int = 8
    short_prefill_weight: int = 4
    medium_prefill_weight: int = 2
    long_prefill_weight: int = 1
    short_prefill_max_tokens: int = 512
    medium_prefill_max_tokens: int = 4096


@attrs.frozen(kw_only=True)
class FairnessPolicy:
    """``cost = prompt_tokens + decode_cost_weight * requested_output_tokens`` (S §5.3)."""

    decode_cost_weight: float = 1.0


@attrs.frozen(kw_only=True)
class Policy:
    """All of it, for one alias."""

    admission: AdmissionPolicy = attrs.field(factory=AdmissionPolicy)
    queues: QueuePolicy = attrs.field(factory=QueuePolicy)
    fairness: FairnessPolicy = attrs.field(factory=FairnessPolicy)
