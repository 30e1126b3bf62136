"""The snapshot: what health says, and counts that add up."""

from __future__ import annotations

import pytest

from calculet_trio.core.events import FaultReason
from calculet_trio.core.generation import GenerationState, ModelGeneration
from calculet_trio.core.health import DeviceHealth, DeviceState
from calculet_trio.core.lanes import LaneState
from calculet_trio.core.snapshot import ServiceStatus, service_status
from calculet_trio.core.transition import Machine
from calculet_trio.ids import GenerationId
from tests.core.shapes import small_shape
from tests.core.world import World


def generations_in(*states: GenerationState) -> list[ModelGeneration]:
    made = []
    for number, state in enumerate(states):
        generation = ModelGeneration(GenerationId(number), "model")
        Machine.__init__(generation, state)
        made.append(generation)
    return made


def device_in(state: DeviceState) -> DeviceHealth:
    device = DeviceHealth()
    Machine.__init__(device, state)
    device.reason = FaultReason.TIMEOUT
    return device


@pytest.mark.parametrize(
    ("state", "word"),
    [
        (GenerationState.UNLOADED, "loading"),
        (GenerationState.VALIDATING, "loading"),
        (GenerationState.CONFIGURING, "loading"),
        (GenerationState.WARMING, "loading"),
        (GenerationState.READY, "ok"),
        (GenerationState.DRAINING, "draining"),
        (GenerationState.UNLOADING, "draining"),
        (GenerationState.RECOVERING, "recovering"),
        (GenerationState.FAILED, "failed"),
    ],
)
def test_the_word_for_each_state_of_the_only_generation(state: GenerationState, word: str) -> None:
    status = service_status(generations_in(state), draining=False, device=DeviceHealth())
    assert status.word == word
    assert (status.reason is None) == (word == "ok")


def test_without_a_generation_it_is_loading() -> None:
    assert service_status([], draining=False, device=DeviceHealth()).word == "loading"


def test_one_ready_generation_is_enough() -> None:
    both = generations_in(GenerationState.FAILED, GenerationState.READY)
    assert service_status(both, draining=False, device=DeviceHealth()) == ServiceStatus("ok")


def test_a_fault_is_worse_than_a_drain_and_both_are_worse_than_ready() -> None:
    ready = generations_in(GenerationState.READY)
    assert service_status(ready, draining=True, device=DeviceHealth()).word == "draining"
    assert service_status(ready, draining=True, device=device_in(DeviceState.LOST)) == ServiceStatus(
        "failed", "device: timeout"
    )


@pytest.mark.parametrize("state", [DeviceState.QUIESCING, DeviceState.RESETTING])
def test_a_device_that_is_being_reset_recovers_unless_the_service_drains(state: DeviceState) -> None:
    generations, device = generations_in(GenerationState.RECOVERING), device_in(state)
    expected = ServiceStatus("recovering", "the device is being reset: timeout")
    assert service_status(generations, draining=False, device=device) == expected
    assert service_status(generations, draining=True, device=device).word == "draining"


def test_the_counts_of_a_service_at_work() -> None:
    world = World(small_shape(3, max_seq=20))
    first, second = world.ask(prompt_tokens=5, max_new_tokens=3), world.ask(prompt_tokens=4, max_new_tokens=2)
    world.allocate(first)
    world.finish(world.job.job)
    snapshot = world.core.snapshot()
    assert (snapshot.waiting_requests, snapshot.waiting_prompt_tokens, snapshot.running_requests) == (1, 4, 1)
    assert (snapshot.kv_tokens_total, snapshot.kv_tokens_reserved, snapshot.kv_tokens_used) == (60, 14, 5)
    assert (snapshot.jobs_in_flight, snapshot.jobs_unknown) == (1, 0)
    assert set(snapshot.lanes_by_state) == set(LaneState), "every state has a count, for its metric"
    assert {state: many for state, many in snapshot.lanes_by_state.items() if many} == {
        LaneState.UPDATING: 1,
        LaneState.RESERVED: 1,
        LaneState.FREE: 1,
    }
    assert snapshot.lanes_in_use == 2
    assert world.streams[second].is_open


def test_live_requests_prompts_can_be_asked_for() -> None:
    world = World(small_shape())
    request = world.ask(prompt_tokens=3)
    assert list(world.core.prompts()) == [request]
    assert len(world.core.prompts()[request]) == 3
