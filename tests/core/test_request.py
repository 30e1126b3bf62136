"""Requests: which states wait and which run."""

from __future__ import annotations

import pytest

from calculet_trio.core.request import Request, RequestState
from calculet_trio.core.transition import Machine
from tests.core.shapes import make_request

WAITING = {RequestState.NEW, RequestState.WAITING_MODEL, RequestState.WAITING_ADMISSION}
RUNNING = {RequestState.PREFILL_RUNNING, RequestState.DECODE_RUNNING}


def request_in(state: RequestState) -> Request:
    request = make_request(1)
    Machine.__init__(request, state)
    return request


@pytest.mark.parametrize("state", RequestState)
def test_a_request_waits_until_it_is_admitted_and_runs_while_a_job_holds_it(state: RequestState) -> None:
    request = request_in(state)
    assert request.is_waiting == (state in WAITING)
    assert request.is_running == (state in RUNNING)


def test_a_lane_is_reserved_for_the_prompt_and_the_whole_reply() -> None:
    assert make_request(1, prompt_tokens=7, max_new_tokens=5).tokens_at_most == 12
