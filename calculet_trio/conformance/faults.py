"""Cases of faults: a job whose fate is unknown is said to be so, and after a reset every lane begins anew.

Source: SPEC section 9, 13; S §9.2, §16, §18.
"""

from __future__ import annotations

from calculet_trio.conformance.rig import CaseFailed, DeviceStopped, NotApplicable, Rig
from calculet_trio.core.events import FaultReason
from calculet_trio.core.fault_kinds import FaultKind
from calculet_trio.core.profiles import BatchProfile
from calculet_trio.runtimes.port import NotSubmitted, Unknown


def timeout(rig: Rig) -> str:
    """A wait whose time is over ends with Unknown, and a reset makes every lane of the batch good again."""
    return _recovers(rig, FaultKind.TIMEOUT)


def ccu_fault(rig: Rig) -> str:
    """A CCU fault ends the wait with Unknown, and a reset makes every lane of the batch good again."""
    return _recovers(rig, FaultKind.CCU_FAULT)


def pcie_error(rig: Rig) -> str:
    """A PCIe error ends the wait with Unknown, and a reset makes every lane of the batch good again."""
    return _recovers(rig, FaultKind.PCIE_ERROR)


def device_busy(rig: Rig) -> str:
    """A job for an engine that has one is not taken, and neither sequence notices."""
    if rig.shape.lanes < 2:
        raise NotApplicable("the package has one lane")
    prompts, following = (rig.tokens(30, 6), rig.tokens(31, 9)), rig.tokens(32, 3)
    alone = [rig.alone(prompt, following) for prompt in prompts]
    seats = [rig.take(lane) for lane in (0, rig.shape.lanes - 1)]
    rows = [[rig.prefill(seat, prompt)] for seat, prompt in zip(seats, prompts, strict=True)]
    first, second = (rig.step_job(seat, following[0]) for seat in seats)
    submitted = rig.submit(first)
    refused = rig.runtime.submit(rig.engine, second)
    if not isinstance(refused, NotSubmitted):
        raise DeviceStopped("an engine took a second job while it had one")
    if refused.reason is not FaultReason.DEVICE_BUSY:
        raise CaseFailed(f"a busy engine refused a job because of {refused.reason.value}")
    rows[0].append(rig.row_of(first, rig.finish(first, submitted)))
    seats[0].length += 1
    rows[1].append(rig.step(seats[1], following[0]))
    for token in following[1:]:
        for seat, said in zip(seats, rows, strict=True):
            said.append(rig.step(seat, token))
    for expected, said in zip(alone, rows, strict=True):
        rig.same(expected, said, "beside a refusal")
    return "the second job was refused as device_busy; both sequences went on, bit for bit"


def _recovers(rig: Rig, kind: FaultKind) -> str:
    rig.may_provoke(kind)
    profiles = sorted({rig.shape.decode[0], rig.shape.decode[-1]}, key=lambda profile: profile.compiled_batch)
    said = {_lose_and_recover(rig, profile, kind).value for profile in profiles}
    batches = " and ".join(f"B={profile.compiled_batch}" for profile in profiles)
    return f"{batches}: the wait said {', '.join(said)}; after a reset golden passes and every lane says what it did"


def _lose_and_recover(rig: Rig, profile: BatchProfile, kind: FaultKind) -> FaultReason:
    following = rig.tokens(33, 3)
    prompts = [rig.tokens(600 + lane, 5 + lane) for lane in range(profile.compiled_batch)]
    alone = [rig.alone(prompt, following, lane=lane) for lane, prompt in enumerate(prompts)]
    seats = [rig.take(lane) for lane in range(profile.compiled_batch)]
    for seat, prompt in zip(seats, prompts, strict=True):
        rig.prefill(seat, prompt)
    job = rig.decode_job(profile, dict.fromkeys(seats, following[0]))
    provoked = rig.faults.provoke(kind)
    submitted = rig.submit(job)
    outcome = rig.runtime.wait(rig.engine, submitted.ticket, provoked.wait_s)
    if not isinstance(outcome, Unknown):
        raise CaseFailed(f"a wait that met {kind.value} returned an outcome as if nothing had been")
    if outcome.reason is not provoked.reason:
        raise DeviceStopped(f"a wait that met {kind.value} ended with {outcome.reason.value}")
    rig.reload()
    for lane, prompt in enumerate(prompts):
        said = rig.alone(prompt, following, lane=lane)
        rig.same(alone[lane], said, f"lane {lane} of B={profile.compiled_batch} after a reset")
    return outcome.reason
