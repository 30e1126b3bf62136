"""M4: two models take turns on a good board; each thing that may go wrong with that is seen when it does."""

from __future__ import annotations

import os
from pathlib import Path

import attrs
import pytest

from calculet_trio.conformance import footprint, milestone_m4
from calculet_trio.conformance.footprint import Footprint
from calculet_trio.conformance.gate import GateVerdict
from calculet_trio.conformance.milestone_m4 import Switching
from calculet_trio.conformance.switching import Reign, Traffic
from calculet_trio.conformance.two_models import FIRST, SECOND, TwoModels
from calculet_trio.core.policy import Policy
from calculet_trio.errors import ConfigurationRefused, PackageError
from calculet_trio.runtimes.emulated import OTHER_MODEL, EmulatedRuntime
from calculet_trio.shell.loading import ModelSource, ModelText
from calculet_trio.sim.virtual_life import VirtualLife
from calculet_trio.text.byte_tokenizer import ByteTokenizer
from tests.conformance import boards

NAMES = [
    "load and unload",
    "nothing left of loads",
    "rollback",
    "switching under traffic",
    "nothing left of switching",
]
ANY = Footprint(tasks=3, threads=3, files=9, sockets=2, memory_bytes=1000, device_bytes=1000)


@pytest.fixture(autouse=True)
def _memory_of_other_tests(monkeypatch):
    """This process's heap is other tests', too, and comes and goes with them: its growth is held by numbers below."""
    real = footprint.held_now
    monkeypatch.setattr(footprint, "held_now", lambda: attrs.evolve(real(), memory_bytes=1000))


def two_models(kind=EmulatedRuntime, **changes):
    """A board and its two models, in virtual time, for one life: its clock ends with it."""
    board = boards.model(**{"vocab_size": 259, **changes})
    life = VirtualLife(board, seed=1, kind=kind)
    first = ModelSource(
        alias="m",
        package=Path("board"),
        verify=lambda: None,
        open_text=lambda: ModelText(ByteTokenizer(), None),
        meta={},
        shape=board.shape(),
    )
    return TwoModels(
        runtime=lambda: life.runtime,
        sources=(first, attrs.evolve(first, package=OTHER_MODEL)),
        policy=Policy(),
        runner=life.runner,
        run=life.run,
    )


def tried(kind=EmulatedRuntime, *, change=lambda models: models, **changes):
    """M4's criteria on such a board, in small."""
    loads, switched = (change(two_models(kind, **changes)) for _ in range(2))
    traffic = Traffic(clients=4, pause_s=0.5, dwell_s=2.0)
    switching = Switching(models=switched, traffic=traffic, hours=0.02, time="virtual")
    return milestone_m4.try_m4(loads, switching, cycles=4, progress=lambda _line: None)


def the_one_that_fails(criteria):
    [found] = [each for each in criteria if each.verdict is GateVerdict.FAIL]
    return found


def test_m4_passes_on_a_good_board():
    criteria = tried()
    assert [(each.name, each.verdict) for each in criteria] == [(name, GateVerdict.PASS) for name in NAMES], criteria


def test_a_model_that_the_alias_does_not_mean_is_noticed():
    class Sticks(EmulatedRuntime):
        """From the seventh load on it keeps what it had."""

        loads = 0

        def configure(self, generation, package):
            self.loads += 1
            kept = self.model
            super().configure(generation, package)
            if self.loads > 6:
                self.model = kept

    criteria = tried(Sticks)
    assert [each.name for each in criteria if each.verdict is GateVerdict.FAIL] == [
        "load and unload",
        "rollback",
        "switching under traffic",
    ]
    assert "loads a reply is wrong" in criteria[0].seen
    assert "answered by the second model, which was not there" in criteria[3].seen.replace("first", "second")


def test_a_reply_of_neither_model_is_noticed():
    class Blurs(EmulatedRuntime):
        loads = 0

        def configure(self, generation, package):
            self.loads += 1
            super().configure(generation, package)
            if self.loads > 11:
                self.model = attrs.evolve(self.model, voice=self.model.voice + 7)

    found = the_one_that_fails(tried(Blurs))
    assert "a reply is of neither model" in found.seen


