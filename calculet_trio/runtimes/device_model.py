"""DeviceModel: the numbers of an emulated board, each with what it rests on.

A number that nobody measured is an assumption, and every report that uses it says so.

Source: SPEC section 1 (the reference model and its two measured figures), 12 (honesty).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import yaml

from calculet_trio.core.jobs import EngineId
from calculet_trio.core.profiles import BatchProfile, InactiveLanePolicy, LaneLayout, ModelShape, PrefillProfile
from calculet_trio.errors import ConfigurationRefused

SCHEMA: Final = "calculet-device/v1"
REFERENCE: Final = Path(__file__).with_name("reference_device.yaml")


_CANDIDATES_MAX: Final = 4096
"""More than any sampler ranks; naming more is no cheaper than the row."""
_LANES_MAX: Final = 1024
"""Far more than any board; each lane is an object, and each batch a row of logits."""


@attrs.frozen
class StepCurve:
    """Seconds of one decode step: ``base_s + lane_s * active + context_token_s * tokens held by active lanes``."""

    base_s: float
    lane_s: float = 0.0
    context_token_s: float = 0.0

    def seconds(self, *, active: int, context_tokens: int) -> float:
        return self.base_s + self.lane_s * active + self.context_token_s * context_tokens


@attrs.frozen
class PrefillCurve:
    """Seconds of a prefill of n tokens onto c: ``base_s + token_s * n + pair_s * n * (c + n / 2)``."""

    base_s: float
    token_s: float
    pair_s: float = 0.0

    def seconds(self, *, tokens: int, position: int) -> float:
        return self.base_s + self.token_s * tokens + self.pair_s * tokens * (position + tokens / 2)


@attrs.frozen(kw_only=True)
class DeviceModel:
    """An emulated board with one model on it.

    Args:
        name: for reports.
        lanes: KV lanes.
        context_tokens: tokens that a lane holds.
        vocab_size: width of a row of logits.
        candidates: how many of a row's largest logits the board names beside it; 0 for none.
        prefill: its curve.
        decode: compiled batch → its curve.
        h2d_s: copying a job's inputs.
        d2h_row_s: copying one row of logits back.
        engines: job engines, 1 or 2.
        compute_overlaps: whether two engines compute at once; otherwise only their transfers overlap.
        jitter: every time is multiplied by 1 ± this, from the seed.
        inactive_lane: the contract for lanes without a sequence.
        layout: which lanes one batch may address.
        lane_fault_isolation: whether a fault of one lane leaves the others whole.
        kv_token_bytes: of one token of KV.
        parameter_bytes: of the weights.
        memory_bytes: of the device.
        memory_total_bug: whether the device reports its total as the 0.7.6 runtime does (about 3.05e-05 MiB).
        versions: what its components call themselves.
        configure_s: putting the model on the device.
        voice: two models of different voices say different things after the same prompt.
        assumed: the keys of the file whose values nobody measured.
    """

    name: str
    lanes: int
    context_tokens: int
    vocab_size: int
    prefill: PrefillCurve
    decode: Mapping[int, StepCurve]
    h2d_s: float
    d2h_row_s: float
    engines: int
    compute_overlaps: bool
    jitter: float
    inactive_lane: InactiveLanePolicy
    layout: LaneLayout
    lane_fault_isolation: bool
    kv_token_bytes: int
    parameter_bytes: int
    memory_bytes: int
    memory_total_bug: bool
    versions: Mapping[str, str]
    assumed: tuple[str, ...]
    candidates: int = 0
    configure_s: float = 0.0
    voice: int = 0

    def shape(self) -> ModelShape:
        """What the scheduler is told."""
        return ModelShape(
            prefill=PrefillProfile("prefill", self.context_tokens),
            decode=tuple(
                BatchProfile(f"decode_b{batch}", batch, self.context_tokens, self.inactive_lane)
                for batch in sorted(self.decode)
            ),
            lanes=self.lanes,
            max_seq=self.context_tokens,
            vocab_size=self.vocab_size,
            layout=self.layout,
            lane_fault_isolation=self.lane_fault_isolation,
        )


def load_device(path: Path = REFERENCE, **changes: Any) -> DeviceModel:
    """Read a device file; a value is a plain number (assumed) or ``{value: ..., measured: how}``.

    Args:
        path: the file; the reference model where none is given.
        changes: fields of `DeviceModel` to be other than in the file; they count as assumed.

    Raises:
        calculet_trio.errors.ConfigurationRefused: it cannot be read; the key is named.
    """
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        reader = _Reader(document)
        if reader.take("schema") != SCHEMA:
            raise ValueError(f"schema must be {SCHEMA}")
        model = _build(reader)
        reader.done()
    except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError, ValueError) as error:
        raise ConfigurationRefused(
            f"cannot use the device file {path}: {getattr(error, 'strerror', None) or error}"
        ) from error
    return (
        attrs.evolve(model, **changes, assumed=tuple(dict.fromkeys((*model.assumed, *changes)))) if changes else model
    )


def _build(reader: _Reader) -> DeviceModel:
    decode = {
        int(batch): StepCurve(**reader.numbers(curve, f"decode.{batch}", StepCurve))
        for batch, curve in reader.mapping("decode").items()
    }
    lanes = reader.whole("lanes", most=_LANES_MAX)
    if not decode or not all(1 <= batch <= lanes for batch in decode):
        raise ValueError(f"decode has the batches {sorted(decode)}; each must be between 1 and lanes ({lanes})")
    fields: dict[str, Any] = {
        "name": str(reader.take("name")),
        "lanes": lanes,
        "decode": decode,
        "prefill": PrefillCurve(**reader.numbers(reader.mapping("prefill"), "prefill", PrefillCurve)),
        "inactive_lane": InactiveLanePolicy(reader.take("inactive_lane")),
        "layout": LaneLayout(reader.take("layout")),
        "versions": {str(key): str(value) for key, value in reader.mapping("versions").items()},
    }
    fields["configure_s"] = reader.number("configure_s") if reader.has("configure_s") else 0.0
    fields["voice"] = reader.ordinal("voice")
    fields["engines"] = reader.whole("engines", most=len(EngineId))
    for key in ("context_tokens", "vocab_size", "kv_token_bytes", "parameter_bytes", "memory_bytes"):
        fields[key] = reader.whole(key)
    fields["candidates"] = reader.whole("candidates", most=_CANDIDATES_MAX) if reader.has("candidates") else 0
    for key in ("h2d_s", "d2h_row_s", "jitter"):
        fields[key] = reader.number(key)
    for key in ("compute_overlaps", "lane_fault_isolation", "memory_total_bug"):
        fields[key] = bool(reader.take(key))
    return DeviceModel(**fields, assumed=tuple(reader.assumed))


class _Reader:
    """Takes keys from the document and remembers which numbers rest on nothing."""

    def __init__(self, document: object) -> None:
        if not isinstance(document, Mapping):
            raise TypeError("it must be a mapping")
        self._left = dict(document)
        self.assumed: list[str] = []

    def take(self, key: str) -> Any:
        if key not in self._left:
            raise KeyError(f"{key} is missing")
        return self._left.pop(key)

    def has(self, key: str) -> bool:
        return key in self._left

    def mapping(self, key: str) -> Mapping[Any, Any]:
        given = self.take(key)
        if not isinstance(given, Mapping):
            raise TypeError(f"{key} is {given!r}; it must be a mapping")
        return given

    def whole(self, key: str, *, most: int = 10**14) -> int:
        number = self.number(key)
        if number != int(number) or not 1 <= number <= most:
            raise ValueError(f"{key} is {number:g}; it must be a whole number from 1 to {most}")
        return int(number)

    def ordinal(self, key: str) -> int:
        """A number that says which, and measures nothing: 0 where it is not given."""
        given = self._left.pop(key, 0)
        if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given < 2**32:
            raise ValueError(f"{key} is {given!r}; it must be a whole number from 0 to {2**32 - 1}")
        return given

    def number(self, key: str) -> float:
        return self._value(self.take(key), key)

    def numbers(self, curve: Mapping[str, Any], path: str, kind: type[Any]) -> dict[str, float]:
        known = {field.name for field in attrs.fields(kind)}
        if strangers := set(curve) - known:
            raise ValueError(f"{path} has unknown keys {sorted(strangers)}; it takes {sorted(known)}")
        return {key: self._value(value, f"{path}.{key}") for key, value in curve.items()}

    def done(self) -> None:
        if self._left:
            raise ValueError(f"unknown keys {sorted(self._left)}")

    def _value(self, given: Any, path: str) -> float:
        if isinstance(given, Mapping):
            given = given["value"]
        else:
            self.assumed.append(path)
        if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given < 1e15:
            raise ValueError(f"{path} is {given!r}; it must be a number from 0")
        return float(given)
