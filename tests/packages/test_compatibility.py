"""The compatibility matrix: what was tried is taken, anything else is named."""

from __future__ import annotations

import pytest

from calculet_trio.packages.compatibility import COMPONENTS, MATRIX, untried

BOARD = {"server": "0.1.0", "calrt": "0.7.6", "driver": "1.0.0", "calcore_rt": "a1b2", "calbin_schema": "0.1"}


def test_what_was_tried_is_taken_whatever_nobody_wrote_down() -> None:
    assert untried("calculet", BOARD) is None
    assert untried("calculet", {**BOARD, "calcore_rt": "other", "compiler": "any 3", "server": "0.1.9"}) is None


@pytest.mark.parametrize(
    ("component", "version"),
    [("server", "0.2.0"), ("calrt", "0.7.7"), ("calrt", ""), ("driver", "1.0.1"), ("calbin_schema", "0.2")],
)
def test_every_other_version_is_named_beside_the_one_that_was_tried(component: str, version: str) -> None:
    problem = untried("calculet", {**BOARD, component: version})
    assert problem is not None
    assert f"{component} {version or 'unknown'}" in problem
    assert f"(tried was {component} " in problem


def test_a_board_nobody_has_tried_is_untried() -> None:
    problem = untried("calculet-2", BOARD)
    assert problem is not None
    assert problem.startswith("no combination of versions was ever tried on a calculet-2: server 0.1.0, calrt 0.7.6")


def test_every_row_says_who_saw_it_and_something_that_can_differ() -> None:
    for row in MATRIX:
        assert row.because
        assert any(getattr(row, component) is not None for component in COMPONENTS[1:])
