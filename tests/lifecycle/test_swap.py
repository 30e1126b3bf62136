"""Swap, unload and rollback of the real process over real models, under load, by an operator's own commands."""

from __future__ import annotations

import fcntl
import json
import tempfile
from pathlib import Path

import pytest

from tests.lifecycle.plant import Crowd, Plant, wait_for

pytest.importorskip("onnxruntime", reason="needs the host extra")


@pytest.fixture(scope="module")
def plant():
    with tempfile.TemporaryDirectory() as home:
        made = Plant(Path(home))
        made.pull("m", "--package-version", "1.0", seed=1)
        made.pull("n", seed=2)
        yield made


def test_a_swap_under_load_and_the_way_back(plant):
    with plant.serving(models=[{"alias": "m", "package": "m"}]):
        _, old = plant.ask("the sea", model="m")
        with Crowd(plant) as crowd:
            wait_for(lambda: len(crowd.answers) > 8)
            done = json.loads(plant.run("models", "load", "m", "--package", "n", "--json").splitlines()[-1])
            seen = len(crowd.answers)
            wait_for(lambda: len(crowd.answers) > seen + 8)
        _, new = plant.ask("the sea", model="m")
        assert old != new
        assert set(crowd.answers) == {(200, old), (200, new)}
        assert crowd.answers[-1] == (200, new)
        assert done["result"] == {"generation": 2, "downtime_s": 0.0}
        texts = [line["text"] for line in done["progress"]]
        for word in ("finding", "checking signature", "planning", "configuring", "inspecting", "proving", "publishing"):
            assert any(word in text for text in texts), word

        plant.run("models", "load", "m", "--package", "m")
        assert plant.ask("the sea", model="m") == (200, old)
        shown = plant.models()["m"]
        assert (shown["state"], shown["generation"], shown["package_version"]) == ("ready", 3, "1.0")


def test_a_rollback_undoes_a_package_of_another_name_too_and_another_undoes_that(plant):
    with plant.serving(models=[{"alias": "m", "package": "m"}]):
        _, old = plant.ask("the sea", model="m")
        first = plant.models()["m"]["package"]
        plant.run("models", "load", "m", "--package", "n")
        _, new = plant.ask("the sea", model="m")
        assert plant.models()["m"]["previous"] == first
        plant.run("models", "rollback", "m")
        assert plant.ask("the sea", model="m") == (200, old)
        plant.run("models", "rollback", "m")
        assert plant.ask("the sea", model="m") == (200, new)
        plant.run("models", "unload", "m")
        plant.run("models", "load", "m", "--package", "m")
        assert plant.run("models", "rollback", "m", code=1).count("nothing to go back to") == 1


def test_an_update_and_its_rollback_are_one_command_each(plant):
    with plant.serving(models=[{"alias": "m", "package": "m"}]):
        _, old = plant.ask("the sea", model="m")
        plant.pull("m", "--force", "--package-version", "2.0", seed=3)
        plant.run("models", "load", "m", "--package", "m")
        _, new = plant.ask("the sea", model="m")
        assert new != old
        assert plant.models()["m"]["package_version"] == "2.0"
        plant.run("models", "rollback", "m")
        assert plant.ask("the sea", model="m") == (200, old)
        assert plant.models()["m"]["package_version"] == "1.0"
    with plant.serving(models=[{"alias": "m", "package": "m"}]):
        assert plant.ask("the sea", model="m") == (200, old)


def test_a_rollback_whose_name_cannot_be_moved_says_what_the_next_start_would_serve(plant):
    plant.pull("moved", "--package-version", "1.0", seed=4)
    lock = plant.home / "data" / "calculet-trio" / "packages" / ".lock"
    with plant.serving(models=[{"alias": "m", "package": "moved"}]):
        plant.pull("moved", "--force", "--package-version", "2.0", seed=5)
        plant.run("models", "load", "m", "--package", "moved")
        with lock.open("rb") as held:  # as a command does that changes the store
            fcntl.flock(held, fcntl.LOCK_EX)
            told = plant.run("models", "rollback", "m", code=1)
        assert "m serves, but" in told
        assert "the next start would serve what was given up, as moved: the store" in told
        assert plant.models()["m"]["package_version"] == "1.0"
        plant.run("models", "rollback", "m")
    with plant.serving(models=[{"alias": "m", "package": "moved"}]):
        assert plant.models()["m"]["package_version"] == "1.0"


def test_two_models_side_by_side_and_one_of_them_leaves(plant):
    with plant.serving(models=[{"alias": "a", "package": "m"}, {"alias": "b", "package": "n"}]):
        assert plant.ask("the sea", model="a")[1] != plant.ask("the sea", model="b")[1]
        with Crowd(plant, model="b") as crowd:
            wait_for(lambda: crowd.answers)
            plant.run("models", "unload", "a")
            assert plant.ask("the sea", model="a") == (404, "model_not_found")
            assert "not loaded" in plant.run("models", "unload", "a", code=1)
            plant.run("models", "load", "a", "--package", "m")
            assert plant.ask("the sea", model="a")[0] == 200
        assert {status for status, _ in crowd.answers} == {200}


@pytest.mark.parametrize(
    ("package", "words"),
    [("nothing", "nothing"), ("/etc", "is a path"), ("../m", "is a path")],
)
def test_what_is_no_package_of_the_store_is_not_loaded(plant, package, words):
    with plant.serving(models=[{"alias": "m", "package": "m"}]):
        assert words in plant.run("models", "load", "m", "--package", package, code=1)
        assert plant.ask("the sea", model="m")[0] == 200


def test_ten_loads_leave_no_thread_no_file_and_no_socket(plant):
    with plant.serving(models=[{"alias": "m", "package": "m"}]):
        before = None
        for number in range(10):
            plant.run("models", "load", "m", "--package", "n" if number % 2 == 0 else "m")
            if number == 1:
                before = plant.resources()
        wait_for(lambda: plant.resources() <= before)
