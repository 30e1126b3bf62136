"""What one request's client sees, and what it may never see: the reference for `Refuse`, `Deliver`, `Finish`, ..."""

from __future__ import annotations

import attrs

from calculet_trio.core.effects import Admit, Drop, Fail, Finish, FinishReason, Refuse
from calculet_trio.ids import RequestId

Ending = Refuse | Finish | Fail | Drop


@attrs.define
class Stream:
    """One request from outside.

    Attributes:
        deadline_s: when it must have ended, but for a job that is out.
        granted: tokens of reply it may get; 0 until it was offered.
        prefilled: tokens of its prompt that are in its lane.
        ready_s: since when it has waited for an engine.
        stopped: a result said that its reply came to its natural end.
        rewritten: tokens that a replay has written so far; None while none is due.
        has_lane: the device holds a sequence for it.
        shut_down: the drain's time was over while it was alive.
    """

    request: RequestId
    tenant: str
    deadline_s: float
    placed: bool = False
    prompt: tuple[int, ...] = ()
    granted: int = 0
    admitted: Admit | None = None
    prefilled: int = 0
    rewritten: int | None = None
    has_lane: bool = False
    ready_s: float = 0.0
    tokens: list[int] = attrs.field(factory=list)
    cancelled: bool = False
    shut_down: bool = False
    stopped: bool = False
    end: Ending | None = None

    @property
    def is_open(self) -> bool:
        return self.end is None

    @property
    def written(self) -> list[int]:
        """What its lane holds between two jobs: what was prefilled of its prompt, and all tokens but the last."""
        if self.rewritten is not None:
            return self.known[: self.rewritten]
        return [*self.prompt[: self.prefilled], *self.tokens[:-1]]

    @property
    def known(self) -> list[int]:
        """Its prompt, and all that was sampled since."""
        return [*self.prompt, *self.tokens]

    def begin_again(self) -> None:
        """Its KV is gone, and so is its lane."""
        self.rewritten, self.has_lane = 0, False

    def found(self, tokens: int) -> None:
        """Its lane holds so many of its tokens already."""
        if self.rewritten is None:
            self.prefilled = tokens
        else:
            self.rewritten = tokens

    def place(self) -> None:
        assert self.is_open
        assert not self.placed, "a request takes its place once"
        self.placed = True

    def admit(self, effect: Admit) -> None:
        assert self.is_open, "an ended request is not admitted"
        assert self.admitted is None, "a request is admitted once"
        assert self.prompt, "nothing is admitted before its prompt is known"
        assert effect.prompt_tokens == len(self.prompt)
        assert effect.max_new_tokens == self.granted
        assert effect.queued_s >= 0
        assert effect.cached_tokens == self.prefilled, "what its lane held already, and no more"
        self.admitted = effect

    def deliver(self, token: object) -> None:
        assert self.is_open, "nothing comes after the end"
        assert self.admitted is not None, "nothing comes before admission"
        assert not self.cancelled, "nothing comes for a client that has gone"
        assert not self.shut_down, "nothing comes after the drain's time is over"
        assert token == self.next_token, "every token once, and in order"
        self.tokens.append(self.next_token)
        self.rewritten = None
        self.prefilled = len(self.prompt)
        assert len(self.tokens) <= max(1, self.granted), "no more than was granted"

    @property
    def next_token(self) -> int:
        """The token that the world's model says next."""
        return 1000 * self.request + len(self.tokens) + 1

    def close(self, effect: Ending, *, now: float) -> None:
        """The one terminal effect; it must fit what happened before."""
        assert self.is_open, f"closed twice: {self.end}, then {effect}"
        match effect:
            case Refuse():
                assert self.admitted is None, "an admitted request is not refused"
                assert effect.refusal.code != "deadline_exceeded" or now >= self.deadline_s
            case Finish():
                assert self.tokens, "a reply has at least one token"
                assert not self.cancelled
                self._expect_finish(effect, now=now)
            case Fail():
                assert self.admitted is not None, "a request that was never admitted is refused"
            case Drop():
                assert self.cancelled, "nobody gave it up"
        self.end = effect

    def _expect_finish(self, effect: Finish, *, now: float) -> None:
        if effect.reason is FinishReason.STOP:
            assert self.stopped
        elif effect.truncated_by is None:
            assert len(self.tokens) >= self.granted
        else:
            assert effect.truncated_by == "deadline"
            assert now >= self.deadline_s
