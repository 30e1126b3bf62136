"""EventTrace: what the core heard and decided during some seconds, as a trace that Chrome and Perfetto show.

Off it costs one look. On, it keeps names, numbers and reasons: fields of a closed list, so that no prompt, no
text and no key can get in, whatever an event carries.

Source: API.md ``GET /admin/trace``; the "Trace Event Format" of Chromium.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, Final

from calculet_trio.core.effects import Effect, SubmitJob
from calculet_trio.core.events import Event, JobFailed, JobFinished, JobNotSubmitted, JobUnknown, TimePassed

RECORDS_MAX: Final = 200_000
"""Some 40 MB of JSON; what comes after them is counted, and said."""

SHOWN: Final = (
    *("request", "job", "generation", "lane", "sequence", "engine", "reason", "step", "alias", "kind", "code"),
    *("confirmed", "prompt_tokens", "max_new_tokens", "queued_s", "tokens", "retryable", "truncated_by"),
)
"""Fields that may be shown, where they are numbers, names or words of a closed set."""

_ENDINGS: Final = (JobFinished, JobFailed, JobNotSubmitted, JobUnknown)


class EventTrace:
    """Records while somebody asked for it. From the trio thread only."""

    def __init__(self) -> None:
        self._began_s: float | None = None
        self._records: list[dict[str, Any]] = []
        self._left_out = 0
        self._running: dict[int, tuple[str, float, dict[str, Any]]] = {}

    def begin(self, now: float) -> bool:
        """Start recording; False if somebody else's recording is under way."""
        if self._began_s is not None:
            return False
        self._began_s = now
        return True

    def heard(self, event: Event, now: float) -> None:
        """The core was told ``event``, at ``now``."""
        if self._began_s is None or isinstance(event, TimePassed):
            return
        if isinstance(event, _ENDINGS) and event.job in self._running:
            engine, since_s, said = self._running.pop(event.job)
            ended = {**said, "outcome": type(event).__name__}
            self._add(said["phase"], "X", since_s, track=engine, said=ended, lasted_s=now - since_s)
        self._add(type(event).__name__, "i", now, track="heard", said=_fields(event))

    def decided(self, effect: Effect, now: float) -> None:
        """The core wants ``effect`` done."""
        if self._began_s is None:
            return
        if isinstance(effect, SubmitJob):
            lanes = [int(work.lane) for work in effect.job.lanes]
            said = {"job": int(effect.job.job), "phase": effect.job.phase, "lanes": lanes}
            self._running[effect.job.job] = (effect.engine.value, now, said)
            self._add("SubmitJob", "i", now, track="decided", said=said)
        else:
            self._add(type(effect).__name__, "i", now, track="decided", said=_fields(effect))

    def end(self) -> dict[str, Any]:
        """Stop, and hand out what was recorded: an object that trace viewers open as it is."""
        records, left_out = self._records, self._left_out
        self._began_s, self._records, self._left_out = None, [], 0
        self._running.clear()
        return {"traceEvents": records, "displayTimeUnit": "ms", "otherData": {"left_out": left_out}}

    def _add(
        self, name: str, kind: str, at_s: float, *, track: str, said: dict[str, Any], lasted_s: float | None = None
    ) -> None:
        if len(self._records) >= RECORDS_MAX:
            self._left_out += 1
            return
        assert self._began_s is not None
        record = {"name": name, "ph": kind, "ts": round((at_s - self._began_s) * 1e6), "pid": 1, "tid": track}
        record |= {"s": "t"} if lasted_s is None else {"dur": round(lasted_s * 1e6)}
        self._records.append({**record, "args": said})


def _fields(thing: object) -> dict[str, Any]:
    said: dict[str, Any] = {}
    for name in SHOWN:
        value = getattr(thing, name, None)
        if isinstance(value, Enum):
            value = value.value
        if isinstance(value, Sequence) and not isinstance(value, str):
            value = len(value)  # token ids: how many, never which
        if value is not None and isinstance(value, (bool, int, float, str)):
            said[name] = value
    return said
