"""Variety: whole worlds drawn from a seed, so that many of them try what nobody thought of.

Only the numbers are drawn; the kinds of world are the service's own options, each as likely as the others: one or
two engines, turns by jobs or by time, deadlines or slack, windows, profiles, chunks, reuse, limits, tenants that come
and change, drains in the middle, models that take turns or are exchanged.

Source: SPEC section 4–9; FoundationDB's and TigerBeetle's simulators for the idea.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

import attrs
import numpy as np

from calculet_trio.core.fault_kinds import FaultKind
from calculet_trio.core.policy import (
    AdmissionPolicy,
    BatchPolicy,
    DecodeOrder,
    DecodePolicy,
    FairnessPolicy,
    Policy,
    QueuePolicy,
    RecoveryPolicy,
    ReusePolicy,
    TenantPolicy,
    TurnPolicy,
)
from calculet_trio.core.profiles import LaneLayout
from calculet_trio.runtimes.device_model import DeviceModel, PrefillCurve, StepCurve, load_device
from calculet_trio.sim.models import DAMAGED, LETTERS, Act, Models, Operation
from calculet_trio.sim.population import ALIAS, Poisson
from calculet_trio.sim.world import Reload, WorldSpec

T = TypeVar("T")

_TENANTS: Final = ("a", "b", "c", "d")
_BYTE_VOCABULARY: Final = 259
"""Of the byte tokenizer: a world is about order, not about the width of logits."""


def draw_world(*, seed: int, seconds: float, faults: Mapping[FaultKind, float]) -> WorldSpec:
    """The world of a seed.

    Args:
        seed: of everything.
        seconds: how long clients come.
        faults: kinds and rates per call.
    """
    rng = np.random.default_rng((seed, 0x776F726C))  # not the world's own numbers over again
    device = _draw_device(rng)
    tenants = _draw_tenants(rng)
    models = _draw_models(np.random.default_rng((seed, 0x6D6F6465)), seconds)
    again = np.random.default_rng((seed, 0x72657573))
    is_reused = bool(again.random() < 0.5)
    policy = Policy(
        admission=AdmissionPolicy(
            max_waiting_requests=_one_of(rng, (4, 16, 128)),
            max_waiting_prompt_tokens=_one_of(rng, (600, 262_144)),
            max_sequences=_one_of(rng, (None, None, max(1, device.lanes - 1))),
            max_kv_tokens=_one_of(rng, (None, None, device.context_tokens * 3 // 2)),
            max_inflight_jobs=device.engines,
            deadline_default_s=_one_of(rng, (4.0, 20.0, 120.0)),
        ),
        queues=QueuePolicy(
            policy=_one_of(rng, tuple(TurnPolicy)),
            long_quota=_one_of(rng, (1.0, 0.5)),
            short_prefill_max_tokens=_one_of(rng, (64, 512)),
            medium_prefill_max_tokens=_one_of(rng, (600, 4096)),
            prefill_chunk_tokens=_one_of(rng, (16, 64, 256)),
        ),
        decode=DecodePolicy(order=_one_of(rng, tuple(DecodeOrder)), tenant_lane_share=_one_of(rng, (1.0, 0.5))),
        batch=BatchPolicy(batching_window_s=_one_of(rng, (0.0, 0.002, 0.03))),
        reuse=ReusePolicy(
            max_lanes=_one_of(again, (None, None, 1, 2)),
            max_age_s=_one_of(again, (0.5, 600.0)),
            min_tokens=_one_of(again, (1, 16)),
            replies=_one_of(np.random.default_rng((seed, 0x7265706C)), (None, False)),
        ),
        fairness=FairnessPolicy(decode_cost_weight=_one_of(rng, (1.0, 4.0))),
        recovery=RecoveryPolicy(
            max_resets_per_10min=_one_of(rng, (0, 2, 100)),
            restart_on_unknown_dma=_one_of(rng, (True, False)),
            replay=_one_of(rng, (True, True, False)),
        ),
        tenants=tenants,
    )
    return WorldSpec(
        seed=seed,
        seconds=seconds,
        device=device,
        policy=policy,
        population=attrs.evolve(
            _draw_population(rng), aliases=models.aliases, chatty=_one_of(again, (0.3, 0.8)) if is_reused else 0.0
        ),
        faults=faults,
        chunked=bool(rng.random() < 0.5),
        reuse=is_reused,
        reloads=tuple(Reload(moment_s, _draw_tenants(rng)) for moment_s in _moments(rng, seconds)),
        restarts_s=tuple(_moments(rng, seconds)),
        models=models,
        drain_s=_one_of(rng, (0.0, 1.0, 20.0)),
        backlog_bytes_max=_one_of(rng, (512, 1 << 20)),
    )


def _draw_device(rng: np.random.Generator) -> DeviceModel:
    batches: tuple[int, ...] = _one_of(rng, ((1,), (1, 4), (1, 2, 8), (4,)))
    lanes = max(*batches, _one_of(rng, (1, 4, 8)))
    step_s = float(rng.uniform(0.005, 0.05))
    return load_device(
        name="drawn",
        lanes=lanes,
        context_tokens=_one_of(rng, (256, 1024, 2048)),
        vocab_size=_BYTE_VOCABULARY,
        decode={batch: StepCurve(step_s, float(rng.uniform(0.0, 0.002))) for batch in batches},
        prefill=PrefillCurve(float(rng.uniform(0.0, 0.02)), float(rng.uniform(0.0001, 0.006))),
        engines=_one_of(rng, (1, 2)),
        compute_overlaps=bool(rng.random() < 0.5),
        jitter=float(rng.uniform(0.0, 0.2)),
        layout=_one_of(rng, tuple(LaneLayout)),
        lane_fault_isolation=bool(rng.random() < 0.5),
    )


def _draw_tenants(rng: np.random.Generator) -> dict[str, TenantPolicy]:
    """Two of four tenants have limits at times; the others have weights only, so that fairness can be held."""
    drawn = {name: TenantPolicy(weight=_one_of(rng, (0.5, 1.0, 2.0, 4.0))) for name in _TENANTS}
    if rng.random() < 0.5:
        drawn["c"] = attrs.evolve(drawn["c"], max_active_sequences=1, max_waiting_tokens=400)
        drawn["d"] = attrs.evolve(drawn["d"], requests_per_s=1.0, deadline_s=6.0)
    return drawn


def _draw_population(rng: np.random.Generator) -> Poisson:
    return Poisson(
        per_s=_one_of(rng, (0.5, 3.0, 12.0)),
        tenants=_one_of(rng, (_TENANTS[:2], _TENANTS)),
        prompt_median=_one_of(rng, (20.0, 80.0, 300.0)),
        output_median=_one_of(rng, (4.0, 30.0)),
        misbehaving=_one_of(rng, (0.0, 0.3, 0.8)),
    )


def _draw_models(rng: np.random.Generator, seconds: float) -> Models:
    """In a third of the worlds models come and go: several in turns, exchanged by operators, or both."""
    if rng.random() < 2 / 3:
        return Models()
    aliases = _one_of(rng, ((ALIAS,), (ALIAS, "n"), (ALIAS, "n", "o")))
    fewest = 1 if len(aliases) == 1 else 0
    moments = sorted(rng.uniform(0.0, seconds, int(rng.integers(fewest, 7))))
    return Models(
        aliases=aliases,
        dwell_s=_one_of(rng, (0.2, 1.0, 10.0)),
        configure_s=_one_of(rng, (0.0, 0.1, 2.0)),
        operations=tuple(
            Operation(
                float(moment_s),
                _one_of(rng, (Act.LOAD, Act.LOAD, Act.LOAD, Act.UNLOAD, Act.ROLLBACK)),
                _one_of(rng, aliases),
                _one_of(rng, (*LETTERS, *LETTERS, DAMAGED, None)),
            )
            for moment_s in moments
        ),
    )


def _moments(rng: np.random.Generator, seconds: float) -> list[float]:
    """In half of the worlds a moment while clients come."""
    return [float(moment_s) for moment_s in rng.uniform(0.0, seconds, int(rng.integers(2)))]


def _one_of(rng: np.random.Generator, choices: Sequence[T]) -> T:
    return choices[int(rng.integers(len(choices)))]
