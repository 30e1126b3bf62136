"""What core and shell make of each kind of fault: a board that has it now and then, and what clients hear."""

from __future__ import annotations

import pytest

from calculet_trio.core.events import FaultReason
from calculet_trio.core.fault_kinds import FaultKind
from calculet_trio.core.faults import FAULTS, Next
from calculet_trio.core.policy import Policy, RecoveryPolicy
from calculet_trio.runtimes.faults import GOLDEN, RESET, STATUS
from calculet_trio.sim.population import Poisson
from calculet_trio.sim.world import run_world
from tests.sim.small import complaint, small

CROWD = Poisson(per_s=30.0, prompt_median=20.0, output_median=12.0, misbehaving=0.0)

SURVIVED = {
    FaultKind.DEVICE_BUSY: None,
    FaultKind.SLOW: None,
    FaultKind.SLOW_DRAIN: "failed: shutdown",  # where the drain time was over before the job was
    FaultKind.STATUS_ANOMALY: None,
    FaultKind.COUNTER_ANOMALY: None,
    FaultKind.OUTPUT_ERROR: "failed: output_error",
    FaultKind.NO_CAPACITY: None,
}
"""Kinds after which the same daemon goes on; and what is said to those who were in the job."""

LOST = {
    FaultKind.LOSE_LANE: "failed: ccu_fault",
    FaultKind.WRONG_COMPLETION: "failed: wrong_completion",
    FaultKind.DUPLICATE_COMPLETION: "failed: wrong_completion",
    FaultKind.LATE_COMPLETION: "failed: stuck_wait",
    FaultKind.TIMEOUT: "failed: timeout",
    FaultKind.STUCK: "failed: stuck_wait",
    FaultKind.CCU_FAULT: "failed: ccu_fault",
    FaultKind.PCIE_ERROR: "failed: pcie_error",
    FaultKind.UNKNOWN_DMA: "failed: unknown_dma",
    FaultKind.DEVICE_LOST: "failed: device_lost",
}
"""Kinds after which nobody knows what the device did (on a board without lane isolation), and what clients hear."""

UNSEEN = {FaultKind.CROSS_TALK}
"""Kinds that only a checker can see."""

BY_ITSELF = {FaultKind.UNCONFIRMED}
"""A lane is lost; the device is to be reset once all are."""


RESETTABLE = {reason for reason, rule in FAULTS.items() if rule.next in (Next.RESET, Next.RESTART_OR_RESET)}


def test_every_kind_has_an_outcome() -> None:
    not_in_a_running_world = {*STATUS, *GOLDEN, *RESET}  # of calls that nobody makes while jobs run
    assert {*SURVIVED, *LOST, *UNSEEN, *BY_ITSELF, *not_in_a_running_world} == set(FaultKind)


@pytest.mark.parametrize("kind", SURVIVED)
def test_the_daemon_survives(kind: FaultKind) -> None:
    outcome = run_world(small(faults={kind: 0.02}, population=CROWD))
    assert outcome.faults[kind] > 0, "it did not come about"
    assert (outcome.lives, outcome.losses) == (1, 0)
    failed = {ending for ending in outcome.clients if ending.startswith("failed")}
    assert failed == ({SURVIVED[kind]} - {None})


@pytest.mark.parametrize("kind", LOST)
def test_the_device_is_lost_and_clients_are_told_why(kind: FaultKind) -> None:
    outcome = run_world(small(faults={kind: 0.01}, population=CROWD))
    assert outcome.faults[kind] > 0, "it did not come about"
    assert outcome.losses > 0
    assert outcome.clients[LOST[kind]] > 0
    assert outcome.clients["finished: length"] > 0


@pytest.mark.parametrize("kind", [kind for kind in LOST if FaultReason(LOST[kind][8:]) in RESETTABLE])
def test_a_device_that_may_be_reset_often_is_never_lost_and_with_replay_nobody_fails(kind: FaultKind) -> None:
    recovery = RecoveryPolicy(max_resets_per_10min=1000, restart_on_unknown_dma=False, replay=True)
    outcome = run_world(small(faults={kind: 0.02}, population=CROWD, policy=Policy(recovery=recovery)))
    assert outcome.resets + outcome.losses == outcome.faults[kind]
    assert outcome.lives == 1
    assert outcome.losses <= 1, "in a drain nothing is reset: then alone may it be lost"
    assert outcome.resets > 3 or kind is FaultKind.TIMEOUT, "one that lasts longer than this crowd stays"
    assert outcome.replays >= outcome.resets
    failed = sum(many for ending, many in outcome.clients.items() if ending.startswith("failed"))
    if not outcome.losses and kind is not FaultKind.LOSE_LANE:  # whose others were sampled, and cannot go back
        assert failed == 0


def test_a_reset_that_fails_is_the_loss_of_the_device() -> None:
    recovery = RecoveryPolicy(max_resets_per_10min=1000, replay=True)
    faults = {FaultKind.CCU_FAULT: 0.01, FaultKind.RESET_FAILED: 0.5}
    outcome = run_world(small(faults=faults, population=CROWD, policy=Policy(recovery=recovery)))
    assert outcome.resets >= outcome.losses > 0
    assert outcome.clients["failed: unknown_dma"] > 0


def test_lanes_that_are_not_confirmed_empty_are_lost_one_by_one() -> None:
    outcome = run_world(small(faults={FaultKind.UNCONFIRMED: 0.05}, population=CROWD))
    assert outcome.faults[FaultKind.UNCONFIRMED] > outcome.losses + outcome.resets > 0


def test_crossed_lanes_are_seen_by_their_clients() -> None:
    assert "is not its own" in complaint(small(faults={FaultKind.CROSS_TALK: 0.02}, population=CROWD))
