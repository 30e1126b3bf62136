"""Case: one thing that a runtime must do, and how it comes to its verdict.

Source: SPEC section 13 (S §18).
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import attrs

from calculet_trio.conformance.result import Result, Verdict
from calculet_trio.conformance.rig import CaseFailed, DeviceStopped, NotApplicable, Rig


@attrs.frozen
class Case:
    """A named case.

    Args:
        check: tries it; returns what was seen.
        is_long: left out of short runs.
    """

    check: Callable[[Rig], str]
    is_long: bool = False

    @property
    def name(self) -> str:
        return self.check.__name__

    @property
    def says(self) -> str:
        """Its claim: the first line of its docstring."""
        return (self.check.__doc__ or "").strip().splitlines()[0]

    def tried(self, rig: Rig) -> tuple[Result, bool]:
        """Its result, and whether another case can be tried after it. What it held is released."""
        began_s = perf_counter()
        verdict, can_go_on = Verdict.FAIL, True
        try:
            why, verdict = self.check(rig), Verdict.PASS
        except NotApplicable as missing:
            why, verdict = str(missing), Verdict.NOT_APPLICABLE
        except DeviceStopped as stopped:
            why, can_go_on = str(stopped), False
        except CaseFailed as failed:
            why = str(failed)
        except Exception as error:  # noqa: BLE001 - a runtime that raises has failed the case, whatever it raised
            why = f"raised {type(error).__name__}: {error}"
        if can_go_on:
            try:
                rig.clear()
            except Exception as error:  # noqa: BLE001 - the same
                why, verdict, can_go_on = f"{why}; then {error}", Verdict.FAIL, False
        return Result(self.name, verdict, why, perf_counter() - began_s), can_go_on
