"""One engine of a model on the board: its job's structs and its rows of logits, made once and used for every job.

Nothing is allocated for a step, and logits are not copied: fp32 and bf16 rows are looked at where the binding has them.

Source: SPEC section 9, 14 (A §7 P1).
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_uint64, cast
from struct import Struct
from typing import Any, Final

import numpy as np

from calculet_trio.core.events import FaultReason
from calculet_trio.core.jobs import Job, LaneWork
from calculet_trio.ids import SequenceId
from calculet_trio.runtimes import calrt_abi as abi
from calculet_trio.runtimes.port import Logits

_I32_BYTES: Final = 4
_LANE_WORK: Final = Struct("=QQIII4x")
"""`calrt_abi.LaneWork`, written whole: to set its five fields one by one takes three times as long."""
assert _LANE_WORK.size == ctypes.sizeof(abi.LaneWork)


class CalrtEngine:
    """Starts, waits and reads out; one thread at a time, by the port's contract.

    Args:
        calls: of the library.
        model: the configured model's handle.
        number: the engine's, in the ABI.
        rows: of the largest batch.
        tokens: of the longest prefill.
    """

    def __init__(self, calls: Any, model: ctypes.c_void_p, number: int, *, rows: int, tokens: int):
        self._calls = calls
        self._model = model
        self._number = number
        self._tokens = np.zeros(max(rows, tokens), np.int32)
        array = (abi.LaneWork * rows)()
        self._works = memoryview(array).cast("B")
        self._job = abi.Job(lanes=cast(array, POINTER(abi.LaneWork)))
        self._job_reference = byref(self._job)
        self._result = abi.Result()
        self._result_reference = byref(self._result)
        self._ticket = c_uint64()
        self._ticket_reference = byref(self._ticket)
        self._counter_gap = 0
        self._token_cells = self._tokens.data
        self._tokens_address = self._tokens.ctypes.data
        self._views: dict[tuple[int, int, int, int], Logits] = {}

    def start(self, job: Job, submodel: int, sequences: dict[SequenceId, int]) -> int:
        """Fill the engine's buffers and hand the job over; the code. The GIL is given away only for both together.

        Args:
            job: one that the ledger took.
            submodel: its index among the model's roles.
            sequences: the binding's number of each.
        """
        begin = 0
        for place, work in enumerate(job.lanes):
            self._describe(place, work, begin, sequences[work.sequence])
            begin += len(work.tokens)
        self._job.submodel = submodel
        self._job.lane_count = len(job.lanes)
        self._job.wants_logits = int(job.samples)
        return int(self._calls.job_start(self._model, self._number, self._job_reference, self._ticket_reference))

    def _describe(self, place: int, work: LaneWork, begin: int, sequence: int) -> None:
        count = len(work.tokens)
        if count == 1:
            self._token_cells[begin] = work.tokens[0]
        else:
            self._tokens[begin : begin + count] = work.tokens
        address = self._tokens_address + begin * _I32_BYTES
        _LANE_WORK.pack_into(self._works, place * _LANE_WORK.size, sequence, address, count, work.position, work.index)

    def wait(self, timeout_s: float) -> int:
        """Wait for the job that was submitted; the code."""
        bounded_s = min(max(timeout_s, 0.0), abi.WAIT_S_MAX)
        return int(self._calls.job_wait(self._model, self._number, self._ticket, bounded_s, self._result_reference))

    @property
    def times_s(self) -> tuple[float, float, float]:
        """Computing, copying in, copying back, of the job that was waited for."""
        return self._result.infer_s, self._result.h2d_s, self._result.d2h_s

    def anomaly(self) -> FaultReason | None:
        """What does not agree with a whole answer: the device's status word, or its counters for this engine.

        Counters that went apart once stay apart: only another difference than the last job's is news.
        """
        gap = self._result.queue_completed - self._result.queue_submitted
        is_news, self._counter_gap = gap != self._counter_gap, gap
        if self._result.vendor_status:
            return FaultReason.STATUS_ANOMALY
        return FaultReason.COUNTER_ANOMALY if is_news else None

    def logits(self) -> Logits | None:
        """Rows of the job's batch, until the next `start`; of inactive lanes whatever they were."""
        result = self._result
        if not result.logits:
            return None
        return self._view(result)

    def _view(self, result: abi.Result) -> Logits:
        """The binding's own rows; it has few places for them, so that each is looked at anew only once."""
        key = (result.logits, result.rows, result.row_stride_bytes, result.is_bfloat16)
        view = self._views.get(key)
        if view is None:
            kind = np.dtype(np.uint16 if result.is_bfloat16 else np.float32)
            size_bytes = (result.rows - 1) * result.row_stride_bytes + result.vocab_size * kind.itemsize
            buffer = (ctypes.c_char * size_bytes).from_address(result.logits)
            strides = (result.row_stride_bytes, kind.itemsize)
            view = self._views[key] = np.ndarray((result.rows, result.vocab_size), kind, buffer, strides=strides)
        return view
