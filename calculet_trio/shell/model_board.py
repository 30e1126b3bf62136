"""ModelBoard: how far each alias is, for operators to read; and what surfaces are told of a model that serves.

Source: SPEC section 8, 12; API.md "Admin endpoints", ``GET /v1/models``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import attrs

from calculet_trio.core.evidence import CAPABILITIES, Evidence, batch_capability
from calculet_trio.core.generation import GenerationState
from calculet_trio.core.profiles import ModelShape
from calculet_trio.errors import OperationRefused
from calculet_trio.runtimes.port import DeviceInfo, ModelDescription
from calculet_trio.shell.loading import LoadPhase, ModelSource, ModelText, Say
from calculet_trio.shell.operations import ModelStatus
from calculet_trio.shell.service import ServedModel

ALIASES_MAX: Final = 256
"""Each has its series among the metrics, and is remembered after it was unloaded."""


class ModelBoard:
    """One `ModelStatus` for each alias that was ever to be loaded."""

    def __init__(self) -> None:
        self._statuses: dict[str, ModelStatus] = {}

    def __contains__(self, alias: str) -> bool:
        return alias in self._statuses

    def __getitem__(self, alias: str) -> ModelStatus:
        return self._statuses[alias]

    def statuses(self) -> tuple[ModelStatus, ...]:
        """All, in the order in which they were first asked for."""
        return tuple(self._statuses.values())

    def enter(self, alias: str) -> None:
        """The alias is to be loaded; one that is known stays as it is.

        Raises:
            calculet_trio.errors.OperationRefused: so many are known that it would be one too many.
        """
        if alias not in self._statuses and len(self._statuses) >= ALIASES_MAX:
            raise OperationRefused(
                f"this daemon has known {ALIASES_MAX} aliases, and remembers no more", hint="restart it"
            )
        self._statuses.setdefault(alias, ModelStatus(alias=alias, state=GenerationState.UNLOADED.value))

    @contextmanager
    def entering(self, alias: str) -> Iterator[None]:
        """Around the search for what it is to mean: if nothing is found, an alias that is new was none, and one that
        was there shows why. See `enter`.
        """
        is_new = alias not in self._statuses
        self.enter(alias)
        try:
            yield
        except BaseException as error:
            if is_new:
                del self._statuses[alias]
            else:
                self.note(alias, doing=None, error=str(error) or type(error).__name__)
            raise

    def note(self, alias: str, **changes: Any) -> None:
        """Something about it is other than before; the names are those of `ModelStatus`."""
        self._statuses[alias] = attrs.evolve(self._statuses[alias], **changes)

    def noting(self, alias: str, say: Say) -> Say:
        """Takes lines of progress, shows the last one here, and hands each on."""

        def note(line: str) -> None:
            self.note(alias, doing=line)
            say(line)

        return note

    def phase_ended(self, alias: str, phase: LoadPhase, took_s: float) -> None:
        """A step of its load has ended well."""
        phases_s = {**self._statuses[alias].phases_s, phase.value: round(took_s, 3)}
        self.note(alias, doing=None, phases_s=phases_s)


def parked_model(source: ModelSource, shape: ModelShape) -> ServedModel:
    """What surfaces are told of a model that waits for its turn on the device: as its package declares it."""
    return ServedModel(
        alias=source.alias,
        loaded_unix_s=time.time(),
        context_tokens=shape.max_seq,
        vocab_size=shape.vocab_size,
        meta={**source.meta, **_declared(shape)},
    )


def served_model(
    source: ModelSource, device: DeviceInfo, description: ModelDescription, text: ModelText, evidence: Evidence | None
) -> ServedModel:
    """What surfaces are told of a model that serves from now on."""
    shape, warnings = description.shape, description.warnings
    return ServedModel(
        alias=source.alias,
        loaded_unix_s=time.time(),
        context_tokens=shape.max_seq,
        vocab_size=text.tokenizer.vocab_size,
        meta={
            **source.meta,
            **_declared(shape),
            **({} if evidence is None else {"capabilities": _capabilities(evidence, shape)}),
            "device": {"kind": device.kind, "name": device.name, "versions": device.versions},
            **({"warnings": list(warnings)} if warnings else {}),
        },
    )


def _declared(shape: ModelShape) -> dict[str, Any]:
    return {
        "context_tokens": shape.max_seq,
        "lanes": shape.lanes,
        "profiles": [profile.compiled_batch for profile in shape.decode],
    }


def _capabilities(evidence: Evidence, shape: ModelShape) -> dict[str, dict[str, object]]:
    """Each capability's level, and the record that earned it or what is missing."""
    batches = (batch_capability(profile.compiled_batch) for profile in shape.decode)
    standings = (evidence.standing(capability) for capability in (*CAPABILITIES.values(), *batches))
    return {
        standing.capability: {
            "level": standing.level.value,
            "earned": standing.earned,
            "evidence": standing.record,
            "missing": standing.missing,
        }
        for standing in standings
    }
