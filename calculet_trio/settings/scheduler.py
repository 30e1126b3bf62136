"""``calculet-scheduler/v1``: the policy of one alias, as S §15 prints it, and the keys that came later.

Source: SPEC section 4, 5, 6, 9, 10 (S §15).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from itertools import pairwise
from typing import Final

import attrs

from calculet_trio.core.policy import (
    AdmissionPolicy,
    BatchPolicy,
    DecodeOrder,
    DecodePolicy,
    ExecutorPolicy,
    FairnessPolicy,
    Policy,
    QueuePolicy,
    RecoveryPolicy,
    ReusePolicy,
    TenantPolicy,
    TurnPolicy,
)
from calculet_trio.settings.allowed import Choice, Fixed, ListOf, MapOf, OrNull, Real, Text, Whole, YesNo
from calculet_trio.settings.keys import Contradiction, key, section

SCHEMA: Final = "calculet-scheduler/v1"

ALIAS: Final = Text(
    "1 to 128 letters, digits and . _ : / -, beginning with a letter or digit", r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}"
)
DEADLINE_MS: Final = Whole(1, 86_400_000)
WEIGHT: Final = Whole(1, 1000)
SHARE: Final = Real(0.01, 1.0)
TOKENS: Final = Whole(1, 1_000_000_000)
BATCH: Final = Whole(1, 1024)
PROFILES_MAX: Final = 32


class ExecutionMode(Enum):
    ASYNC = "async"
    SYNC = "sync"


@attrs.frozen(kw_only=True)
class AdmissionSettings:
    """What may wait and what may run."""

    max_sequences: int | None = key(
        OrNull(Whole(1, 65_536), "as many as the package has KV lanes"),
        None,
        "Requests that hold a KV lane at the same time, at most.",
    )
    max_kv_tokens: int | None = key(
        OrNull(TOKENS, "what the package's lanes hold"),
        None,
        "Tokens of KV that all running requests may come to hold together, prompt and longest reply counted.",
    )
    max_waiting_requests: int = key(
        Whole(0, 100_000), 128, "Requests that wait for a lane, at most; one more is told 429. 0: none waits."
    )
    max_waiting_prompt_tokens: int = key(
        TOKENS, 262_144, "Prompt tokens of all waiting requests together, at most; beyond them 429."
    )
    max_inflight_jobs: int | None = key(
        OrNull(Whole(1, 2), "executor.max_inflight"),
        None,
        "Device jobs under way at the same time, as a budget: never more than executor.max_inflight.",
    )
    deadline_default_ms: int = key(
        DEADLINE_MS, 120_000, "How long a request may take from its arrival on, where its tenant has no deadline_ms."
    )


@attrs.frozen(kw_only=True)
class QueueSettings:
    """Whose turn it is on the device."""

    policy: TurnPolicy = key(
        Choice(TurnPolicy),
        TurnPolicy.DRR,
        "What a weight buys. wrr: jobs, so that a prefill of seconds counts like a decode step of milliseconds; "
        "drr: seconds of the device, as measured. Measured against each other in config/README.md.",
    )
    decode_weight: int = key(WEIGHT, 8, "Share of decode steps.")
    short_prefill_weight: int = key(WEIGHT, 4, "Share of short prefills.")
    medium_prefill_weight: int = key(WEIGHT, 2, "Share of medium prefills.")
    long_prefill_weight: int = key(WEIGHT, 1, "Share of long prefills, those above medium_prefill_max_tokens.")
    short_prefill_max_tokens: int = key(Whole(1, 1_048_576), 512, "The longest prompt that is short.")
    medium_prefill_max_tokens: int = key(
        Whole(1, 1_048_576), 4096, "The longest prompt that is medium; at least short_prefill_max_tokens."
    )
    long_quota: float = key(
        SHARE,
        1.0,
        "Largest share of device time, over the last minute, that long prefills take while other work waits; "
        "1: no quota. A prefill cannot be interrupted, so this alone bounds how much of the time it blocks decode.",
    )
    prefill_chunk_tokens: int = key(
        Whole(8, 1_048_576),
        256,
        "The piece in which prompts are prefilled where the package has earned incremental_prefill; without that "
        "evidence they go whole.",
    )


@attrs.frozen(kw_only=True)
class DecodeSettings:
    """Who is in the next decode batch."""

    policy: DecodeOrder = key(
        Choice(DecodeOrder),
        DecodeOrder.SLACK,
        "Who goes first. edf: the earliest deadline, ties by fairness, which lets the oldest sequence run to its "
        "end; slack: by fairness, token by token, and only who would otherwise miss its deadline jumps ahead.",
    )
    tenant_lane_share: float = key(
        SHARE, 1.0, "Largest share of a batch's lanes for one tenant while others wait; 1: no cap."
    )


@attrs.frozen(kw_only=True)
class FairnessSettings:
    """What a request costs its tenant."""

    decode_cost_weight: float = key(
        Real(0.001, 1000.0), 1.0, "Cost of a token of reply, where a token of prompt costs 1."
    )


@attrs.frozen(kw_only=True)
class BatchSettings:
    """Which of the package's compiled batches are used, and when."""

    profiles: tuple[int, ...] | None = key(
        OrNull(ListOf(BATCH, "batch sizes", least=1, most=PROFILES_MAX), "all that the package holds"),
        None,
        "Compiled batch sizes to use. One that the package lacks refuses to start.",
    )
    batching_window_us: int = key(
        Whole(0, 1_000_000),
        0,
        "How long an engine may stay idle in the hope of a fuller batch; never beyond the earliest deadline.",
    )
    thresholds: Mapping[int, int] = key(
        MapOf(BATCH, BATCH, PROFILES_MAX),
        attrs.Factory(dict),
        "Batch size: number of ready sequences from which it is chosen, as {4: 3, 8: 6, 16: 12}. Measure before "
        "you set them. Empty: the smallest batch that holds all whom the largest would hold.",
    )


