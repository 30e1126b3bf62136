"""The emulated board holds one model: swap, rollback and unload by an operator's own commands, under load."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest

from tests.emulator import emulator_library
from tests.lifecycle.plant import Crowd, Plant, wait_for

SHAPE = ("--emulated-calbin", "--lanes", "4", "--max-seq", "256")


@pytest.fixture(scope="module")
def plant():
    library = emulator_library()
    with tempfile.TemporaryDirectory() as home:
        made = Plant(Path(home))
        made.environment["CALCULET_CALRT_LIBRARY"] = str(library)
        for version in ("1.0", "2.0"):
            package = made.home / version
            made.run("package", "build", "-o", package, "--name", "m", "--package-version", version, *SHAPE)
        made.run("package", "import", made.home / "1.0")
        yield made


def result_of(plant, *arguments):
    return json.loads(plant.run("models", *arguments, "--json").splitlines()[-1])["result"]


def served(plant):
    model = plant.models()["m"]
    return model["state"], model["package_version"]


def test_a_board_changes_its_model_while_clients_wait(plant):
    with plant.serving(device={"runtime": "calrt"}, models=[{"alias": "m", "package": "m"}]):
        _, said = plant.ask("the sea", model="m")  # of a prompt's history alone, so that any mix-up shows
        plant.run("package", "import", plant.home / "2.0", "--force")
        with Crowd(plant) as crowd:
            wait_for(lambda: len(crowd.answers) > 8)
            swapped = result_of(plant, "load", "m", "--package", "m")
            seen = len(crowd.answers)
            wait_for(lambda: len(crowd.answers) > seen + 8)
            assert served(plant) == ("ready", "2.0")
            back = result_of(plant, "rollback", "m")
            seen = len(crowd.answers)
            wait_for(lambda: len(crowd.answers) > seen + 8)
            assert served(plant) == ("ready", "1.0")
        assert set(crowd.answers) == {(200, said)}
        for result in (swapped, back):
            assert 0 < result["downtime_s"] < 60
        result_of(plant, "unload", "m")
        assert plant.ask("the sea", model="m") == (404, "model_not_found")
        result_of(plant, "load", "m", "--package", "m")
        assert plant.ask("the sea", model="m") == (200, said)
