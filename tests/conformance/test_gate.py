"""The gates: a good board passes, and each criterion is seen to fail where its thing is wrong."""

from __future__ import annotations

import time
from pathlib import Path

import attrs
import pytest
import trio

from calculet_trio.conformance import milestone_m0, milestone_m1, milestone_m2, quiet_waiting, visible_codes
from calculet_trio.conformance.blocks import Block, BlockSize, same_behaviour
from calculet_trio.conformance.clean_hours import (
    CleanHours,
    Held,
    Rounds,
    clean_criterion,
    held_now,
    leak_criterion,
    serve_clean_hours,
    serve_rounds,
)
from calculet_trio.conformance.comparison import Foursome
from calculet_trio.conformance.gate import Criterion, GateReport, GateVerdict, verdict_of
from calculet_trio.conformance.quiet_waiting import quiet_criterion
from calculet_trio.conformance.trial import LifeFailed, Trial
from calculet_trio.conformance.visible_codes import NOT_OF_A_DEVICE, codes_criterion, ways
from calculet_trio.core.events import FaultReason
from calculet_trio.core.policy import Policy
from calculet_trio.errors import ConfigurationRefused
from calculet_trio.observe.metrics import ServiceMetrics
from calculet_trio.runtimes.device_model import PrefillCurve, StepCurve
from calculet_trio.runtimes.emulated import EmulatedRuntime
from calculet_trio.runtimes.pace import RealPace
from calculet_trio.shell.loading import ModelSource, ModelText
from calculet_trio.shell.service import Service
from calculet_trio.text.byte_tokenizer import ByteTokenizer
from tests.conformance import boards

SIZE = BlockSize(foursomes=3, requests=4, tokens=6)
SOURCE = ModelSource(
    alias="m", package=Path("board"), verify=lambda: None, open_text=lambda: ModelText(ByteTokenizer(), None), meta={}
)


def trial_of(kind=EmulatedRuntime, **changes):
    quick = {
        "vocab_size": 259,
        "decode": {1: StepCurve(0.002)},
        "prefill": PrefillCurve(0.0, 0.0005),
        "h2d_s": 0.0,
        "d2h_row_s": 0.0,
        **changes,
    }
    return Trial(kind(boards.model(**quick), RealPace()), SOURCE)


def silent(_what):
    """Nobody watches."""


def nothing_wrong(_policy):
    return CleanHours(hours=24, is_virtual=True, requests=1, objection=None, checked="all")


# ---- what a life of the daemon is ---------------------------------------------------------------------


def test_a_trial_loads_its_model_once_and_gives_the_device_back():
    class Counted(EmulatedRuntime):
        configured = closed = 0

        def configure(self, generation, package):
            type(self).configured += 1
            super().configure(generation, package)

        def close(self):
            type(self).closed += 1
            super().close()

    async def visit(service: Service) -> int:
        return len(service.models())

    with trial_of(Counted) as trial:
        assert [trial.live(Policy(), visit) for _ in range(3)] == [1, 1, 1]
    assert (Counted.configured, Counted.closed) == (1, 1)


def test_a_life_that_ends_badly_says_why_and_the_next_begins_anew():
    async def fall_over(_service: Service) -> None:
        raise RuntimeError("the client fell over")

    async def fine(_service: Service) -> str:
        return "fine"

    async def never(_service: Service) -> None:
        await trio.sleep_forever()

    with trial_of() as trial:
        with pytest.raises(LifeFailed, match="the client fell over"):
            trial.live(Policy(), fall_over)
        with pytest.raises(LifeFailed, match="TooSlow"):
            trial.live(Policy(), never, bound_s=0.2)
        assert trial.live(Policy(), fine) == "fine"


@pytest.mark.parametrize("reason", [FaultReason.CCU_FAULT, FaultReason.DEVICE_LOST, FaultReason.RUNTIME_ERROR])
def test_a_job_whose_outcome_a_provoked_fault_keeps_back_is_over_before_the_device_is_reset_or_given_back(reason):
    """A board's binding refuses both while a job is out."""
    given_back = []

    class Strict(EmulatedRuntime):
        out = 0

        def submit(self, engine, job):
            self.out += 1
            return super().submit(engine, job)

        def wait(self, engine, ticket, timeout_s):
            self.out -= 1
            return super().wait(engine, ticket, timeout_s)

        def reset_configuration(self):
            given_back.append(("reset", self.out))
            return super().reset_configuration()

        def close(self):
            given_back.append(("close", self.out))
            super().close()

    with trial_of(Strict) as trial:
        assert visible_codes._shows(trial, Policy(), reason, visible_codes.ways()[reason])
    assert ("close", 0) in given_back
    assert all(out == 0 for _, out in given_back), given_back


