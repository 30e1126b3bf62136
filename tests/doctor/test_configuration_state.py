"""Timeouts out of order, and what is remembered of faults, as doctor sees them."""

from __future__ import annotations

from pathlib import Path

import attrs

from calculet_trio.core.events import FaultReason
from calculet_trio.core.fault_record import FaultRecord
from calculet_trio.doctor.finding import Mark
from calculet_trio.settings.surface import TimeoutSettings
from calculet_trio.settings.timeout_order import TimeoutOrder
from calculet_trio.shell.fault_history import FaultHistory
from tests.doctor.recorded import assert_found, copy_of, surroundings, write

UNIT = "home/ann/.config/systemd/user/calculet-trio.service"


def around(tmp_path, **settings):
    tree = copy_of("no_board", tmp_path)
    found = surroundings(tree, tmp_path)
    home = attrs.evolve(found.account, home="/home/ann")
    order = TimeoutOrder(settings=TimeoutSettings(**settings), longest_job_s=65.0)
    return attrs.evolve(found, account=home, timeouts=order)


def test_timeouts_that_follow_the_longest_job_are_well(tmp_path: Path) -> None:
    assert_found("timeouts", around(tmp_path), Mark.OK, "longest job 65 s, watchdog 95 s, drain 125 s")


def test_a_watchdog_shorter_than_the_longest_job_is_a_failure(tmp_path: Path) -> None:
    assert_found("timeouts", around(tmp_path, watchdog_s=62.0), Mark.FAILURE, "(65 s) must be less than", "(62 s)")


def test_the_units_drop_ins_count_and_the_last_one_holds(tmp_path: Path) -> None:
    host = around(tmp_path, drain_s=160.0)
    write(host.tree, UNIT, "[Service]\nTimeoutStopSec=3min\n")
    assert_found("timeouts", host, Mark.OK, "TimeoutStopSec=3min")
    write(host.tree, f"{UNIT}.d/a.conf", "[Service]\nTimeoutSec=150\n")
    assert_found("timeouts", host, Mark.FAILURE, "drain_s (160 s) must be less than the unit's TimeoutStopSec (150 s)")
    write(host.tree, f"{UNIT}.d/b.conf", "[Service]\nTimeoutStopSec = infinity\n")
    assert_found("timeouts", host, Mark.OK, "infinity")


def test_the_drivers_timeout_is_held_against_the_configured_job(tmp_path: Path) -> None:
    host = surroundings(copy_of("board", tmp_path), tmp_path)
    parameter = "sys/module/calculet_pci/parameters/dma_timeout_ms"
    write(host.tree, parameter, "20000\n")
    assert_found("dma-timeout", host, Mark.OK, "20,000 ms", "60,000 ms")
    quick = attrs.evolve(host, timeouts=TimeoutOrder(settings=TimeoutSettings(job_s=10.0), longest_job_s=15.0))
    assert_found("dma-timeout", quick, Mark.WARNING, "20,000 ms", "10,000 ms")
    write(host.tree, parameter, "0\n")
    assert_found("dma-timeout", host, Mark.WARNING, "never gives up")


def history(host, name="host-m"):
    return FaultHistory(host.histories / f"{name}.json")


def test_no_history_is_well(tmp_path: Path) -> None:
    assert_found("fault-history", around(tmp_path), Mark.OK, "nothing is on record yet")


def test_faults_are_counted(tmp_path: Path) -> None:
    host = around(tmp_path)
    kept = history(host)
    kept.begin()
    kept.reset_begun()
    assert_found("fault-history", host, Mark.OK, "0 faults and 1 reset in the last 7 days")


def test_a_device_that_was_left_behind_is_told(tmp_path: Path) -> None:
    host = around(tmp_path)
    kept = history(host, "calrt")
    kept.begin()
    kept.leave_behind(FaultRecord(happened_unix_s=kept.now_unix_s(), reason=FaultReason.UNKNOWN_DMA))
    assert_found("fault-history", host, Mark.WARNING, "left its device at work: calrt: unknown_dma")


def test_what_was_set_aside_and_what_cannot_be_read_are_told(tmp_path: Path) -> None:
    host = around(tmp_path)
    host.histories.mkdir()
    (host.histories / "host-m.json").write_text("{")
    assert_found("fault-history", host, Mark.WARNING, "host-m.json is not valid JSON")
    history(host)
    assert_found("fault-history", host, Mark.WARNING, "host-m.json.set-aside-", "was set aside")
