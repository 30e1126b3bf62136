"""Frozen policy: the numbers an operator may set, as the core reads them.

``calculet_trio.settings`` builds these from configuration; the defaults are those of S §15, and of
``config/scheduler.yaml``, which says why.

Source: SPEC section 4, 5, 6, 9, 10 (S §5, §6, §7, §15).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

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


class TurnPolicy(Enum):
    """How decode and the prefill classes take turns."""

    WRR = "wrr"
    """Weighted round robin of jobs, as S §6 writes it: a 22 s prefill counts like a 17 ms decode step."""
    DRR = "drr"
    """Deficit round robin of device-seconds, measured online: weights are shares of the device's time."""


@attrs.frozen(kw_only=True)
class QueuePolicy:
    """Service opportunities of S §6: decode and the three prefill classes, and where the classes end.

    Args:
        policy: what a weight buys.
        long_quota: the largest share of device time, over the last minute, that long prefills may take while
            other work waits; 1 is no quota.
        prefill_chunk_tokens: the piece in which a prompt is prefilled once the package has earned
            ``incremental_prefill``; without that evidence prompts go whole.
    """

    policy: TurnPolicy = TurnPolicy.DRR
    decode_weight: int = 8
    short_prefill_weight: int = 4
    medium_prefill_weight: int = 2
    long_prefill_weight: int = 1
    short_prefill_max_tokens: int = 512
    medium_prefill_max_tokens: int = 4096
    long_quota: float = 1.0
    prefill_chunk_tokens: int = 256


class DecodeOrder(Enum):
    """Which of the sequences that wait for a token go first."""

    EDF = "edf"
    """Earliest deadline first, ties by fair turns (S §7.2): the oldest sequence runs to its end."""
    SLACK = "slack"
    """By fair turns; only a sequence whose slack runs out jumps ahead."""


@attrs.frozen(kw_only=True)
class DecodePolicy:
    """Selection for the next decode batch.

    Args:
        order: who goes first.
        tenant_lane_share: the largest share of a batch's lanes for one tenant while others wait; 1 is no cap.
    """

    order: DecodeOrder = DecodeOrder.SLACK
    tenant_lane_share: float = 1.0


@attrs.frozen(kw_only=True)
class BatchPolicy:
    """Which of the package's profiles are used, and when.

    Args:
        profiles: compiled batches that may be used; None for all that the package holds.
        batching_window_s: how long an engine may stay idle in the hope of a fuller batch.
        thresholds: compiled batch → ready sequences from which it is chosen; empty: the smallest that
            covers whom the largest would cover.
    """

    profiles: tuple[int, ...] | None = None
    batching_window_s: float = 0.0
    thresholds: Mapping[int, int] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class ReusePolicy:
    """Which ended conversations keep their KV, so that whoever goes on from there need not prefill it again.

    Args:
        enabled: None for where the package has earned ``prefix_reuse``; True is refused where it has not
            (`calculet_trio.cli.proving`).
        max_lanes: lanes that hold nothing else, at most; None for all that nobody wants.
        max_age_s: after which one is given up.
        min_tokens: the shortest beginning that is worth it.
        replies: whether what decode wrote is used again, too; None for where the package has earned ``reply_reuse``.
    """

    enabled: bool | None = None
    max_lanes: int | None = None
    max_age_s: float = 600.0
    min_tokens: int = 32
    replies: bool | None = None


@attrs.frozen(kw_only=True)
class FairnessPolicy:
    """``cost = prompt_tokens + decode_cost_weight * requested_output_tokens`` (S §5.3)."""

    decode_cost_weight: float = 1.0


@attrs.frozen(kw_only=True)
class TenantPolicy:
    """What one tenant may have; it comes from the control plane only, never from a request.

    Args:
        weight: its share of service, relative to the others'.
        max_active_sequences: admitted and not ended; None for no limit of its own.
        max_waiting_tokens: prompt tokens of its waiting requests; None for no limit of its own.
        requests_per_s: arrivals per second, with a burst of one second's worth (at least one); None: no limit.
        deadline_s: how long its requests may take; None for ``admission.deadline_default_s``. It alone orders
            decoding: a client's own deadline can only end its request earlier.
    """

    weight: float = 1.0
    max_active_sequences: int | None = None
    max_waiting_tokens: int | None = None
    requests_per_s: float | None = None
    deadline_s: float | None = None


@attrs.frozen(kw_only=True)
class ExecutorPolicy:
    """Which engines are used.

    Args:
        fixed_engine: all work goes to ping (S §15).
        synchronous: the baseline of milestone M1: each job is submitted and awaited in one piece.
        p99_gate: how much slower, as a share, the slowest steps may be with two engines than with one (S §19 M2).
        probation_jobs: jobs without a doubt after which a degraded pair is used again; None: only an operator's word.
    """

    fixed_engine: bool = False
    synchronous: bool = False
    p99_gate: float = 0.05
    probation_jobs: int | None = 10_000


@attrs.frozen(kw_only=True)
class RecoveryPolicy:
    """What happens after a fault (S §15, SPEC section 9)."""

    max_resets_per_10min: int = 2
    restart_on_unknown_dma: bool = True
    replay: bool = False


class ResidencyStrategy(Enum):
    """How several aliases share one device."""

    AUTO = "auto"
    """All that are loaded stay, where runtime and packages say that they may and memory permits; else one."""
    SINGLE = "single"
    """One alias and no other, whatever else the device could hold."""
    TIME_SHARING = "time_sharing"
    """One is on it at a time, and is taken off for another that is waited for."""
    CO_RESIDENT = "co_resident"
    """As auto, but a device or package that cannot do it is refused."""


@attrs.frozen(kw_only=True)
class ResidencyPolicy:
    """Which models the device holds.

    Args:
        strategy: see there.
        dwell_s: how long a model stays at least where they share the device by time.
    """

    strategy: ResidencyStrategy = ResidencyStrategy.AUTO
    dwell_s: float = 60.0

    @property
    def is_by_time(self) -> bool:
        return self.strategy is ResidencyStrategy.TIME_SHARING


@attrs.frozen(kw_only=True)
class Policy:
    """All of it, for one alias.

    Of several aliases' policies the device has one: the first's admission, fairness, executor, recovery and tenants
    hold for all. Queues, decode, batches and reuse are each generation's own.

    Args:
        tenants: by name; one that is not named here has the defaults.
    """

    admission: AdmissionPolicy = attrs.field(factory=AdmissionPolicy)
    queues: QueuePolicy = attrs.field(factory=QueuePolicy)
    decode: DecodePolicy = attrs.field(factory=DecodePolicy)
    batch: BatchPolicy = attrs.field(factory=BatchPolicy)
    reuse: ReusePolicy = attrs.field(factory=ReusePolicy)
    fairness: FairnessPolicy = attrs.field(factory=FairnessPolicy)
    executor: ExecutorPolicy = attrs.field(factory=ExecutorPolicy)
    recovery: RecoveryPolicy = attrs.field(factory=RecoveryPolicy)
    tenants: Mapping[str, TenantPolicy] = attrs.field(factory=dict)

    def tenant(self, name: str) -> TenantPolicy:
        """What the named tenant may have."""
        return self.tenants.get(name, _UNNAMED)


_UNNAMED = TenantPolicy()