def test_a_reply_that_is_lost_is_noticed():
    class Forgets(EmulatedRuntime):
        """Its lanes are gone once the seventh model is there."""

        loads = 0

        def configure(self, generation, package):
            self.loads += 1
            super().configure(generation, package)

        def can_allocate(self, generation, sequences):
            return self.loads < 13 and super().can_allocate(generation, sequences)

        def submit(self, engine, job):
            if self.loads == 13:
                raise OSError("the library is gone")
            return super().submit(engine, job)

    found = the_one_that_fails(tried(Forgets))
    assert found.name == "switching under traffic"


def test_memory_that_does_not_come_back_is_noticed():
    class Keeps(EmulatedRuntime):
        kept = 0

        def unload(self, generation):
            self.kept += 10**9
            return super().unload(generation)

        def memory(self):
            use = super().memory()
            return attrs.evolve(use, used_bytes=use.used_bytes + self.kept)

    criteria = tried(Keeps, memory_bytes=1 << 60)
    failed = {each.name: each.seen for each in criteria if each.verdict is GateVerdict.FAIL}
    assert failed.keys() == {"load and unload", "nothing left of loads", "nothing left of switching"}
    assert "device_bytes from" in failed["nothing left of loads"]


def test_a_file_that_each_load_leaves_open_is_noticed(tmp_path):
    opened = []

    class Leaks(EmulatedRuntime):
        def configure(self, generation, package):
            opened.append(os.open(tmp_path, os.O_RDONLY))
            super().configure(generation, package)

    try:
        criteria = tried(Leaks)
    finally:
        for descriptor in opened:
            os.close(descriptor)
    failed = {each.name: each.seen for each in criteria if each.verdict is GateVerdict.FAIL}
    assert failed.keys() == {"nothing left of loads", "nothing left of switching"}
    assert "grew: files from" in failed["nothing left of loads"]


def test_a_way_back_that_leads_elsewhere_is_noticed():
    verified = []

    def verify():
        verified.append(1)
        if len(verified) > 4:
            raise PackageError("it was changed after it was signed")

    def changed(models):
        first, second = models.sources
        return attrs.evolve(models, sources=(attrs.evolve(first, verify=verify), second))

    # Loaded at the start, for its words, in two cycles, and before the rollback: that one is the sixth time.
    [found] = tried(change=changed)
    assert (found.name, found.verdict) == ("load and unload", GateVerdict.FAIL)
    assert "changed after it was signed" in found.seen


def test_two_models_that_say_the_same_cannot_be_tried():
    def changed(models):
        return attrs.evolve(models, sources=(models.sources[FIRST], models.sources[FIRST]))

    with pytest.raises(ConfigurationRefused, match="both models say the same"):
        tried(change=changed)


def test_who_may_answer_is_who_was_meant_at_some_moment_of_the_request():
    reign = Reign(FIRST)
    before = reign.moment
    assert reign.since(before) == {FIRST}
    reign.begin(SECOND)
    during = reign.moment
    assert reign.since(before) == reign.since(during) == {FIRST, SECOND}
    reign.done()
    assert reign.since(during) == {FIRST, SECOND}
    assert reign.since(reign.moment) == {SECOND}


@pytest.mark.parametrize(
    ("name", "more", "less"),
    [
        ("tasks", 4, 3),
        ("threads", 4, 3),
        ("files", 10, 9),
        ("sockets", 3, 2),
        ("memory_bytes", 1021, 1020),
        ("device_bytes", 1021, 1020),
    ],
)
def test_what_has_grown_is_named(name, more, less):
    assert ANY.grown(attrs.evolve(ANY, **{name: less})) == ()
    assert ANY.grown(attrs.evolve(ANY, **{name: more})) == (f"{name} from {getattr(ANY, name)} to {more}",)
