"""The suite: every case, in the order in which they are tried, and the running of them.

Source: SPEC section 13; S §6, §9.3, §18.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from calculet_trio.conformance import (
    batches,
    chunked_prefill,
    context,
    engines,
    faults,
    loading,
    prefix_reuse,
    sequences,
)
from calculet_trio.conformance.case import Case
from calculet_trio.conformance.result import Result, Verdict
from calculet_trio.conformance.rig import Rig
from calculet_trio.errors import ConfigurationRefused

CASES: Final = (
    Case(sequences.golden),
    Case(sequences.one_sequence),
    Case(sequences.two_alternating),
    Case(sequences.cancel_queued),
    Case(batches.lanes_1_to_b),
    Case(batches.inactive_lane_writes_no_kv),
    Case(batches.mixed_lengths),
    Case(batches.cancel_running),
    Case(engines.ping_pong_two_jobs),
    Case(context.remove_tail_boundaries),
    Case(sequences.near_max_seq, is_long=True),
    Case(chunked_prefill.incremental_prefill_supported),
    Case(chunked_prefill.kv_equal_to_whole_prefill),
    Case(chunked_prefill.positions_and_csrs_clear),
    Case(chunked_prefill.chunk_boundaries),
    Case(chunked_prefill.golden_and_performance, is_long=True),
    Case(prefix_reuse.prefix_reuse),
    Case(prefix_reuse.reply_reuse),
    Case(faults.device_busy),
    Case(faults.timeout),
    Case(faults.ccu_fault),
    Case(faults.pcie_error),
    Case(loading.load_unload_soak, is_long=True),
)


def chosen(only: Collection[str], *, short: bool) -> tuple[Case, ...]:
    """The named cases, or all; of a short run, those that are not long.

    Raises:
        calculet_trio.errors.ConfigurationRefused: a name is none of theirs.
    """
    known = {case.name for case in CASES}
    strangers = [name for name in only if name not in known]
    if strangers:
        raise ConfigurationRefused(
            f"there is no conformance case {strangers[0][:80]!r}", hint=f"there are: {', '.join(sorted(known))}"
        )
    return tuple(
        case for case in CASES if (case.name in only if only else True) and not (short and case.is_long and not only)
    )


def run_cases(
    rig: Rig,
    cases: Iterable[Case],
    *,
    done: Mapping[str, Result],
    begun: Callable[[Case], None],
    ended: Callable[[Result], None],
) -> tuple[Result, ...]:
    """Try the cases one after the other.

    Args:
        rig: what they are tried on.
        cases: in order.
        done: results of a run that was interrupted; these are not tried again.
        begun: told of each case before it is tried.
        ended: told of each new result.

    Returns:
        The results so far; fewer than there are cases if the device stopped.
    """
    results = []
    for case in cases:
        earlier = done.get(case.name)
        if earlier is not None:
            results.append(earlier)
            continue
        begun(case)
        result, can_go_on = case.tried(rig)
        results.append(result)
        ended(result)
        if not can_go_on:
            break
    return tuple(results)


def verdict_of(results: Collection[Result], cases: Collection[Case]) -> Verdict:
    """PASS if every case was tried and none failed."""
    failed = any(result.verdict is Verdict.FAIL for result in results)
    return Verdict.FAIL if failed or len(results) < len(cases) else Verdict.PASS