@attrs.frozen(kw_only=True)
class PrefixReuseSettings:
    """Ended conversations whose KV is kept, so that the next turn need not prefill it again."""

    enabled: bool | None = key(
        OrNull(YesNo(), "where it has been earned"),
        None,
        "Keep the KV of a reply that has ended, for a prompt of the same tenant that begins the same. true refuses to "
        "start where the package has not earned prefix_reuse.",
    )
    max_lanes: int | None = key(
        OrNull(Whole(1, 65_536), "all that nobody wants"),
        None,
        "KV lanes that are kept so, at most. They make nobody wait: whoever wants one gets it, the oldest first.",
    )
    max_age_s: int = key(Whole(1, 86_400), 600, "How long one is kept.")
    min_tokens: int = key(Whole(1, 1_048_576), 32, "The shortest beginning that is used again.")
    replies: bool | None = key(
        OrNull(YesNo(), "where it has been earned"),
        None,
        "Use the reply's KV again, too, and not the prompt's alone. true saves each turn the prefill of the reply "
        "before it; where decode computes otherwise than prefill, of two words that were as likely the other one may "
        "then come.",
    )


@attrs.frozen(kw_only=True)
class ExecutorSettings:
    """Which engines work."""

    max_inflight: int = key(
        Whole(1, 2), 1, "Device jobs under way at the same time. 2 uses both engines, ping and pong, if there are two."
    )
    fixed_engine: bool = key(YesNo(), False, "All jobs go to the engine ping.")
    p99_gate: float = key(
        Real(0.0, 10.0),
        0.05,
        "How much slower, as a share, the slowest hundredth of decode steps may become with two jobs under way, beyond "
        "the doubling that two bring by themselves; past it new jobs keep to one engine.",
    )
    probation_jobs: int | None = key(
        OrNull(Whole(1, 1_000_000_000), "only by an operator's word"),
        10_000,
        "Jobs without any doubt after which both engines are used again, once new jobs had to keep to one.",
    )
    mode: ExecutionMode = key(
        Choice(ExecutionMode),
        ExecutionMode.ASYNC,
        "async: submit, then wait beside other work; sync: one piece, the baseline that async is measured against.",
    )


@attrs.frozen(kw_only=True)
class RecoverySettings:
    """What happens after a fault."""

    max_resets_per_10min: int = key(Whole(0, 100), 2, "Device resets in any 10 minutes; then the model is Failed.")
    restart_on_unknown_dma: bool = key(
        YesNo(), True, "Leave with exit code 75 when a DMA's fate is unknown: only a new process may go on then."
    )
    replay: bool = key(
        YesNo(),
        False,
        "After a reset, write running sequences again as they were, so that their streams go on; else they fail.",
    )