# ---- m0 -----------------------------------------------------------------------------------------------


def test_m0_passes_on_a_good_board(monkeypatch):
    monkeypatch.setattr(milestone_m0, "LEAK_ROUNDS_S", 0.1)
    with trial_of(prefill=PrefillCurve(0.0, 0.003)) as trial:
        criteria = milestone_m0.try_m0(trial, Policy(), serve_hours=nothing_wrong, progress=silent)
    assert [(each.name, each.verdict) for each in criteria] == [
        (name, GateVerdict.PASS) for name in ("no busy-wait", "error codes visible", "no leak", "clean hours")
    ], criteria


def test_a_wait_that_asks_and_asks_is_a_busy_wait(monkeypatch):
    monkeypatch.setattr(quiet_waiting, "BUSY_SHARE_AT_MOST", 0.05)  # on a busy machine a loop gets little, too

    class Impatient(EmulatedRuntime):
        def wait(self, engine, ticket, timeout_s):
            end_s = self._running[engine][2]
            while time.monotonic() < end_s:
                pass
            return super().wait(engine, ticket, timeout_s)

    with trial_of(Impatient, prefill=PrefillCurve(0.5, 0.0)) as trial:
        found = quiet_criterion(trial, Policy())
    assert found.verdict is GateVerdict.FAIL, found.seen


def test_behind_a_job_that_is_over_at_once_nobody_is_seen_to_wait():
    with trial_of(prefill=PrefillCurve(0.0, 0.0)) as trial:
        found = quiet_criterion(trial, Policy())
    assert found.verdict is GateVerdict.INCONCLUSIVE
    assert found.seen.endswith("a job must take 0.1 s to be waited for")


def test_every_reason_of_a_device_has_a_way_and_a_hidden_one_is_named(monkeypatch):
    every = ways()
    assert set(FaultReason) - set(every) == NOT_OF_A_DEVICE
    monkeypatch.setattr(visible_codes, "ways", lambda: {FaultReason.OUTPUT_ERROR: every[FaultReason.OUTPUT_ERROR]})
    monkeypatch.setattr(visible_codes, "_SHOWS_S", 0.05)
    monkeypatch.setattr(ServiceMetrics, "heard", lambda *_given: None)
    with trial_of() as trial:
        found = codes_criterion(trial, Policy(), progress=silent)
    assert found.verdict is GateVerdict.FAIL
    assert "not in the metrics: output_error; not tried: device_busy, " in found.seen


def test_replies_that_are_not_their_own_are_found():
    with trial_of(boards.TouchesItsNeighbour) as trial:
        found = serve_rounds(trial, Policy(), seconds=0.1, progress=silent)
    assert "a reply is not its own" in (found.objection or "")


def test_hours_in_real_time_are_clean_on_a_good_board_and_not_on_one_that_is_lost():
    with trial_of() as trial:
        served = serve_clean_hours(trial, Policy(), hours=0.1 / 3600, progress=silent)
        assert served.objection is None
        assert served.requests >= 6 * 8

    class Raises(EmulatedRuntime):
        def wait(self, engine, ticket, timeout_s):
            raise OSError("the library is gone")

    with trial_of(Raises) as trial:
        assert "runtime_error" in (serve_clean_hours(trial, Policy(), hours=0.1, progress=silent).objection or "")


@pytest.mark.parametrize(
    ("late", "device_bytes", "grew"),
    [
        (Held(1000, 1000, 9, 3), (50, 50), ""),
        (Held(1021, 1000, 9, 3), (50, 50), "objects from 1000 to 1021"),
        (Held(1000, 1021, 9, 3), (50, 50), "resident bytes"),
        (Held(1000, 1000, 10, 3), (50, 50), "open files"),
        (Held(1000, 1000, 9, 3), (50, 52), "device bytes"),
    ],
)
def test_what_grows_from_round_to_round_is_a_leak(late, device_bytes, grew):
    found = leak_criterion(Rounds(None, 10, Held(1000, 1000, 9, 3), late, device_bytes))
    assert found.verdict is (GateVerdict.FAIL if grew else GateVerdict.PASS)
    assert grew in found.seen


def test_an_objection_to_the_hours_fails_them():
    served = attrs.evolve(nothing_wrong(Policy()), objection="a lane was lost")
    assert clean_criterion(served) == Criterion(
        "clean hours", GateVerdict.FAIL, "24 h of virtual time, 1 requests; all; a lane was lost"
    )


# ---- m1, m2 -------------------------------------------------------------------------------------------


def by_name(criteria):
    return {each.name: each for each in criteria}


