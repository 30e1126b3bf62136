"""A load or a drain that is disturbed, in the real process: by a reset of the device, and by a SIGTERM."""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path

import pytest

from calculet_trio.cli.exit_codes import ExitCode
from tests.lifecycle.plant import wait_for
from tests.lifecycle.stepped import BESIDE, TAKES_TURNS, SteppedPlant

LOADING = ("verify", "configure", "golden", "retain")


@pytest.fixture(scope="module", params=[TAKES_TURNS, BESIDE])
def plant(request):
    with tempfile.TemporaryDirectory() as home:
        yield SteppedPlant(Path(home), holds_both=request.param)


def resets(plant):
    """How often the device was reset, as the log has it."""
    return (plant.home / "daemon.log").read_text().count("device_reset_begun")


def test_a_reset_while_open_replies_end_costs_none_of_them_a_word(plant):
    with plant.serving(**plant.config):
        with plant.streaming() as stream:
            whole = stream.text()
        with plant.streaming() as stream:
            plant.hold("job")
            go_on = plant.reached("job")
            job = plant.begin("new")
            wait_for(lambda: plant.is_draining(job))
            plant.fault_job()
            go_on()
            assert stream.text() == whole
        assert plant.end_of(job)["state"] == "done"
        assert resets(plant) == 1
        assert plant.serves("new")


@pytest.mark.parametrize("step", ["configure", "inspect", "golden"])
def test_a_reset_in_the_middle_of_a_load_waits_for_its_end_and_both_models_are_there_after_it(plant, step):
    if not plant.holds_both:
        pytest.skip("where one fits nobody is served while another is loaded")
    with plant.serving(**plant.config):
        with plant.streaming() as stream:
            whole = stream.text()
        plant.hold(step)
        job = plant.begin("new")
        go_on = plant.reached(step)
        with plant.streaming() as stream:
            plant.hold("job")
            end_job = plant.reached("job")
            plant.fault_job()
            end_job()
            wait_for(lambda: plant.health() == "recovering")
            go_on()
            assert stream.text() == whole
        assert plant.end_of(job)["state"] == "done"
        assert resets(plant) == 1
        assert plant.serves("new")
        assert plant.load("old")["state"] == "done"


@pytest.mark.parametrize("step", LOADING)
def test_a_sigterm_in_the_middle_of_a_swap_ends_in_time_with_0_and_the_next_start_is_clean(plant, step):
    with plant.serving(**plant.config):
        plant.hold(step)
        plant.begin("new")
        go_on = plant.reached(step)
        plant.process.send_signal(signal.SIGTERM)
        wait_for(lambda: "signal" in (plant.home / "daemon.log").read_text())
        go_on()
        plant.process.wait(60)
    with plant.serving(**plant.config):
        assert plant.serves("old")


def test_a_sigterm_that_a_call_of_the_device_outlasts_leaves_with_75_and_the_next_start_is_clean(plant):
    with plant.serving(ends_with=ExitCode.RESTART, **plant.config):
        plant.hold("configure")
        plant.begin("new")
        go_on = plant.reached("configure")
        plant.process.send_signal(signal.SIGTERM)
        plant.process.wait(60)
        go_on()
    with plant.serving(**plant.config):
        assert plant.serves("old")


def test_a_sigterm_while_open_replies_end_lets_them_end(plant):
    with plant.serving(**plant.config):
        with plant.streaming() as stream:
            plant.hold("job")
            go_on = plant.reached("job")
            job = plant.begin("new")
            wait_for(lambda: plant.is_draining(job))
            plant.process.send_signal(signal.SIGTERM)
            wait_for(lambda: "signal" in (plant.home / "daemon.log").read_text())
            go_on()
            assert stream.text()
        plant.process.wait(60)
    with plant.serving(**plant.config):
        assert plant.serves("old")
