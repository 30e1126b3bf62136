"""A plant whose daemon's load steps a test holds open or makes fail: the test's side of `stepped_daemon`."""

from __future__ import annotations

import http.client
import json
import os
import sys
from contextlib import closing, contextmanager

import pytest

from tests.emulator import emulator_library
from tests.lifecycle.plant import Plant, wait_for
from tests.lifecycle.stepped_daemon import DIRECTORY

CALBIN = ("--emulated-calbin", "--lanes", "4", "--max-seq", "256")
TAKES_TURNS, BESIDE = pytest.param(False, id="one fits"), pytest.param(True, id="both fit")


class Stream:
    """One streamed reply.

    Args:
        response: whose first words have come.
    """

    def __init__(self, response):
        assert response.status == 200
        self._response = response
        self._begun = response.readline()

    def rest(self):
        """Its events, when it has ended; it must have ended well."""
        events = (self._begun + self._response.read()).decode().split("\n\n")
        assert events[-2:] == ["data: [DONE]", ""], events[-3:]
        return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]

    def text(self):
        """All that it says."""
        choices = [choice for event in self.rest() for choice in event["choices"]]
        return "".join(choice["delta"].get("content") or "" for choice in choices)


class SteppedPlant(Plant):
    """Two packages, ``old`` and ``new``, on the emulated board, which holds one model, or the CPU, which holds both.

    Args:
        home: see `Plant`.
        holds_both: which of the two.
    """

    def __init__(self, home, *, holds_both):
        super().__init__(home)
        self.holds_both = holds_both
        self.command = (sys.executable, "-m", "tests.lifecycle.stepped_daemon")
        self.steps = home / "steps"
        self.steps.mkdir()
        self.environment[DIRECTORY] = str(self.steps)
        (home / "scheduler.yaml").write_text(
            "schema: calculet-scheduler/v1\nrecovery: {replay: true, max_resets_per_10min: 100}\n"
        )
        self.config = {"models": [{"alias": "m", "package": "old", "scheduler": str(home / "scheduler.yaml")}]}
        if holds_both:
            pytest.importorskip("onnxruntime", reason="needs the host extra")
            self.pull("old", seed=1)
            self.pull("new", seed=2)
        else:
            self.config["device"] = {"runtime": "calrt"}
            self.environment["CALCULET_CALRT_LIBRARY"] = str(emulator_library())
            for name in ("old", "new"):
                self.run("package", "build", "-o", home / name, "--name", name, *CALBIN)
                self.run("package", "import", home / name)
        self.digests = {
            name: self.run("package", "show", name).split("digest")[1].split()[0] for name in ("old", "new")
        }

    def begin(self, package):
        """An operator's load under way; its name."""
        return self.admin.call("POST", "/admin/models/m/load", {"package": package})["job"]

    def end_of(self, job):
        """The job, when it has ended."""
        *_, ended = self.admin.follow(job)
        return ended

    def load(self, package):
        """An operator's load from beginning to end."""
        return self.end_of(self.begin(package))

    @contextmanager
    def streaming(self, *, tokens=40):
        """A reply that has begun."""
        body = {"model": "m", "stream": True, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
        body["messages"] = [{"role": "user", "content": "the sea"}]
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)) as connection:
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
            yield Stream(connection.getresponse())

    def said(self):
        """What the model says to a question of ours."""
        status, text = self.ask("the sea", model="m")
        assert status == 200, text
        return text

    def serves(self, package):
        """Whether it is what the alias means, and answers."""
        shown = self.status()
        return (shown["state"], shown["package"]) == ("ready", self.digests[package]) and bool(self.said())

    def health(self):
        """In one word."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request("GET", "/health")
            return json.load(connection.getresponse())["status"]

    def is_draining(self, job):
        """Whether the load lets open replies end."""
        lines = self.admin.call("GET", f"/admin/jobs/{job}")["progress"]
        return any("letting open replies end" in line["text"] for line in lines)

    def status(self):
        [shown] = self.admin.call("GET", "/admin/models")["models"]
        return shown

    # ---- the files ------------------------------------------------------------------------------------

    def fail(self, step, how):
        """The step fails once."""
        (self.steps / f"fail-{step}").write_text(how)

    def fault_job(self):
        """The job that ends next has ended nobody knows how."""
        (self.steps / "fault-job").touch()

    def hold(self, step):
        """The step waits where it begins."""
        os.mkfifo(self.steps / f"hold-{step}")

    def reached(self, step):
        """Wait until it is held there; returns what lets it go on."""
        gate, opened = self.steps / f"hold-{step}", []

        def is_there():
            try:
                opened.append(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))
            except OSError:  # nobody reads yet
                return False
            return True

        wait_for(is_there)
        gate.unlink()
        return lambda: os.close(opened[0])
