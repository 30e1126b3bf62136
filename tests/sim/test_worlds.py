"""Many short worlds, drawn whole from fixed seeds; and worlds by name that a defect was found in."""

from __future__ import annotations

from collections import Counter

import pytest

from calculet_trio.core.policy import DecodeOrder, TurnPolicy
from calculet_trio.sim.failure import Failure, try_scenario
from calculet_trio.sim.scenario import MIXTURES, Scenario
from calculet_trio.sim.variety import draw_world
from calculet_trio.sim.world import Outcome

SECONDS = 4.0
SEEDS_EACH = 14
BATCHES = 5


def passes(scenario: Scenario) -> Outcome:
    found = try_scenario(scenario)
    if isinstance(found, Failure):
        pytest.fail(f"seed {scenario.seed}: {found.message}\nat {found.where}\nagain: {scenario.command()}")
    return found


@pytest.mark.parametrize("faults", MIXTURES)
@pytest.mark.parametrize("batch", range(BATCHES))
def test_no_checker_objects_to_a_drawn_world(faults: str, batch: int) -> None:
    heard: Counter[str] = Counter()
    for seed in range(batch * SEEDS_EACH, (batch + 1) * SEEDS_EACH):
        heard += passes(Scenario(seed=seed, seconds=SECONDS, faults=faults, varied=True)).clients
    assert heard["finished: length"] > 0, "these worlds do nothing"


def test_the_drawn_worlds_are_of_every_kind() -> None:
    specs = [draw_world(seed=seed, seconds=SECONDS, faults={}) for seed in range(BATCHES * SEEDS_EACH)]
    for kinds in (
        {spec.device.engines for spec in specs} == {1, 2},
        {spec.policy.admission.max_inflight_jobs for spec in specs} == {1, 2},
        {spec.policy.queues.policy for spec in specs} == set(TurnPolicy),
        {spec.policy.decode.order for spec in specs} == set(DecodeOrder),
        {spec.policy.recovery.replay for spec in specs} == {False, True},
        {spec.policy.recovery.max_resets_per_10min for spec in specs} == {0, 2, 100},
        {spec.chunked for spec in specs} == {False, True},
        {spec.reuse for spec in specs} == {False, True},
        {spec.policy.reuse.max_lanes for spec in specs} == {None, 1, 2},
        {spec.policy.batch.batching_window_s > 0 for spec in specs} == {False, True},
        any(tenant.max_active_sequences for spec in specs for tenant in spec.policy.tenants.values()),
        any(len(spec.device.decode) > 1 for spec in specs),
        any(spec.reloads for spec in specs),
        any(spec.restarts_s for spec in specs),
    ):
        assert kinds


def test_who_comes_back_goes_on_from_what_was_left() -> None:
    outcome = passes(Scenario(seed=3, seconds=120.0, load=0.2, profiles=(1, 4), reuse=True))
    assert outcome.reuse.hits > 10
    assert outcome.reuse.tokens > 500
    assert passes(Scenario(seed=3, seconds=20.0, load=0.2, profiles=(1, 4))).reuse.hits == 0


# ---- worlds in which a defect was found ---------------------------------------------------------------


def test_a_text_side_that_joins_after_its_request_has_ended_is_let_go() -> None:
    """A request refused between its place and its prompt left its text side behind."""
    passes(Scenario(seed=1, seconds=0.1, varied=True, without=("reloads", "restarts"), visits_max=1))


def test_an_open_stream_may_be_replayed_while_the_daemon_drains() -> None:
    """The drain checker took a lane for a request whose stream was open for a newcomer's."""
    passes(Scenario(seed=281, seconds=7.2, faults="harsh", varied=True))


def test_a_device_that_is_lost_ends_also_those_whose_job_is_out_past_their_deadline():
    passes(Scenario(seed=2133, seconds=1.8, faults="harsh", varied=True))


def test_no_load_begins_on_a_device_that_a_load_has_left_on_the_way_out() -> None:
    """An operator's load was cut short by SIGTERM; the first one, which had waited for it, met its model there."""
    passes(Scenario(seed=782, seconds=1.8, faults="mixed", varied=True))


def test_a_package_that_no_shelf_has_is_not_loaded_under_an_alias_that_was_unloaded() -> None:
    """The world's shelf had every name, and that one's voice was nobody's."""
    passes(Scenario(seed=1433, seconds=1.8, faults="mixed", varied=True))