@attrs.frozen(kw_only=True)
class SchedulerSettings:
    """A whole ``calculet-scheduler/v1`` file."""

    schema: str = key(Fixed(SCHEMA), attrs.NOTHING, "What this file is.")
    model_alias: str | None = key(
        OrNull(ALIAS, "whichever names this file"), None, "The alias whose policy this is; a check against mix-ups."
    )
    admission: AdmissionSettings = section(AdmissionSettings, "What may wait and what may run.")
    queues: QueueSettings = section(QueueSettings, "Turns on the device: decode and three classes of prefill.")
    decode: DecodeSettings = section(DecodeSettings, "Who is in the next decode batch.")
    fairness: FairnessSettings = section(FairnessSettings, "What a request costs its tenant.")
    batch: BatchSettings = section(BatchSettings, "Which of the package's compiled batches are used, and when.")
    prefix_reuse: PrefixReuseSettings = section(
        PrefixReuseSettings, "Ended conversations whose KV is kept for their next turn."
    )
    executor: ExecutorSettings = section(ExecutorSettings, "Which engines work, and how.")
    recovery: RecoverySettings = section(RecoverySettings, "After a fault.")

    def contradictions(self) -> Iterator[Contradiction]:
        """Keys of this file that do not go together."""
        yield from self._inflight()
        short, medium = self.queues.short_prefill_max_tokens, self.queues.medium_prefill_max_tokens
        if medium < short:
            yield Contradiction(
                (("queues", "medium_prefill_max_tokens"), ("queues", "short_prefill_max_tokens")),
                f"contradicts another key: queues.medium_prefill_max_tokens ({medium}) must be at least "
                f"queues.short_prefill_max_tokens ({short})",
            )
        yield from self._thresholds()

    def _inflight(self) -> Iterator[Contradiction]:
        most = self.executor.max_inflight
        budget = self.admission.max_inflight_jobs
        executor = ("executor", "max_inflight")
        if budget is not None and budget > most:
            yield Contradiction(
                (("admission", "max_inflight_jobs"), executor),
                f"contradicts another key: admission.max_inflight_jobs ({budget}) must be at most "
                f"executor.max_inflight ({most})",
            )
        if most == 1:
            return
        if self.executor.fixed_engine:
            yield Contradiction(
                (("executor", "fixed_engine"), executor),
                f"contradicts another key: one engine takes one job, executor.max_inflight is {most}",
            )
        if self.executor.mode is ExecutionMode.SYNC:
            yield Contradiction(
                (("executor", "mode"), executor),
                f"contradicts another key: sync runs one job at a time, executor.max_inflight is {most}",
            )

    def _thresholds(self) -> Iterator[Contradiction]:
        profiles, thresholds = self.batch.profiles, self.batch.thresholds
        for batch in thresholds:
            if profiles is not None and batch not in profiles:
                yield Contradiction(
                    (("batch", "thresholds", batch), ("batch", "profiles")),
                    f"contradicts another key: batch.profiles is {list(profiles)} and has no {batch}",
                )
        for smaller, larger in pairwise(sorted(thresholds)):
            if thresholds[larger] <= thresholds[smaller]:
                yield Contradiction(
                    (("batch", "thresholds", larger),),
                    f"contradicts another key: batch {larger} from {thresholds[larger]} ready would leave batch "
                    f"{smaller} (from {thresholds[smaller]}) never chosen",
                )

    def policy(self, tenants: Mapping[str, TenantPolicy]) -> Policy:
        """The core's policy objects, with what the service's configuration says of ``tenants``."""
        budget = self.admission.max_inflight_jobs
        return Policy(
            admission=AdmissionPolicy(
                max_sequences=self.admission.max_sequences,
                max_kv_tokens=self.admission.max_kv_tokens,
                max_waiting_requests=self.admission.max_waiting_requests,
                max_waiting_prompt_tokens=self.admission.max_waiting_prompt_tokens,
                max_inflight_jobs=self.executor.max_inflight if budget is None else budget,
                deadline_default_s=self.admission.deadline_default_ms / 1000,
            ),
            queues=QueuePolicy(
                policy=self.queues.policy,
                decode_weight=self.queues.decode_weight,
                short_prefill_weight=self.queues.short_prefill_weight,
                medium_prefill_weight=self.queues.medium_prefill_weight,
                long_prefill_weight=self.queues.long_prefill_weight,
                short_prefill_max_tokens=self.queues.short_prefill_max_tokens,
                medium_prefill_max_tokens=self.queues.medium_prefill_max_tokens,
                long_quota=self.queues.long_quota,
                prefill_chunk_tokens=self.queues.prefill_chunk_tokens,
            ),
            decode=DecodePolicy(order=self.decode.policy, tenant_lane_share=self.decode.tenant_lane_share),
            batch=BatchPolicy(
                profiles=self.batch.profiles,
                batching_window_s=self.batch.batching_window_us / 1_000_000,
                thresholds=dict(self.batch.thresholds),
            ),
            reuse=ReusePolicy(
                enabled=self.prefix_reuse.enabled,
                max_lanes=self.prefix_reuse.max_lanes,
                max_age_s=self.prefix_reuse.max_age_s,
                min_tokens=self.prefix_reuse.min_tokens,
                replies=self.prefix_reuse.replies,
            ),
            fairness=FairnessPolicy(decode_cost_weight=self.fairness.decode_cost_weight),
            executor=ExecutorPolicy(
                fixed_engine=self.executor.fixed_engine,
                synchronous=self.executor.mode is ExecutionMode.SYNC,
                p99_gate=self.executor.p99_gate,
                probation_jobs=self.executor.probation_jobs,
            ),
            recovery=RecoveryPolicy(
                max_resets_per_10min=self.recovery.max_resets_per_10min,
                restart_on_unknown_dma=self.recovery.restart_on_unknown_dma,
                replay=self.recovery.replay,
            ),
            tenants=dict(tenants),
        )
