"""What must be true of a core, its clients and its device between any two events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calculet_trio.core.jobs import DecodeJob

if TYPE_CHECKING:
    from tests.core.world import World


def audit(world: World) -> None:
    """Whatever must be true after any event."""
    world.core.check()
    wakeup_s = world.core.next_wakeup()
    assert wakeup_s is None or wakeup_s > world.now, "a wakeup that is due already would be a busy loop"
    for stream in world.open_streams:
        if world.device.work_of(stream.request) is None:
            assert world.now < stream.deadline_s, "a deadline passed, and nothing came of it"
            assert not stream.shut_down, "the drain's time is over, and nothing came of it"
            assert not stream.cancelled, "nobody wants it, and no job holds it"
    _expect_no_idle_engine(world)
    _expect_true_counts(world)
    _expect_true_accounts(world)


def _expect_no_idle_engine(world: World) -> None:
    """Work that an engine could do is being done, but for a pause after a refusal."""
    ready = [s for s in world.open_streams if s.admitted is not None and world.device.work_of(s.request) is None]
    ready = [stream for stream in ready if stream.has_lane]
    idle = [engine for engine, job in world.device.busy.items() if job is None]
    is_degraded = world.core.snapshot().engine_mode.word == "degraded"
    has_place = len(world.jobs) < (1 if is_degraded else world.policy.admission.max_inflight_jobs)
    is_pausing = world.pausing or not world.is_sound
    if not (ready and idle and has_place) or is_pausing or _waits_to_join(world, len(ready)):
        return
    window_s = world.policy.batch.batching_window_s
    assert window_s, "an engine idles while a sequence is ready"
    assert all(stream.tokens for stream in ready), "a prompt need not wait for company"
    assert len(ready) < max(profile.compiled_batch for profile in world.shape.decode), "the batch is full"
    assert world.allocations or world.jobs, "nobody can join"
    wakeup_s = world.core.next_wakeup()
    assert wakeup_s is not None, "it would wait for ever"
    assert wakeup_s <= min(stream.ready_s for stream in ready) + window_s
    assert wakeup_s <= min(stream.deadline_s for stream in ready)


def _expect_true_counts(world: World) -> None:
    snapshot = world.core.snapshot()
    waiting = [stream for stream in world.open_streams if stream.placed and stream.admitted is None]
    assert snapshot.waiting_requests == len(waiting)
    assert snapshot.waiting_prompt_tokens == sum(len(stream.prompt) for stream in waiting)
    assert snapshot.jobs_in_flight == len(world.jobs)
    if world.drained:
        assert not world.open_streams
        assert not world.jobs
        assert not world.releases or not world.device.busy, "drained means that every lane's answer has come"


def _expect_true_accounts(world: World) -> None:
    """Each tenant has on its account what is here of it; charged once, settled once."""
    snapshot = world.core.snapshot()
    waiting = [stream for stream in world.open_streams if stream.placed and stream.admitted is None]
    for tenant, counts in snapshot.tenants.items():
        own = [stream for stream in waiting if stream.tenant == tenant]
        in_hand = [stream for stream in own if stream.request in world.allocations]
        running = [s for s in world.open_streams if s.tenant == tenant and s.admitted is not None]
        assert counts.waiting_prompt_tokens == sum(len(stream.prompt) for stream in own)
        assert counts.active_requests == len(running) + len(in_hand)
        if snapshot.status.word == "ok":  # else some are set aside
            assert counts.waiting_requests == sum(bool(stream.prompt) for stream in own) - len(in_hand)


def _waits_to_join(world: World, ready: int) -> bool:
    """Whether the ready would fit into one batch with those that another engine decodes; prompts wait for nobody."""
    decoding = [len(job.lanes) for job in world.jobs.values() if isinstance(job, DecodeJob)]
    most = max(profile.compiled_batch for profile in world.shape.decode)
    is_prompt = any(s.admitted and not s.tokens and world.device.work_of(s.request) is None for s in world.open_streams)
    return bool(decoding) and not is_prompt and ready + sum(decoding) <= most
