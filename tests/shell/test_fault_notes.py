"""What a survived fault leaves behind: one line in the log, one record in the history, and no flood of either."""

from __future__ import annotations

import pytest
import structlog
import trio

from calculet_trio.core.effects import Effect, Fail, ResetDevice
from calculet_trio.core.events import FaultReason, JobFailed, JobFinished, JobNotSubmitted
from calculet_trio.core.fault_record import Quarantine
from calculet_trio.core.faults import FAULTS
from calculet_trio.core.jobs import EngineId
from calculet_trio.core.policy import Policy, RecoveryPolicy
from calculet_trio.core.serving import ServingCore
from calculet_trio.errors import GenerationFailed
from calculet_trio.shell.blocking import ThreadRunner
from calculet_trio.shell.fault_history import FaultHistory, read_memory
from calculet_trio.shell.fault_notes import REMEMBERED_EVERY_S, FaultNotes
from tests.core.test_fault_sightings import SHOWN
from tests.shell.house import ask, living, until


def script(fault):
    return {"lanes": 2, "replies": [{"when": "bad", "tokens": ["a", {"text": "b", "fault": fault}]}, {"tokens": ["x"]}]}


async def test_a_fault_that_leads_to_a_reset_is_on_disk_with_what_it_put_in_quarantine(tmp_path):
    path = tmp_path / "faults.json"
    policy = Policy(recovery=RecoveryPolicy(max_resets_per_10min=2))
    async with living(script("raise"), policy=policy, history=FaultHistory(path)) as house:
        with pytest.raises(GenerationFailed, match="runtime_error"):
            await ask(house.service, "bad")
        await until(lambda: read_memory(path).resets and read_memory(path).resets[0].succeeded)
        await until(lambda: read_memory(path).faults)
        await until(lambda: house.service.health().status == "ok")
        assert (await ask(house.service, "good"))[0] == "x"
        [fault] = read_memory(path).faults
    assert (fault.reason, fault.engine, fault.next_step) == (FaultReason.RUNTIME_ERROR, EngineId.PING, "reset")
    assert fault.quarantine == Quarantine(jobs=1, lanes=1, buffers=1)


async def test_an_output_that_failed_is_on_disk_and_nothing_was_put_in_quarantine(tmp_path):
    path = tmp_path / "faults.json"
    async with living(script("output"), history=FaultHistory(path)) as house:
        with pytest.raises(GenerationFailed):
            await ask(house.service, "bad")
        await until(lambda: read_memory(path).faults)
    [fault] = read_memory(path).faults
    assert (fault.reason, fault.next_step, fault.quarantine.is_empty) == (FaultReason.OUTPUT_ERROR, "go_on", True)


@pytest.mark.parametrize(("told", "seen"), SHOWN)
async def test_what_is_counted_is_in_the_log_under_the_name_that_the_table_has_for_it(told, seen):
    one = Notes()
    with structlog.testing.capture_logs() as logged:
        (one.notes.saw if isinstance(told, Effect) else one.notes.heard)(told)
    assert [(line["event"], line["code"]) for line in logged] == [
        (FAULTS[reason].log, reason.value) for reason, _ in seen
    ]
    for line, (_, where) in zip(logged, seen, strict=True):
        assert line.items() >= where.items()


async def test_a_request_that_ran_out_of_time_is_no_fault_of_the_device_to_remember(nursery):
    one = Notes()
    one.notes.saw(Fail(1, FaultReason.DEADLINE_EXCEEDED, retryable=True))
    one.notes.heard(JobFailed(1, 1, FaultReason.OUTPUT_ERROR))
    nursery.start_soon(one.notes.run)
    await until(lambda: one.remembered)
    assert one.remembered == ["output_error"]


class Notes:
    """Notes beside a history without a disk."""

    def __init__(self):
        self.history = FaultHistory()
        core = ServingCore(Policy())
        self.notes = FaultNotes(self.history, snapshot=core.snapshot, runner=ThreadRunner())

    @property
    def remembered(self):
        return [fault.reason.value for fault in self.history.memory.faults]


async def test_one_that_comes_with_every_job_is_remembered_once_in_a_while(autojump_clock, nursery):
    one = Notes()
    for _ in range(1000):
        one.notes.heard(JobFailed(1, 1, FaultReason.OUTPUT_ERROR))
        one.notes.heard(JobFinished(1, 1, (), anomaly=FaultReason.STATUS_ANOMALY))
    await trio.sleep(REMEMBERED_EVERY_S)
    one.notes.heard(JobFailed(1, 1, FaultReason.OUTPUT_ERROR))
    one.notes._runner = _AtOnce()
    nursery.start_soon(one.notes.run)
    await trio.testing.wait_all_tasks_blocked()
    assert one.remembered == ["output_error", "status_anomaly", "output_error"]


class _AtOnce:
    async def run_whole(self, call, limiter):
        return call()


async def test_what_is_tried_again_and_what_an_operator_asked_for_are_no_faults_to_remember(nursery):
    one = Notes()
    one.notes.heard(JobNotSubmitted(1, 1, FaultReason.DEVICE_BUSY))
    one.notes.reset_follows(ResetDevice(FaultReason.OPERATOR_RESET))
    one.notes.reset_follows(ResetDevice(FaultReason.CCU_FAULT, EngineId.PONG))
    nursery.start_soon(one.notes.run)
    await until(lambda: one.remembered)
    assert one.remembered == ["ccu_fault"]


async def test_more_than_can_be_written_are_left_out_and_never_waited_for():
    one = Notes()
    for _ in range(100):
        one.notes.reset_follows(ResetDevice(FaultReason.CCU_FAULT))
