"""CleanHours: hours of service, and what was wrong in them; in real time, with clients in the process.

In virtual time the simulator serves them, with checkers of its own; the command line connects the two.

Source: S §19 ("24h, no abort, cross-talk, leak").
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import attrs
import trio

from calculet_trio.conformance.clients import Errand, Heard, ask, ask_all, errands
from calculet_trio.conformance.gate import Criterion, GateVerdict
from calculet_trio.conformance.trial import LifeFailed, Trial
from calculet_trio.core.policy import Policy
from calculet_trio.shell.service import Service
from calculet_trio.visible import difference

_PROMPT_TOKENS: Final = (3, 9, 17, 30)
"""Of the errands: lengths that share a batch."""
_TOKENS: Final = 8
_WARM_ROUNDS: Final = 3
"""Caches, histograms and buffers have their size by then."""
_ROUNDS_MIN: Final = 6
_ROUNDS_S: Final = 10.0
"""About how long the fewest rounds may take: on a slow device fewer requests are served in each, down to four."""
_TOGETHER_MIN: Final = 4
GROWTH_AT_MOST: Final = 0.02
"""Of the process, from the third round to the last: S §18 allows as much to a load and unload."""
_BOUND_SLACK_S: Final = 900.0
_KIB: Final = 1024


@attrs.frozen(kw_only=True)
class CleanHours:
    """Hours that were served.

    Args:
        hours: how long.
        is_virtual: whether a simulator's clock says so.
        requests: that ended.
        objection: the first thing that was wrong; None if nothing was.
        checked: what was held against every request, for people.
    """

    hours: float
    is_virtual: bool
    requests: int
    objection: str | None
    checked: str


def clean_criterion(served: CleanHours) -> Criterion:
    """No abort, no cross-talk, nothing lost or left over."""
    time = "virtual time" if served.is_virtual else "real time"
    seen = f"{served.hours:.4g} h of {time}, {served.requests} requests; {served.checked}"
    if served.objection is not None:
        seen += f"; {served.objection}"
    return Criterion.of("clean hours", holds=served.objection is None, seen=seen)


@attrs.frozen
class Held:
    """What the process holds while no request is open.

    Args:
        objects: Python's, without scopes of trio, which keeps those that have ended, up to a thousand with a note each,
            until their deadlines are past.
        memory_bytes: resident.
        files: open ones.
        threads: Python's.
    """

    objects: int
    memory_bytes: int
    files: int
    threads: int


def held_now() -> Held:
    """Counted after a collection of garbage."""
    gc.collect()
    kinds = [type(each) for each in gc.get_objects()]
    status = Path("/proc/self/status").read_text(encoding="ascii")
    resident = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return Held(
        len(kinds) - 2 * kinds.count(trio.CancelScope),
        int(resident.split()[1]) * _KIB,
        sum(1 for _ in Path("/proc/self/fd").iterdir()),
        threading.active_count(),
    )


@attrs.frozen
class Rounds:
    """Rounds of the same requests in one life of the daemon.

    Args:
        objection: the first thing that was wrong with a reply; None if nothing was.
        requests: that ended.
        early: what was held after the first rounds.
        late: what was held after the last.
        device_bytes: of the device's memory, early and late.
    """

    objection: str | None
    requests: int
    early: Held
    late: Held
    device_bytes: tuple[int, int]


def serve_rounds(trial: Trial, policy: Policy, *, seconds: float, progress: Callable[[str], None]) -> Rounds:
    """Serve the same requests again and again, alone first, then together; hold what they say against each other.

    Raises:
        calculet_trio.conformance.trial.LifeFailed: the daemon did not live to its end.
    """
    shape = trial.description().shape
    wanted = tuple(
        errand
        for place in range(2 * shape.lanes)
        for errand in errands(
            1,
            prompt_tokens=min(_PROMPT_TOKENS[place % len(_PROMPT_TOKENS)], shape.max_seq - _TOKENS),
            tokens=_TOKENS,
            vocabulary=shape.vocab_size,
            seed=place,
        )
    )

    async def visit(service: Service) -> Rounds:
        began_s = trio.current_time()
        alone = [await ask(service, trial.alias, errand) for errand in wanted]
        share = max(seconds, _ROUNDS_S) / (_ROUNDS_MIN * (trio.current_time() - began_s))
        objection = _objection(wanted, alone, alone)
        asked = wanted[: max(_TOGETHER_MIN, int(len(wanted) * share))]
        ends_s, rounds, early, device_bytes = trio.current_time() + seconds, 0, held_now(), trial.memory_bytes()
        while objection is None and (rounds < _ROUNDS_MIN or trio.current_time() < ends_s):
            rounds += 1
            progress(f"round {rounds}, {max(0.0, ends_s - trio.current_time()):.0f} s to go")
            together = await ask_all(service, trial.alias, asked, at_once=len(asked))
            objection = _objection(asked, alone[: len(asked)], together)
            if rounds == _WARM_ROUNDS:
                early, device_bytes = held_now(), trial.memory_bytes()
        late = held_now()
        return Rounds(objection, len(wanted) + rounds * len(asked), early, late, (device_bytes, trial.memory_bytes()))

    return trial.live(policy, visit, bound_s=seconds + _BOUND_SLACK_S)


def _objection(wanted: tuple[Errand, ...], alone: list[Heard], heard: list[Heard] | tuple[Heard, ...]) -> str | None:
    for errand, expected, got in zip(wanted, alone, heard, strict=True):
        if got.trouble is not None:
            return f"a reply ended badly: {got.trouble}"
        if got.tokens != errand.tokens:
            return f"a reply has {got.tokens} of {errand.tokens} tokens"
        if got.text != expected.text:
            at = difference(got.text, expected.text)
            return (
                f"a reply is not its own: from character {at} on, {got.text[at : at + 40]!r} beside others, "
                f"{expected.text[at : at + 40]!r} alone"
            )
    return None


def leak_criterion(rounds: Rounds) -> Criterion:
    """Nothing grows from one round to the next."""
    early, late = rounds.early, rounds.late
    grown = [
        f"{name} from {before} to {after}"
        for name, before, after, allowed in (
            ("objects", early.objects, late.objects, GROWTH_AT_MOST),
            ("resident bytes", early.memory_bytes, late.memory_bytes, GROWTH_AT_MOST),
            ("device bytes", *rounds.device_bytes, GROWTH_AT_MOST),
            ("open files", early.files, late.files, 0.0),
        )
        if after > before * (1 + allowed)
    ]
    seen = (
        f"{early.objects} objects and {early.memory_bytes >> 20} MiB early, {late.objects} and "
        f"{late.memory_bytes >> 20} MiB after {rounds.requests} requests; allowed {GROWTH_AT_MOST:+.0%}"
    )
    return Criterion.of("no leak", holds=not grown, seen=f"{seen}; grew: {', '.join(grown)}" if grown else seen)


def serve_clean_hours(trial: Trial, policy: Policy, *, hours: float, progress: Callable[[str], None]) -> CleanHours:
    """Hours in real time; what the process holds must not grow in them either."""
    checked = "every reply the one that its prompt gets alone, nothing held grew"
    try:
        rounds = serve_rounds(trial, policy, seconds=3600 * hours, progress=progress)
    except LifeFailed as failed:
        return CleanHours(hours=hours, is_virtual=False, requests=0, objection=str(failed), checked=checked)
    leak = leak_criterion(rounds)
    objection = rounds.objection if rounds.objection is not None or leak.verdict is GateVerdict.PASS else leak.seen
    return CleanHours(hours=hours, is_virtual=False, requests=rounds.requests, objection=objection, checked=checked)