def test_m1_compares_sync_with_async_and_nothing_else():
    arms = milestone_m1.arms(Policy())
    assert arms["baseline"].executor.synchronous
    assert arms["candidate"] == attrs.evolve(
        arms["baseline"], executor=attrs.evolve(arms["baseline"].executor, synchronous=False)
    )
    with trial_of() as trial:
        found = by_name(milestone_m1.try_m1(trial, Policy(), SIZE, progress=silent))
    assert found.keys() == {"same behaviour", "P50", "P99"}
    assert found["same behaviour"].verdict is GateVerdict.PASS


def test_m2_sees_engines_that_compute_at_once():
    with trial_of(compute_overlaps=True, decode={1: StepCurve(0.02)}) as trial:
        found = by_name(milestone_m2.try_m2(trial, Policy(), SIZE, serve_hours=nothing_wrong, progress=silent))
    assert found.keys() == {"same behaviour", "both engines", "aggregate", "P99", "clean hours"}
    assert found["both engines"].verdict is GateVerdict.PASS
    assert found["aggregate"].verdict is not GateVerdict.FAIL, found["aggregate"].seen


def test_m2_does_not_take_one_engine_for_two():
    class Odd(EmulatedRuntime):
        def wait(self, engine, ticket, timeout_s):
            outcome = super().wait(engine, ticket, timeout_s)
            return attrs.evolve(outcome, anomaly=FaultReason.STATUS_ANOMALY)

    with trial_of(Odd, decode={1: StepCurve(0.002)}) as trial:
        found = by_name(milestone_m2.try_m2(trial, Policy(), SIZE, serve_hours=nothing_wrong, progress=silent))
    assert found["same behaviour"].verdict is GateVerdict.PASS
    assert found["both engines"].verdict is GateVerdict.FAIL
    assert found["both engines"].seen.endswith("ended on one engine: status_anomaly")


def test_a_slow_device_gets_shorter_replies_and_never_too_short_ones():
    size = BlockSize(foursomes=4, requests=4, tokens=20, within_s=32.0)
    assert size.shortened(block_s=2.0) == size
    assert size.shortened(block_s=4.0).tokens == 10
    assert size.shortened(block_s=400.0).tokens == 5


def test_m2_is_refused_where_there_is_one_engine():
    with trial_of(engines=1) as trial, pytest.raises(ConfigurationRefused, match="this device has 1"):
        milestone_m2.try_m2(trial, Policy(), SIZE, serve_hours=nothing_wrong, progress=silent)


def test_a_daemon_that_dies_in_a_block_fails_the_gate():
    class Raises(EmulatedRuntime):
        def wait(self, engine, ticket, timeout_s):
            raise OSError("the library is gone")

    with trial_of(Raises) as trial:
        [found] = milestone_m1.try_m1(trial, Policy(), SIZE, progress=silent)
    assert (found.name, found.verdict) == ("no abort", GateVerdict.FAIL)
    assert "runtime_error" in found.seen


def block(texts=("a", "b"), trouble=()):
    return Block(gaps_s=(0.1,), tokens=2, taken_s=1.0, texts=texts, trouble=trouble)


@pytest.mark.parametrize(
    ("other", "words"), [(block(texts=("a", "c")), "with other words"), (block(trouble=("lost",)), "the first: lost")]
)
def test_other_words_and_bad_endings_are_another_behaviour(other, words):
    assert same_behaviour((Foursome((block(), block()), (block(), block())),)).verdict is GateVerdict.PASS
    found = same_behaviour((Foursome((block(), block()), (block(), other)),))
    assert found.verdict is GateVerdict.FAIL
    assert words in found.seen


# ---- the report ---------------------------------------------------------------------------------------


def test_a_verdict_is_that_of_its_worst_criterion():
    passed, failed, unclear = GateVerdict.PASS, GateVerdict.FAIL, GateVerdict.INCONCLUSIVE
    assert verdict_of([passed, passed]) is passed
    assert verdict_of([passed, unclear]) is unclear
    assert verdict_of([unclear, failed, passed]) is failed


def test_emulated_and_short_stand_beside_the_verdict():
    report = GateReport(
        milestone="m1",
        asks="…",
        model="m",
        board_kind="emulated",
        is_short=True,
        assumptions=("a",),
        criteria=(Criterion.of("c", holds=True, seen="s"),),
        begun_at="2026-01-01T00:00:00+00:00",
    )
    assert report.line == "M1 PASS (emulated, short)"
    assert attrs.evolve(report, board_kind="cpu", is_short=False).line == "M1 PASS"
    assert report.as_object()["criteria"] == [{"name": "c", "verdict": "PASS", "seen": "s"}]


async def test_deadlines_that_trio_has_yet_to_forget_are_nothing_that_is_held():
    before = held_now()
    for _ in range(900):
        with trio.move_on_after(3600):
            await trio.lowlevel.checkpoint()
    assert held_now().objects < before.objects + 90
