"""Device files: what they say, and what is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
import yaml

from calculet_trio.core.profiles import InactiveLanePolicy, LaneLayout
from calculet_trio.errors import ConfigurationRefused
from calculet_trio.runtimes.device_model import REFERENCE, DeviceModel, PrefillCurve, StepCurve, load_device


def written(path: Path, **changes: Any) -> Path:
    """The reference file with these keys changed; None leaves a key out."""
    document = yaml.safe_load(REFERENCE.read_text(encoding="utf-8")) | changes
    path.write_text(yaml.safe_dump({key: value for key, value in document.items() if value is not None}))
    return path


def test_the_reference_has_its_measured_numbers_and_names_the_others() -> None:
    device = load_device()
    assert device.decode[1].base_s == 0.017167
    assert device.prefill.token_s == 0.005427
    assert device.memory_total_bug
    assert {"lanes", "engines", "jitter", "h2d_s", "prefill.base_s"} <= set(device.assumed)
    assert not {"decode.1.base_s", "prefill.token_s", "context_tokens", "memory_bytes"} & set(device.assumed)


def test_a_number_with_its_measurement_is_not_assumed(tmp_path: Path) -> None:
    path = written(tmp_path / "board.yaml", jitter={"value": 0.5, "measured": "a thousand steps"})
    device = load_device(path)
    assert device.jitter == 0.5
    assert "jitter" not in device.assumed


def test_changes_count_as_assumed_once() -> None:
    device = load_device(jitter=0.0, context_tokens=64)
    assert (device.jitter, device.context_tokens) == (0.0, 64)
    assert device.assumed.count("jitter") == 1
    assert "context_tokens" in device.assumed


def test_curves_are_what_they_say() -> None:
    assert StepCurve(1.0, 0.5, 0.25).seconds(active=2, context_tokens=4) == 3.0
    assert PrefillCurve(1.0, 0.5, 0.25).seconds(tokens=4, position=6) == 1.0 + 2.0 + 0.25 * 4 * (6 + 2)


def test_the_scheduler_is_told_the_shape() -> None:
    device = load_device(lanes=8, decode={8: StepCurve(1.0), 1: StepCurve(1.0)}, lane_fault_isolation=True)
    shape = device.shape()
    assert [profile.compiled_batch for profile in shape.decode] == [1, 8]
    assert (shape.lanes, shape.max_seq, shape.vocab_size) == (8, device.context_tokens, device.vocab_size)
    assert shape.layout is LaneLayout.CONTIGUOUS
    assert shape.lane_fault_isolation
    assert all(profile.inactive_lane is InactiveLanePolicy.VALID_MASK for profile in shape.decode)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"schema": "calculet-device/v9"}, "schema must be calculet-device/v1"),
        ({"lanes": None}, "lanes is missing"),
        ({"lanes": "four"}, "lanes is 'four'"),
        ({"lanes": True}, "lanes is True"),
        ({"jitter": -0.1}, "jitter is -0.1"),
        ({"jitter": float("nan")}, "jitter is nan"),
        ({"jitter": {"measured": "no value"}}, "value"),
        ({"wings": 2}, "unknown keys .*wings"),
        ({"decode": {}}, "decode has the batches"),
        ({"decode": {8: {"base_s": 1.0}}}, r"each must be between 1 and lanes \(4\)"),
        ({"decode": {1: {"base_s": 1.0, "speed": 2}}}, "decode.1 has unknown keys .*speed"),
        ({"decode": 17}, "decode is 17; it must be a mapping"),
        ({"versions": ["1"]}, "versions is .* must be a mapping"),
        ({"lanes": 4.5}, "lanes is 4.5; it must be a whole number from 1 to 1024"),
        ({"engines": 3}, "engines is 3; it must be a whole number from 1 to 2"),
        ({"context_tokens": 0}, "context_tokens is 0"),
        ({"inactive_lane": "pray"}, "pray"),
        ({"layout": "scattered"}, "scattered"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationRefused, match=named) as refused:
        load_device(written(tmp_path / "board.yaml", **changes))
    assert "board.yaml" in str(refused.value)


@pytest.mark.parametrize("text", ["- a list", "{unclosed", "\x00", "just words"])
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "board.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationRefused, match=r"board\.yaml"):
        load_device(path)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationRefused, match=r"none\.yaml"):
        load_device(tmp_path / "none.yaml")


def test_a_model_is_frozen() -> None:
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        load_device().lanes = 9  # type: ignore[misc]
    assert isinstance(load_device(), DeviceModel)
