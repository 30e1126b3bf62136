"""Every machine of the core, exhaustively: all states with all events, and the shape of each table as a whole.

The pairs stand here a second time on purpose, written from SPEC section 2, 7, 8 and 9 and not from the code: a
table that is changed by accident disagrees with this file.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest

from calculet_trio.core.degradation import PAIR_TABLE, PairEvent, PairState
from calculet_trio.core.events import FaultReason
from calculet_trio.core.generation import GENERATION_TABLE, GenerationEvent, GenerationState, ModelGeneration
from calculet_trio.core.health import (
    DEVICE_TABLE,
    ENGINE_TABLE,
    DeviceEvent,
    DeviceState,
    EngineEvent,
    EngineHealth,
    EngineState,
)
from calculet_trio.core.jobs import JOB_TABLE, EngineId, JobEvent, JobState
from calculet_trio.core.lanes import LANE_TABLE, LaneEvent, LaneState
from calculet_trio.core.request import REQUEST_TABLE, RequestEvent, RequestState
from calculet_trio.core.transition import IllegalTransition, Machine, Table
from calculet_trio.ids import GenerationId

REQUEST = {
    "new": "wait_model>waiting_model queue>waiting_admission refuse>failed cancel>cancelled",
    "waiting_model": "model_ready>new refuse>failed cancel>cancelled",
    "waiting_admission": "admit>prefill_ready model_gone>waiting_model refuse>failed cancel>cancelled",
    "prefill_ready": "submit>prefill_running replay>prefill_ready finish>finishing fail>failed cancel>cancelled",
    "prefill_running": (
        "commit>decode_ready chunk>prefill_ready withdraw>prefill_ready replay>prefill_ready finish>finishing "
        "fail>failed cancel>cancelled"
    ),
    "decode_ready": "submit>decode_running replay>prefill_ready finish>finishing fail>failed cancel>cancelled",
    "decode_running": (
        "commit>decode_ready withdraw>decode_ready replay>prefill_ready finish>finishing fail>failed cancel>cancelled"
    ),
    "finishing": "released>completed",
    "completed": "",
    "cancelled": "",
    "failed": "",
}
LANE = {
    "free": "reserve>reserved",
    "reserved": "allocated>active refused>free release>releasing lose>unknown",
    "active": "submit>updating retain>retained release>releasing lose>unknown",
    "updating": "commit>active withdraw>active lose>unknown",
    "retained": "reserve>reserved release>releasing lose>unknown",
    "releasing": "released>free unconfirmed>unknown lose>unknown",
    "unknown": "reset>free",
}
JOB = {
    "in_flight": "settle>settled withdraw>withdrawn lose>unknown",
    "settled": "",
    "withdrawn": "",
    "unknown": "",
}
GENERATION = {
    "unloaded": "validate>validating",
    "validating": "configure>configuring give_up>failed",
    "configuring": "warm>warming give_up>failed fault>recovering",
    "warming": "publish>ready give_up>failed fault>recovering",
    "ready": "drain>draining fault>recovering",
    "draining": "unload>unloading fault>recovering",
    "unloading": "unloaded>unloaded fault>recovering",
    "recovering": "recovered>ready drain>draining give_up>failed",
    "failed": "unloaded>unloaded",
}
ENGINE = {
    "healthy": "quarantine>quarantined",
    "quarantined": "reset>healthy",
}
DEVICE = {
    "sound": "fault>quiescing give_up>lost",
    "quiescing": "quiet>resetting give_up>lost",
    "resetting": "proven>sound give_up>lost",
    "lost": "",
}

PAIR = {
    "both": "doubt>one",
    "one": "doubt>one restore>both prove>both",
}

MACHINES: list[tuple[Table[Any, Any], type[Enum], type[Enum], Enum, dict[str, str]]] = [
    (REQUEST_TABLE, RequestState, RequestEvent, RequestState.NEW, REQUEST),
    (LANE_TABLE, LaneState, LaneEvent, LaneState.FREE, LANE),
    (JOB_TABLE, JobState, JobEvent, JobState.IN_FLIGHT, JOB),
    (GENERATION_TABLE, GenerationState, GenerationEvent, GenerationState.UNLOADED, GENERATION),
    (ENGINE_TABLE, EngineState, EngineEvent, EngineState.HEALTHY, ENGINE),
    (PAIR_TABLE, PairState, PairEvent, PairState.BOTH, PAIR),
    (DEVICE_TABLE, DeviceState, DeviceEvent, DeviceState.SOUND, DEVICE),
]
EVERY_MACHINE = pytest.mark.parametrize(
    ("table", "states", "events", "first", "written"), MACHINES, ids=[table.name for table, *_ in MACHINES]
)


def machine_of(table: Table[Any, Any], state: Enum) -> Machine[Any, Any]:
    kind = type("AnyMachine", (Machine,), {"table": table})
    return kind(state)


def reached_from(table: Table[Any, Any], state: Enum) -> set[Enum]:
    """Every state that some run of events leads to, ``state`` itself included."""
    reached, frontier = {state}, [state]
    while frontier:
        found = set(table.rows[frontier.pop()].values()) - reached
        reached |= found
        frontier += found
    return reached


@EVERY_MACHINE
def test_each_state_takes_the_events_written_here_and_no_other(
    table: Table[Any, Any], states: type[Enum], events: type[Enum], first: Enum, written: dict[str, str]
) -> None:
    assert set(written) == {state.value for state in states}
    for state in states:
        row = dict(pair.split(">") for pair in written[state.value].split())
        for event in events:
            machine = machine_of(table, state)
            if event.value in row:
                assert machine.advance(event) is states(row[event.value])
            else:
                with pytest.raises(IllegalTransition, match=f"{table.name}: {event.name} in {state.name}"):
                    machine.advance(event)
                assert machine.state is state


@EVERY_MACHINE
def test_every_state_can_be_reached_and_every_event_is_of_use(
    table: Table[Any, Any], states: type[Enum], events: type[Enum], first: Enum, written: dict[str, str]
) -> None:
    assert reached_from(table, first) == set(states)
    assert {event for row in table.rows.values() for event in row} == set(events)


@EVERY_MACHINE
def test_every_state_can_still_end(
    table: Table[Any, Any], states: type[Enum], events: type[Enum], first: Enum, written: dict[str, str]
) -> None:
    """At a terminal state, or, for lanes and generations that live on, where they began."""
    ends = table.terminal or {first}
    assert all(reached_from(table, state) & ends for state in states)


def test_what_is_terminal() -> None:
    assert REQUEST_TABLE.terminal == {RequestState.COMPLETED, RequestState.CANCELLED, RequestState.FAILED}
    assert JOB_TABLE.terminal == {JobState.SETTLED, JobState.WITHDRAWN, JobState.UNKNOWN}
    assert DEVICE_TABLE.terminal == {DeviceState.LOST}
    assert not ENGINE_TABLE.terminal
    assert not LANE_TABLE.terminal
    assert not GENERATION_TABLE.terminal


def test_a_lane_becomes_free_only_by_a_refused_allocation_a_confirmed_release_or_a_reset() -> None:
    """SPEC section 7: a lane is reused only after Free and the runtime's confirmation."""
    ways = {event for row in LANE_TABLE.rows.values() for event, state in row.items() if state is LaneState.FREE}
    assert ways == {LaneEvent.REFUSED, LaneEvent.RELEASED, LaneEvent.RESET}


@pytest.mark.parametrize("state", GenerationState)
def test_a_lost_device_matters_to_a_generation_that_is_on_it(state: GenerationState) -> None:
    generation = ModelGeneration(GenerationId(1), "model")
    Machine.__init__(generation, state)
    generation.fault()
    on_the_device = ("configuring", "warming", "ready", "draining", "unloading")
    assert generation.state is (GenerationState.RECOVERING if state.value in on_the_device else state)


def test_an_engine_is_usable_until_it_is_quarantined_and_keeps_the_reason() -> None:
    engine = EngineHealth(EngineId.PONG)
    assert engine.usable
    engine.quarantine(FaultReason.CCU_FAULT)
    assert not engine.usable
    assert engine.reason is FaultReason.CCU_FAULT
    with pytest.raises(IllegalTransition):
        engine.quarantine(FaultReason.TIMEOUT)
