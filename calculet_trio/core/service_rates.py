"""ServiceRates: how fast this device serves, measured from the jobs it has run.

Everything that the scheduler estimates (waits, slack, shares of device time) comes from here, so that no
assumed figure stands in for a measured one: what was never measured is None.

Source: SPEC section 4, 5, 6 (S §5.2, §6).
"""

from __future__ import annotations

from calculet_trio.core.jobs import Job, PrefillJob

_NEWEST_SHARE = 0.2
_TRIED = 8
"""Steps after which a way was tried: the first may be slow for reasons of its own."""


class Mean:
    """An exponentially weighted mean; None before the first value."""

    __slots__ = ("count", "value")

    def __init__(self) -> None:
        self.value: float | None = None
        self.count = 0

    def observe(self, value: float) -> None:
        self.count += 1
        self.value = value if self.value is None else self.value + _NEWEST_SHARE * (value - self.value)


class ServiceRates:
    """Prefill seconds by prompt length (powers of two), decode seconds by submodel."""

    def __init__(self) -> None:
        self._prefill: dict[int, Mean] = {}  # bit length of the token count → seconds per token
        self._decode: dict[str, Mean] = {}
        self._alone: dict[str, Mean] = {}  # of those, steps that had the device to themselves
        self._beside = Mean()  # and of steps beside another, whatever their profile

    def observe(self, job: Job, taken_s: float, *, beside: bool | None = None) -> None:
        """A job took so long, from submission to outcome.

        Args:
            job: what ran.
            taken_s: how long.
            beside: whether another decode step went on beside it; None if that is not to be looked at.
        """
        if isinstance(job, PrefillJob):
            tokens = len(job.work.tokens)
            self._prefill.setdefault(tokens.bit_length(), Mean()).observe(taken_s / tokens)
        else:
            self._decode.setdefault(job.profile.submodel, Mean()).observe(taken_s)
            if beside:
                self._beside.observe(taken_s)
            elif beside is not None:
                self._alone.setdefault(job.profile.submodel, Mean()).observe(taken_s)

    def prefill_s(self, tokens: int) -> float | None:
        """Expected seconds of a prefill, by the measured class nearest in length; None if none was run."""
        if not self._prefill:
            return None
        nearest = min(self._prefill, key=lambda bits: abs(bits - tokens.bit_length()))
        per_token_s = self._prefill[nearest].value
        assert per_token_s is not None
        return per_token_s * tokens

    def decode_s(self, submodel: str) -> float | None:
        """Expected seconds of one step of this profile; None if it was never run."""
        mean = self._decode.get(submodel)
        return None if mean is None else mean.value

    def are_apart_faster(self, whole: str) -> bool | None:
        """Whether two batches side by side take less time than one of all, of ``whole``; None before that was tried."""
        together = self._alone.get(whole)
        if not self.were_beside or together is None or together.count < _TRIED:
            return None
        return (self._beside.value or 0.0) < (together.value or 0.0)

    @property
    def were_beside(self) -> bool:
        """Whether it was tried how long steps take beside one another."""
        return self._beside.count >= _TRIED

    @property
    def slowest_decode_s(self) -> float:
        """The slowest profile's step; 0 before any was run."""
        return max((mean.value or 0.0 for mean in self._decode.values()), default=0.0)

    def expected_s(self, job: Job) -> float:
        """What the job will take, as far as anything is known; 0 where nothing is."""
        if isinstance(job, PrefillJob):
            return self.prefill_s(len(job.work.tokens)) or 0.0
        return self.decode_s(job.profile.submodel) or 0.0
