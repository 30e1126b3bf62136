"""A finished job's lanes are sampled from as little as the runtime gives: candidates first, bits, or whole rows."""

from __future__ import annotations

import numpy as np
import pytest

from calculet_trio.core.events import FaultReason
from calculet_trio.core.jobs import LaneWork, PrefillJob
from calculet_trio.core.profiles import PrefillProfile
from calculet_trio.ids import GenerationId, JobId, LaneId, RequestId, SequenceId
from calculet_trio.runtimes.port import Candidates, Finished
from calculet_trio.shell.sampler_pool import SamplerPool
from calculet_trio.text.byte_tokenizer import ByteTokenizer
from calculet_trio.text.params import ReplyParams, SamplingParams
from calculet_trio.text.reply import ReplyStream

TOKENIZER = ByteTokenizer([])
ASKED = RequestId(1)
JOB = PrefillJob(
    JobId(1), GenerationId(1), PrefillProfile("prefill", 64), LaneWork(ASKED, SequenceId(1), LaneId(0), 0, (5,), 0)
)
ROW_SAYS, CANDIDATES_SAY = ord("r"), ord("c")


def sampled(logits, candidates=None, **sampling):
    pool = SamplerPool()
    params = ReplyParams(sampling=SamplingParams(temperature=0.0, **sampling))
    pool.join(ASKED, ReplyStream(TOKENIZER, params, prompt=[1]))
    [result] = pool.settle(JOB, Finished(logits, candidates=candidates))
    return result


def rows(dtype=np.float32, peak=9):
    logits = np.zeros((1, TOKENIZER.vocab_size), dtype)
    logits[0, ROW_SAYS] = peak
    return logits


def named(*values):
    ids = np.arange(CANDIDATES_SAY, CANDIDATES_SAY + len(values), dtype=np.int32)
    return Candidates(ids[None], np.array([values], np.float32))


@pytest.mark.parametrize(
    ("candidates", "sampling", "token"),
    [
        (None, {}, ROW_SAYS),
        (named(9, 1), {}, CANDIDATES_SAY),
        (named(9, 9), {}, ROW_SAYS),
        (named(float("nan"), 1), {}, ROW_SAYS),
        (named(9, 1), {"logit_bias": {3: 1.0}}, ROW_SAYS),
        (named(9, 1), {"repetition_penalty": 1.1}, ROW_SAYS),
    ],
)
def test_candidates_are_used_where_they_tell_and_else_the_row(candidates, sampling, token):
    assert sampled(rows(), candidates, **sampling).token == token


def test_bits_of_bfloat16_are_a_row():
    assert sampled(rows(np.uint16, peak=0x4110)).token == ROW_SAYS


def test_a_row_of_bits_that_is_no_distribution_is_a_fault():
    nothing = np.full((1, TOKENIZER.vocab_size), 0x7FC0, np.uint16)
    assert sampled(nothing).failed is FaultReason.BAD_LOGITS
