"""A request's life: eleven states in one table, and the sequence that the scheduler moves through them.

Source: SPEC section 2, 3 (S §2 ``RequestState``, ``SequenceState``, §4).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from calculet_trio.core.events import CancelReason, FaultReason
from calculet_trio.core.lanes import KvLane
from calculet_trio.core.transition import Machine, Symbol, Table
from calculet_trio.ids import GenerationId, RequestId


class RequestState(Symbol):
    NEW = "new"
    WAITING_MODEL = "waiting_model"
    WAITING_ADMISSION = "waiting_admission"
    PREFILL_READY = "prefill_ready"
    PREFILL_RUNNING = "prefill_running"
    DECODE_READY = "decode_ready"
    DECODE_RUNNING = "decode_running"
    FINISHING = "finishing"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"


class RequestEvent(Symbol):
    WAIT_MODEL = "wait_model"
    MODEL_READY = "model_ready"
    MODEL_GONE = "model_gone"
    QUEUE = "queue"
    ADMIT = "admit"
    SUBMIT = "submit"
    WITHDRAW = "withdraw"
    COMMIT = "commit"
    CHUNK = "chunk"
    REPLAY = "replay"
    FINISH = "finish"
    RELEASED = "released"
    CANCEL = "cancel"
    REFUSE = "refuse"
    FAIL = "fail"


_S, _E = RequestState, RequestEvent

# REPLAY: its KV is gone, and all its tokens are to be prefilled again.
# CANCEL stands in a running state's row for the moment at which its job has drained: while the job is with
# the device a cancellation only sets `Request.give_up`.
REQUEST_TABLE: Final = Table[RequestState, RequestEvent](
    "request",
    RequestState,
    {
        _S.NEW: {
            _E.WAIT_MODEL: _S.WAITING_MODEL,
            _E.QUEUE: _S.WAITING_ADMISSION,
            _E.REFUSE: _S.FAILED,
            _E.CANCEL: _S.CANCELLED,
        },
        _S.WAITING_MODEL: {
            _E.MODEL_READY: _S.NEW,
            _E.REFUSE: _S.FAILED,
            _E.CANCEL: _S.CANCELLED,
        },
        _S.WAITING_ADMISSION: {
            _E.ADMIT: _S.PREFILL_READY,
            _E.MODEL_GONE: _S.WAITING_MODEL,
            _E.REFUSE: _S.FAILED,
            _E.CANCEL: _S.CANCELLED,
        },
        _S.PREFILL_READY: {
            _E.SUBMIT: _S.PREFILL_RUNNING,
            _E.REPLAY: _S.PREFILL_READY,
            _E.FINISH: _S.FINISHING,
            _E.FAIL: _S.FAILED,
            _E.CANCEL: _S.CANCELLED,
        },
        _S.PREFILL_RUNNING: {
            _E.COMMIT: _S.DECODE_READY,
            _E.CHUNK: _S.PREFILL_READY,
            _E.WITHDRAW: _S.PREFILL_READY,
            _E.REPLAY: _S.PREFILL_READY,
            _E.FINISH: _S.FINISHING,
            _E.FAIL: _S.FAILED,
            _E.CANCEL: _S.CANCELLED,
        },
        _S.DECODE_READY: {
            _E.SUBMIT: _S.DECODE_RUNNING,
            _E.REPLAY: _S.PREFILL_READY,
            _E.FINISH: _S.FINISHING,
            _E.FAIL: _S.FAILED,
            _E.CANCEL: _S.CANCELLED,
        },
        _S.DECODE_RUNNING: {
            _E.COMMIT: _S.DECODE_READY,
            _E.WITHDRAW: _S.DECODE_READY,
            _E.REPLAY: _S.PREFILL_READY,
            _E.FINISH: _S.FINISHING,
            _E.FAIL: _S.FAILED,
            _E.CANCEL: _S.CANCELLED,
        },
        # The client has its whole reply; the lane is on its way back.
        _S.FINISHING: {_E.RELEASED: _S.COMPLETED},
        _S.COMPLETED: {},
        _S.CANCELLED: {},
        _S.FAILED: {},
    },
)


class Request(Machine[RequestState, RequestEvent]):
    """One sequence (S §2 ``SequenceState``).

    Attributes:
        alias: the model that was asked for.
        generation: pinned when the request was created, or left WaitingModel; `NO_GENERATION` in it.
        deadline_s: monotonic; when it ends, the client's own wish included.
        order_deadline_s: monotonic; its tenant's, which alone orders decoding.
        prompt: token ids; empty until offered.
        generated: token ids sampled so far; all but the last are committed to KV.
        max_new_tokens: granted; 0 until offered.
        lane: where its KV lies; None before admission and after the lane was given back.
        give_up: why it ends when its running job has drained; None while it is wanted.
        cost: what its tenant is charged for it, in tokens.
        weight: its tenant's when it was charged; 0 while it is not.
        virtual_start, virtual_finish: its place among the tenants' requests.
        expected_wait_s: the forecast when it was offered; None where nothing was measured yet.
        turn: its next token's place among the tenants' tokens (`calculet_trio.core.decode`).
        ready_s: monotonic; since when it has waited for an engine.
        prefilled_tokens: of `known_tokens`, committed to KV by prefills, or found in the lane.
        cached_tokens: of the prompt, found in the lane when it was admitted.
        kv_pool: the profiles' pool that its KV went to; None before its first decode job.
    """

    __slots__ = (
        "alias",
        "arrived_s",
        "cached_tokens",
        "cost",
        "deadline_s",
        "expected_wait_s",
        "generated",
        "generation",
        "give_up",
        "id",
        "kv_pool",
        "lane",
        "max_new_tokens",
        "order_deadline_s",
        "prefilled_tokens",
        "prompt",
        "ready_s",
        "tenant",
        "turn",
        "virtual_finish",
        "virtual_start",
        "weight",
    )

    table = REQUEST_TABLE

    def __init__(
        self,
        request: RequestId,
        *,
        tenant: str,
        alias: str,
        generation: GenerationId,
        arrived_s: float,
        deadline_s: float,
        order_deadline_s: float,
    ) -> None:
        super().__init__(RequestState.NEW)
        self.id = request
        self.tenant = tenant
        self.alias = alias
        self.generation = generation
        self.arrived_s = arrived_s
        self.deadline_s = deadline_s
        self.order_deadline_s = order_deadline_s
        self.prompt: Sequence[int] = ()
        self.generated: list[int] = []
        self.max_new_tokens = 0
        self.lane: KvLane | None = None
        self.give_up: CancelReason | FaultReason | None = None
        self.cost = 0.0
        self.weight = 0.0
        self.virtual_start = 0.0
        self.virtual_finish = 0.0
        self.expected_wait_s: float | None = None
        self.ready_s = arrived_s
        self.kv_pool: str | None = None
        self.prefilled_tokens = 0
        self.cached_tokens = 0
        self.turn = 0.0

    @property
    def known_tokens(self) -> Sequence[int]:
        """What a prefill writes: the prompt; in a replay also what was sampled since."""
        return (*self.prompt, *self.generated) if self.generated else self.prompt

    @property
    def known_count(self) -> int:
        return len(self.prompt) + len(self.generated)

    @property
    def tokens_at_most(self) -> int:
        """Tokens of KV to reserve: the prompt and the whole reply it was granted."""
        return len(self.prompt) + self.max_new_tokens

    @property
    def is_charged(self) -> bool:
        """Whether its tenant was charged for it and is to be settled when it ends."""
        return self.weight > 0.0

    def used_tokens(self, decode_cost_weight: float) -> float:
        """What it has really cost so far, in the tokens of ``cost``; what is found or replayed costs nothing."""
        prefilled = max(0, min(self.prefilled_tokens, len(self.prompt)) - self.cached_tokens)
        return prefilled + decode_cost_weight * len(self.generated)

    @property
    def is_running(self) -> bool:
        return self._state in _RUNNING

    @property
    def is_waiting(self) -> bool:
        """Not admitted yet: it counts against the waiting budgets."""
        return self._state in _WAITING


_RUNNING: Final = frozenset({RequestState.PREFILL_RUNNING, RequestState.DECODE_RUNNING})
_WAITING: Final = frozenset({RequestState.NEW, RequestState.WAITING_MODEL, RequestState.WAITING_ADMISSION})
