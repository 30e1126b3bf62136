"""The device does not idle while somebody waits, and of those that hold a lane nobody starves.

Two bounds on starving, in jobs, where the policy gives one:

- turns by jobs (``wrr``): a prompt waits behind at most the other lanes' chunks of its class, each of which
  comes at least once in a full round of turns;
- decode in fair turns (``slack``): a sequence waits for its turn among the lanes by weight, and meanwhile each
  other sequence may jump ahead of it for the rest of its reply, once, when its own time runs out.

``edf`` and ``drr`` bound waiting by deadlines and by device time; there the deadline alone is held.

Source: SPEC section 4–6 (S §5–§7).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Final

import attrs

from calculet_trio.core import effects as ef
from calculet_trio.core import events as ev
from calculet_trio.core.jobs import Job, PrefillJob
from calculet_trio.core.policy import DecodeOrder, Policy, TurnPolicy
from calculet_trio.ids import JobId, RequestId
from calculet_trio.sim.checkers.violation import require
from calculet_trio.sim.checkers.watch import Routes

_PAUSE_S: Final = 1.0 + 1e-6
"""The longest pause after refusals of the device (`calculet_trio.core.backoff`), and rounding."""


@attrs.define
class _Active:
    """A request that holds a lane."""

    prompt_tokens: int
    granted: int
    ready_at: tuple[int, int]
    is_decoding: bool = False
    is_in_job: bool = False
    has_lane: bool = True


class DiligenceChecker:
    """One daemon's use of its device.

    Args:
        policy: turns, order, windows.
        lanes: of the device.
    """

    def __init__(self, policy: Policy, *, lanes: int) -> None:
        self._policy = policy
        self._lanes = lanes
        self._active: dict[RequestId, _Active] = {}
        self._waiting: set[RequestId] = set()
        self._jobs: dict[JobId, Job] = {}
        self._lanes_given: set[RequestId] = set()
        self._done = (0, 0)  # jobs, decode jobs
        self._idle_since_s: float | None = None
        self._empty_since_s: float | None = None
        self._is_faulty = False
        self._longest_reply = self._longest_prompt = 1
        weights = [tenant.weight for tenant in policy.tenants.values()] + [1.0]
        self._weights_apart = max(weights) / min(weights)

    def routes(self) -> Routes:
        """See `calculet_trio.sim.checkers.watch.Checker`."""
        return {
            ev.Offered: self._offered,
            ev.SequenceAllocated: self._lane_given,
            ev.SequenceRefused: self._allocation_refused,
            ev.SequenceReleased: self._lane_returned,
            ev.TenantsChanged: self._tenants_changed,
            ev.JobFinished: self._job_ended,
            ev.JobFailed: self._job_ended,
            ev.JobNotSubmitted: self._job_ended,
            ev.JobUnknown: self._job_ended,
            ev.DeviceReset: self._reset,
            ef.Quarantined: self._faulty,
            ef.ResetDevice: self._faulty,
            ef.AllocateSequence: self._allocated,
            ef.ContinueSequence: self._allocated,
            ef.Admit: self._admitted,
            ef.SubmitJob: self._submitted,
            ef.Refuse: self._ended,
            ef.Finish: self._ended,
            ef.Fail: self._ended,
            ef.Drop: self._ended,
        }

    def conclude(self, now: float, *, device_lost: bool) -> None:
        """Nothing is left to say: both were held whenever something changed."""

    # ---- what waits -----------------------------------------------------------------------------

    def _offered(self, event: ev.Offered, now: float) -> None:
        self._longest_prompt = max(self._longest_prompt, len(event.prompt))
        self._waiting.add(event.request)
        self._look(now)

    def _allocated(self, effect: ef.AllocateSequence | ef.ContinueSequence, now: float) -> None:
        self._lanes_given.add(effect.request)
        self._waiting.discard(effect.request)
        self._look(now)

    def _allocation_refused(self, event: ev.SequenceRefused, now: float) -> None:
        self._lanes_given.discard(event.request)
        if event.request not in self._active:
            self._waiting.add(event.request)
        self._look(now)

    def _lane_given(self, event: ev.SequenceAllocated, now: float) -> None:
        """To one that was admitted before it is the lane of its replay: it waits for an engine from now on."""
        request = self._active.get(event.request)
        if request is not None:
            request.has_lane, request.is_decoding, request.ready_at = True, False, self._done
            self._longest_prompt = max(self._longest_prompt, request.prompt_tokens + request.granted)
        self._look(now)

    def _lane_returned(self, event: ev.SequenceReleased, now: float) -> None:
        self._look(now)

    def _tenants_changed(self, event: ev.TenantsChanged, now: float) -> None:
        weights = [tenant.weight for tenant in event.tenants.values()] + [1.0]
        self._weights_apart = max(self._weights_apart, max(weights) / min(weights))

    def _admitted(self, effect: ef.Admit, now: float) -> None:
        self._longest_reply = max(self._longest_reply, effect.max_new_tokens)
        self._active[effect.request] = _Active(effect.prompt_tokens, effect.max_new_tokens, self._done)
        self._look(now)

    def _ended(self, effect: ef.Refuse | ef.Finish | ef.Fail | ef.Drop, now: float) -> None:
        self._look(now)
        request = self._active.pop(effect.request, None)
        if request is not None and request.has_lane and not request.is_in_job and not self._is_faulty:
            self._require_fed(effect.request, request, is_decode=request.is_decoding)
        self._waiting.discard(effect.request)
        self._lanes_given.discard(effect.request)
        self._look(now)

    # ---- what is done ---------------------------------------------------------------------------

    def _submitted(self, effect: ef.SubmitJob, now: float) -> None:
        self._look(now)
        is_decode = not isinstance(effect.job, PrefillJob)
        for work in effect.job.lanes:
            request = self._active[work.request]
            self._require_fed(work.request, request, is_decode=is_decode)
            request.is_in_job = True
        self._jobs[effect.job.job] = effect.job
        self._idle_since_s = None

    def _job_ended(self, event: ev.JobFinished | ev.JobFailed | ev.JobNotSubmitted | ev.JobUnknown, now: float) -> None:
        job = self._jobs.pop(event.job, None)
        if job is None:
            return
        if isinstance(event, ev.JobFinished):
            self._done = (self._done[0] + 1, self._done[1] + (not isinstance(job, PrefillJob)))
        for work in job.lanes:
            request = self._active.get(work.request)
            if request is not None:
                request.is_in_job = False
                if isinstance(event, ev.JobFinished) and work.lane in event.lost:
                    request.has_lane = False
                elif isinstance(event, ev.JobFinished):  # who was turned away has waited on
                    is_written = work.position + len(work.tokens) >= request.prompt_tokens
                    request.ready_at, request.is_decoding = self._done, is_written
        self._look(now)

    def _faulty(self, effect: ef.Quarantined | ef.ResetDevice, now: float) -> None:
        """Nothing is asked of the device until it has been reset, if ever."""
        self._is_faulty = True
        self._idle_since_s = self._empty_since_s = None

    def _reset(self, event: ev.DeviceReset, now: float) -> None:
        """It serves again: those who were admitted need new lanes, and whoever else was being given one waits."""
        if event.failed is not None:
            return
        self._is_faulty = False
        self._lanes_given &= self._active.keys()
        for request in self._active.values():
            request.has_lane = request.is_in_job = False

    # ---- bounds ---------------------------------------------------------------------------------

    def _look(self, now: float) -> None:
        """Note since when the device has been idle, or empty, although somebody waits; object if it is too long."""
        if self._is_faulty:
            return
        is_idle = not self._jobs and any(request.has_lane for request in self._active.values())
        if not is_idle:
            self._idle_since_s = None
        elif self._idle_since_s is None:
            self._idle_since_s = now
        else:
            idle_s, bound_s = now - self._idle_since_s, _PAUSE_S + self._policy.batch.batching_window_s
            require(idle_s <= bound_s, f"the device idles for {idle_s:.3f} s, and {len(self._active)} requests wait")
        is_empty = bool(self._waiting) and not self._lanes_given
        if not is_empty:
            self._empty_since_s = None
        elif self._empty_since_s is None:
            self._empty_since_s = now
        else:
            empty_s = now - self._empty_since_s
            require(empty_s <= _PAUSE_S, f"all lanes are free for {empty_s:.3f} s, and {len(self._waiting)} wait")

    def _require_fed(self, name: RequestId, request: _Active, *, is_decode: bool) -> None:
        bound = self._decode_bound() if is_decode else self._prefill_bound()
        waited = self._done[is_decode] - request.ready_at[is_decode]
        is_fed = bound is None or waited <= bound
        require(is_fed, "request {} waited for {} jobs; the bound is {}", name, waited, bound)

    def _decode_bound(self) -> int | None:
        if self._policy.decode.order is not DecodeOrder.SLACK:
            return None
        turns = self._lanes * ceil(self._weights_apart) + 1
        return self._lanes * (self._longest_reply + turns)

    def _prefill_bound(self) -> int | None:
        queues = self._policy.queues
        if queues.policy is not TurnPolicy.WRR or queues.long_quota < 1:
            return None
        weights: Mapping[str, int] = {
            "decode": queues.decode_weight,
            "short": queues.short_prefill_weight,
            "medium": queues.medium_prefill_weight,
            "long": queues.long_prefill_weight,
        }
        chunks = ceil(self._longest_prompt / queues.prefill_chunk_tokens)
        return self._lanes * chunks * sum(weights.values()) + sum(weights.values())
