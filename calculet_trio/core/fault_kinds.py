"""FaultKind: everything that may go wrong with a device, each under one stable code.

`calculet_trio.runtimes.faults` brings them about; what follows from each is the core's to say.

Source: SPEC section 9 (S §14, §16); S §17.3; A §12.
"""

from __future__ import annotations

from calculet_trio.core.transition import Symbol


class FaultKind(Symbol):
    """What may go wrong, by the call to the device in which it does. The values are codes and do not change."""

    # submit
    DEVICE_BUSY = "device_busy"
    """Not taken; a later try may be."""
    # wait, and the outcome is usable
    SLOW = "slow"
    """The outcome is right and comes late, well within its bound."""
    SLOW_DRAIN = "slow_drain"
    """The outcome is right and comes at the last moment of its bound: whoever drains waits for it."""
    STATUS_ANOMALY = "status_anomaly"
    """The output is whole; the engine's status word is none that it should have after a job."""
    COUNTER_ANOMALY = "counter_anomaly"
    """The output is whole; the engine's counters of submitted and completed jobs disagree."""
    # wait, and the outcome is not usable
    OUTPUT_ERROR = "output_error"
    """The device is done, its output is unusable."""
    CROSS_TALK = "cross_talk"
    """Two lanes get each other's logits: nothing in the service can see that, only a checker can."""
    LOSE_LANE = "lose_lane"
    """One lane's KV is lost, the others' is whole."""
    WRONG_COMPLETION = "wrong_completion"
    """The completion that arrives is not this job's."""
    DUPLICATE_COMPLETION = "duplicate_completion"
    """The engine's last completion arrives once more, in place of this job's."""
    # wait, and there is no outcome
    LATE_COMPLETION = "late_completion"
    """The outcome is right and comes when nobody may wait for it any more."""
    TIMEOUT = "timeout"
    """The wait ends by its timeout."""
    STUCK = "stuck"
    """The wait does not return, whatever its timeout."""
    CCU_FAULT = "ccu_fault"
    PCIE_ERROR = "pcie_error"
    UNKNOWN_DMA = "unknown_dma"
    DEVICE_LOST = "device_lost"
    """The wait ends at once without an answer; with the last one, every later call fails."""
    # other calls
    NO_CAPACITY = "no_capacity"
    """An allocation is refused; a later try may not be."""
    UNCONFIRMED = "unconfirmed"
    """A release is not confirmed."""
    BAD_STATUS = "bad_status"
    """Asked how it is, the device says that it is not well."""
    GOLDEN_MISMATCH = "golden_mismatch"
    """The model does not say what its package recorded."""
    RESET_FAILED = "reset_failed"
    """A reset does not leave the device quiet."""
