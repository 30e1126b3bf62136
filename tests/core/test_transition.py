"""Tables as such: complete, terminal where a row is empty, and loud about what they do not hold."""

from __future__ import annotations

from enum import Enum

import pytest

from calculet_trio.core.transition import IllegalTransition, Machine, Table


class Door(Enum):
    OPEN = "open"
    SHUT = "shut"
    BRICKED_UP = "bricked_up"


class Push(Enum):
    SHUT = "shut"
    OPEN = "open"
    BRICK = "brick"


DOORS = Table[Door, Push](
    "door",
    Door,
    {
        Door.OPEN: {Push.SHUT: Door.SHUT},
        Door.SHUT: {Push.OPEN: Door.OPEN, Push.BRICK: Door.BRICKED_UP},
        Door.BRICKED_UP: {},
    },
)


class FrontDoor(Machine[Door, Push]):
    table = DOORS


def test_a_table_without_a_row_for_every_state_cannot_be_made() -> None:
    with pytest.raises(AssertionError, match=r"door: states without a row: \[<Door\.BRICKED_UP"):
        Table[Door, Push]("door", Door, {Door.OPEN: {}, Door.SHUT: {}})


def test_terminal_states_are_those_whose_row_is_empty() -> None:
    assert DOORS.terminal == {Door.BRICKED_UP}


def test_a_machine_goes_where_its_table_says() -> None:
    door = FrontDoor(Door.OPEN)
    assert door.advance(Push.SHUT) is Door.SHUT
    assert door.state is Door.SHUT
    assert not door.is_terminal
    door.advance(Push.BRICK)
    assert door.is_terminal


def test_what_a_table_does_not_hold_is_named_and_changes_nothing() -> None:
    door = FrontDoor(Door.OPEN)
    with pytest.raises(IllegalTransition, match="door: BRICK in OPEN"):
        door.advance(Push.BRICK)
    assert door.state is Door.OPEN


def test_nobody_but_advance_may_set_the_state() -> None:
    with pytest.raises(AttributeError):
        FrontDoor(Door.OPEN).state = Door.SHUT
