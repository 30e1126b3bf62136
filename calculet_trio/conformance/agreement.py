"""Agreement: when two rows of logits say the same, on a runtime whose kernels may differ with the shape of a job.

Source: SPEC section 13; S §6 ("numerically equal").
"""

from __future__ import annotations

import attrs
import numpy as np
import numpy.typing as npt

Row = npt.NDArray[np.float32]


@attrs.frozen
class Agreement:
    """What may differ between two ways to the same context.

    Args:
        logit_tolerance: the largest difference of any logit; 0 where every way is the same arithmetic.
        decisive_gap: the likeliest token must be the same where it led by more than this.
    """

    logit_tolerance: float
    decisive_gap: float

    def objection(self, expected: Row, got: Row) -> str | None:
        """Why the rows do not agree; None if they do."""
        if not (np.isfinite(expected).all() and np.isfinite(got).all()):
            return "a logit is not a finite number"
        differ = difference(expected, got)
        if differ > self.logit_tolerance:
            return f"a logit differs by {differ:.4g}, allowed {self.logit_tolerance:g}"
        second, first = np.partition(expected, -2)[-2:]
        if first - second > self.decisive_gap and expected.argmax() != got.argmax():
            return f"token {got.argmax()} instead of {expected.argmax()}, which led by {first - second:.4g}"
        return None


def difference(one: Row, other: Row) -> float:
    """The largest difference of a logit."""
    return float(np.abs(one - other).max())


EXACT = Agreement(logit_tolerance=0.0, decisive_gap=0.0)
"""Of the same jobs, run again."""
