"""Each step of a load fails, or is cancelled, in the real process: the old model serves on, or again.

On the CPU the new model is put beside the old one; on the emulated board it takes the old one's place. One of the
eleven steps, close, calls nothing that could fail: it is books of the core's. What drain may end in is a deadline that
passes, and a device that does not let go.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from calculet_trio.errors import OperationFailed
from tests.lifecycle.plant import Crowd, wait_for
from tests.lifecycle.stepped import BESIDE, TAKES_TURNS, SteppedPlant
from tests.lifecycle.stepped_daemon import BROKEN, REFUSED

OFF_THE_DEVICE = ("resolve", "verify", "validate", "plan")
ON_THE_DEVICE = ("configure", "inspect", "warm_up", "golden", "publish")
FAILURES = [
    *((step, REFUSED) for step in (*OFF_THE_DEVICE, *ON_THE_DEVICE)),
    *((step, BROKEN) for step in ("verify", "configure", "golden", "publish")),
]


@pytest.fixture(scope="module", params=[TAKES_TURNS, BESIDE])
def plant(request):
    with tempfile.TemporaryDirectory() as home:
        made = SteppedPlant(Path(home), holds_both=request.param)
        with made.serving(**made.config):
            yield made


@pytest.fixture
def packages(plant):
    """The one that is served, and the other."""
    return ("old", "new") if plant.serves("old") else ("new", "old")


@pytest.mark.parametrize(("step", "how"), FAILURES)
def test_what_fails_leaves_the_model_that_was_there_and_no_client_hears_of_it(plant, packages, step, how):
    now, other = packages
    said = plant.said()
    with Crowd(plant) as crowd:
        wait_for(lambda: len(crowd.answers) > 4)
        plant.fail(step, how)
        ended = plant.load(other)
        seen = len(crowd.answers)
        wait_for(lambda: len(crowd.answers) > seen + 4)
    assert set(crowd.answers) == {(200, said)}
    assert ended["state"] == "failed"
    assert f"{step} {'fails' if how == REFUSED else 'breaks'}, as was planned" in ended["error"]
    assert plant.serves(now)
    assert plant.load(other)["state"] == "done", "nothing of the failed one is in the way"
    assert plant.serves(other)


def test_a_device_that_does_not_confirm_that_it_is_rid_of_a_model_is_named(plant, packages):
    now, other = packages
    plant.fail("unload", BROKEN)
    ended = plant.load(other)
    assert ended["state"] == "failed"
    assert "not certain to be rid of m" in ended["error"]
    assert plant.serves(other if plant.holds_both else now)


def test_what_cannot_be_recorded_as_good_serves_all_the_same(plant, packages):
    now, other = packages
    plant.fail("retain", BROKEN)
    ended = plant.load(other)
    assert ended["state"] == "failed"
    assert "m serves, but it is not on record as good: recording as good m broke off" in ended["error"]
    assert "not on record as good" in plant.status()["error"]
    assert plant.serves(other)
    assert plant.load(now)["state"] == "done"
    assert plant.status()["error"] is None


def test_a_history_that_cannot_be_written_costs_the_record_and_not_the_model(plant, packages):
    now, other = packages
    history = plant.home / "data" / "calculet-trio" / "packages" / ".history"
    history.rename(history.with_name(".history.away"))
    history.touch()
    try:
        ended = plant.load(other)
    finally:
        history.unlink()
        history.with_name(".history.away").rename(history)
    assert ended["state"] == "failed"
    assert f"m serves, but it is not on record as good: {history}" in ended["error"]
    assert plant.serves(other)
    assert plant.load(now)["state"] == "done"


@pytest.mark.parametrize("name", ["manifest.json", "model.sig"])
def test_a_package_that_is_touched_while_it_is_loaded_is_not_opened_to_requests(plant, packages, name):
    now, other = packages
    place = plant.home / "data" / "calculet-trio" / "packages" / ".content" / plant.digests[other]
    plant.hold("golden")
    job = plant.begin(other)
    go_on = plant.reached("golden")
    (place / name).write_bytes((place / name).read_bytes())
    go_on()
    ended = plant.end_of(job)
    if name == "model.sig":  # it may be signed anew at any time
        assert ended["state"] == "done"
        assert plant.load(now)["state"] == "done"
        return
    assert f"{name} was touched after it had been verified" in ended["error"]
    assert plant.serves(now)
    assert plant.load(other)["state"] == "done"


def refuses_to_cancel(plant, job):
    with pytest.raises(OperationFailed, match="past its point of no return"):
        plant.admin.call("DELETE", f"/admin/jobs/{job}")


@pytest.mark.parametrize("step", OFF_THE_DEVICE)
def test_a_load_that_is_cancelled_before_it_touches_the_device_comes_to_nothing(plant, packages, step):
    now, other = packages
    plant.hold(step)
    job = plant.begin(other)
    go_on = plant.reached(step)
    plant.admin.call("DELETE", f"/admin/jobs/{job}")
    go_on()
    assert plant.end_of(job)["state"] == "cancelled"
    assert plant.serves(now)
    assert plant.load(other)["state"] == "done"


@pytest.mark.parametrize("step", [*ON_THE_DEVICE, "unload", "retain"])
def test_a_load_that_has_touched_the_device_is_not_cancelled_but_seen_through(plant, packages, step):
    _, other = packages
    plant.hold(step)
    job = plant.begin(other)
    go_on = plant.reached(step)
    refuses_to_cancel(plant, job)
    go_on()
    assert plant.end_of(job)["state"] == "done"
    assert plant.serves(other)


def test_a_load_that_lets_open_replies_end_is_not_cancelled(plant, packages):
    _, other = packages
    with plant.streaming() as stream:
        plant.hold("job")
        go_on = plant.reached("job")
        job = plant.begin(other)
        wait_for(lambda: plant.is_draining(job))
        refuses_to_cancel(plant, job)
        go_on()
        assert stream.text()
    assert plant.end_of(job)["state"] == "done"
    assert plant.serves(other)
