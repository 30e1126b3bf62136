"""Time of an emulated device: owed in a simulation, spent for real."""

from __future__ import annotations

import threading

from calculet_trio.runtimes.pace import RealPace, VirtualPace

LONG_S = 3600.0
BOUND_S = 30.0


def test_virtual_time_is_owed_and_paid_once() -> None:
    now = [10.0]
    pace = VirtualPace(lambda: now[0])
    pace.pass_until(12.0)
    assert pace.now() == 12.0
    pace.pass_until(11.0)
    assert pace.now() == 12.0
    assert pace.take_debt() == 12.0
    assert pace.now() == 10.0
    assert pace.take_debt() == 10.0


def test_a_debt_that_the_world_has_overtaken_is_none() -> None:
    now = [10.0]
    pace = VirtualPace(lambda: now[0])
    pace.pass_until(12.0)
    now[0] = 15.0
    assert pace.now() == 15.0
    assert pace.take_debt() == 15.0


def test_a_moment_that_has_passed_is_not_waited_for() -> None:
    pace = RealPace()
    pace.pass_until(pace.now() - 1.0)


def test_closing_lets_everybody_go_on() -> None:
    pace = RealPace()
    waiting = threading.Thread(target=pace.pass_until, args=(pace.now() + LONG_S,))
    waiting.start()
    pace.close()
    waiting.join(BOUND_S)
    assert not waiting.is_alive()


def test_real_time_passes() -> None:
    pace = RealPace()
    moment_s = pace.now() + 0.01
    pace.pass_until(moment_s)
    assert pace.now() >= moment_s
