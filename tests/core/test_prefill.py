"""Prefill: three classes, first come first served, and a whole prompt a job unless chunks were earned."""

from __future__ import annotations

import pytest

from calculet_trio.core.policy import QueuePolicy
from calculet_trio.core.prefill import PREFILL_KINDS, PrefillScheduler
from calculet_trio.core.profiles import PrefillProfile
from calculet_trio.core.request import RequestEvent
from calculet_trio.core.turns import WorkKind
from calculet_trio.ids import JobId
from tests.core.shapes import GENERATION, admitted_request

QUEUES = QueuePolicy(short_prefill_max_tokens=4, medium_prefill_max_tokens=8)
PROFILE = PrefillProfile("prefill", 64)
SHORT = WorkKind.SHORT_PREFILL


@pytest.fixture
def scheduler() -> PrefillScheduler:
    return PrefillScheduler(QUEUES, chunk_tokens=None, replies=True)


@pytest.mark.parametrize(
    ("prompt_tokens", "kind"),
    [(1, "short"), (512, "short"), (513, "medium"), (4096, "medium"), (4097, "long"), (40_959, "long")],
)
def test_classes_end_where_the_specification_says(prompt_tokens: int, kind: str) -> None:
    assert PrefillScheduler(QueuePolicy(), chunk_tokens=None, replies=True).class_of(prompt_tokens) is WorkKind(kind)


def test_nothing_is_available_where_nobody_waits(scheduler: PrefillScheduler) -> None:
    assert scheduler.available() == []


def test_each_class_is_available_once_somebody_is_in_it(scheduler: PrefillScheduler) -> None:
    for lane, prompt_tokens in enumerate((9, 1, 2)):
        scheduler.push(admitted_request(lane + 1, lane=lane, prompt_tokens=prompt_tokens))
    assert scheduler.available() == [SHORT, WorkKind.LONG_PREFILL]


def test_first_come_first_served_and_a_job_is_the_whole_prompt(scheduler: PrefillScheduler) -> None:
    first, second = admitted_request(1, lane=2), admitted_request(2, lane=0)
    scheduler.push(first)
    scheduler.push(second)
    job, request = scheduler.plan(SHORT, JobId(7), PROFILE)
    assert request is first
    assert (job.job, job.generation, job.profile, job.phase) == (7, GENERATION, PROFILE, "prefill")
    assert job.lanes == (job.work,)
    work = job.work
    assert (work.request, work.sequence, work.lane, work.index, work.position) == (1, 101, 2, 0, 0)
    assert tuple(work.tokens) == first.prompt
    assert scheduler.plan(SHORT, JobId(8), PROFILE)[1] is second
    assert scheduler.available() == []


def test_what_the_device_refused_stays_in_front(scheduler: PrefillScheduler) -> None:
    first, second = admitted_request(1, lane=0), admitted_request(2, lane=1)
    scheduler.push(first)
    scheduler.push(second)
    scheduler.plan(SHORT, JobId(1), PROFILE)
    scheduler.put_back(first)
    assert scheduler.plan(SHORT, JobId(2), PROFILE)[1] is first


def test_the_ended_are_let_go(scheduler: PrefillScheduler) -> None:
    gone, stays, gone_too = (admitted_request(number, lane=number) for number in (1, 2, 3))
    for request in (gone, stays, gone_too):
        scheduler.push(request)
    gone.advance(RequestEvent.CANCEL)
    gone_too.advance(RequestEvent.FAIL)
    assert scheduler.available() == [SHORT]
    assert scheduler.plan(SHORT, JobId(1), PROFILE)[1] is stays
    assert scheduler.available() == []


def test_during_a_long_job_the_ended_do_not_pile_up(scheduler: PrefillScheduler) -> None:
    head = admitted_request(1, lane=0)
    scheduler.push(head)
    for number in range(2, 2000):
        passing = admitted_request(number, lane=1)
        scheduler.push(passing)
        passing.advance(RequestEvent.CANCEL)
    assert len(scheduler._queues[SHORT]) <= 2
    assert scheduler.plan(SHORT, JobId(1), PROFILE)[1] is head


def test_those_that_wait_are_told_by_class(scheduler: PrefillScheduler) -> None:
    short, gone, long = (admitted_request(n + 1, lane=n, prompt_tokens=tokens) for n, tokens in enumerate((1, 2, 9)))
    for request in (short, gone, long):
        scheduler.push(request)
    gone.advance(RequestEvent.CANCEL)
    assert [scheduler.waiting(kind) for kind in PREFILL_KINDS] == [[short], [], [long]]


# ---- chunks ----------------------------------------------------------------------------------------------------


def prefilled_in_chunks(prompt_tokens: int, chunk_tokens: int) -> list[tuple[int, int, bool]]:
    """Position, length and whether logits are wanted, of each job of one prompt."""
    scheduler = PrefillScheduler(QUEUES, chunk_tokens=chunk_tokens, replies=True)
    request = admitted_request(1, lane=0, prompt_tokens=prompt_tokens)
    scheduler.push(request)
    jobs = []
    while request.prefilled_tokens < prompt_tokens:
        [kind] = scheduler.available()
        job, planned = scheduler.plan(kind, JobId(len(jobs) + 1), PROFILE)
        assert planned is request
        tokens = tuple(job.work.tokens)
        assert tokens == request.prompt[job.work.position :][: len(tokens)]
        jobs.append((job.work.position, len(tokens), job.samples))
        assert request.lane is not None
        request.lane.submit(len(tokens))
        request.lane.commit()
        request.prefilled_tokens += len(tokens)
        scheduler.put_back(request)
    return jobs


def test_a_chunk_begins_where_the_one_before_has_ended_and_only_the_last_is_sampled() -> None:
    assert prefilled_in_chunks(10, 4) == [(0, 4, False), (4, 4, False), (8, 2, True)]


@pytest.mark.parametrize("prompt_tokens", [15, 16, 17, 31, 32, 33])
def test_prompts_around_a_multiple_of_the_chunk(prompt_tokens: int) -> None:
    """S §6: the boundaries 15/16/17."""
    jobs = prefilled_in_chunks(prompt_tokens, 16)
    assert len(jobs) == -(-prompt_tokens // 16)
    assert sum(tokens for _, tokens, _ in jobs) == prompt_tokens
    assert [samples for _, _, samples in jobs] == [False] * (len(jobs) - 1) + [True]


@pytest.mark.parametrize(
    ("chunk_tokens", "lengths"),
    [(5, [5, 5, 4, 2]), (4, [4, 4, 4, 4]), (3, [3, 3, 3, 3, 2, 2]), (2, [2] * 8), (1, [1] * 16)],
)
def test_a_last_chunk_is_not_a_single_token(chunk_tokens: int, lengths: list[int]) -> None:
    """It would be computed as decode computes it, and not as in the whole prompt."""
    assert [tokens for _, tokens, _ in prefilled_in_chunks(16, chunk_tokens)] == lengths


def test_a_prompt_is_of_the_class_of_its_next_job() -> None:
    scheduler = PrefillScheduler(QUEUES, chunk_tokens=6, replies=True)
    request = admitted_request(1, lane=0, prompt_tokens=20)
    scheduler.push(request)
    assert scheduler.available() == [WorkKind.MEDIUM_PREFILL]
    scheduler.plan(WorkKind.MEDIUM_PREFILL, JobId(1), PROFILE)
    request.prefilled_tokens = 18
    scheduler.put_back(request)
    assert scheduler.available() == [SHORT]
