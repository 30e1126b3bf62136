"""Golden recordings: what is recorded, what counts as a difference, and what is no recording."""

from __future__ import annotations

import json
import math
from pathlib import Path

import attrs
import numpy as np
import pytest

from calculet_trio.errors import PackageError
from calculet_trio.packages import golden
from calculet_trio.packages.golden import Deviation, GoldenLogit, GoldenSequence
from calculet_trio.packages.manifest import Manifest
from tests.packages.test_manifest import example

RECORDED = (GoldenLogit(4, 5.0), GoldenLogit(2, 4.0), GoldenLogit(1, 1.0))


def row(**changes: float) -> np.ndarray:
    values = np.zeros(8, np.float32)
    values[[4, 2, 1]] = 5.0, 4.0, 1.0
    for token, value in changes.items():
        values[int(token[1:])] = value
    return values


def test_the_likeliest_come_first_and_ties_by_id() -> None:
    found = golden.likeliest(np.array([1, 3, 2, 3, 0, 0, 0, 0, 0, 0], np.float32))
    assert [entry.token for entry in found] == [1, 3, 2, 0, 4, 5, 6, 7]
    assert found[0].logit == 3.0


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, Deviation(0.0, decided_otherwise=False)),
        ({"t4": 4.5}, Deviation(0.5, decided_otherwise=False)),
        ({"t1": -1.0}, Deviation(2.0, decided_otherwise=False)),
        ({"t4": 3.75}, Deviation(1.25, decided_otherwise=True)),
        ({"t7": 6.0}, Deviation(0.0, decided_otherwise=True)),
        ({"t7": math.nan}, Deviation(math.inf, decided_otherwise=True)),
        ({"t0": -math.inf}, Deviation(math.inf, decided_otherwise=True)),
    ],
)
def test_how_a_row_differs(changes: dict[str, float], expected: Deviation) -> None:
    assert golden.deviation(RECORDED, row(**changes), decisive_gap=0.5) == expected


def test_a_near_tie_may_fall_either_way() -> None:
    assert not golden.deviation(RECORDED, row(t2=5.5), decisive_gap=1.5).decided_otherwise


@pytest.mark.parametrize("max_seq", [6, 8, 64, 2048])
def test_prompts_fit_the_lane_and_use_ordinary_tokens(max_seq: int) -> None:
    manifest = attrs.evolve(example(), kv=attrs.evolve(example().kv, max_seq=max_seq))
    found = golden.prompts(manifest)
    assert found == golden.prompts(manifest)
    assert len(set(found)) == len(found) == golden.SEQUENCES or max_seq < 16
    special = {1, 2, 5}
    for prompt in found:
        assert 1 <= len(prompt) <= max_seq - golden.DECODE_STEPS
        assert not special & set(prompt)
        assert max(prompt) < manifest.architecture.vocab_size


# ---- files --------------------------------------------------------------------------------------------


@pytest.fixture
def recorded(tmp_path: Path) -> Manifest:
    fresh = attrs.evolve(example(), golden=None)
    return golden.save(tmp_path, fresh, (GoldenSequence((3, 4), (RECORDED, RECORDED)),))


def test_a_recording_comes_back_and_stands_in_the_manifest(recorded: Manifest, tmp_path: Path) -> None:
    assert Manifest.load(tmp_path) == recorded
    assert recorded.golden is not None
    assert recorded.golden.file in recorded.files
    assert golden.load(tmp_path, recorded) == (GoldenSequence((3, 4), (RECORDED, RECORDED)),)


@pytest.mark.parametrize(
    ("sequence", "sentence"),
    [
        ({"prompt": [], "steps": [[{"token": 1, "logit": 1.0}]]}, "is empty"),
        ({"prompt": [1], "steps": []}, "is empty"),
        ({"prompt": [1], "steps": [[]]}, "is empty"),
        ({"prompt": [1] * 65, "steps": [[{"token": 1, "logit": 1.0}]]}, "longer than kv.max_seq"),
        ({"prompt": [300], "steps": [[{"token": 1, "logit": 1.0}]]}, "beyond the vocabulary"),
        ({"prompt": [1], "steps": [[{"token": 300, "logit": 1.0}]]}, "beyond the vocabulary"),
        ({"prompt": [-1], "steps": []}, "sequences[0].prompt[0] is -1"),
        ({"prompt": [1]}, "sequences[0].steps is missing"),
    ],
)
def test_what_does_not_fit_the_package_is_refused(
    recorded: Manifest, tmp_path: Path, sequence: dict, sentence: str
) -> None:
    (tmp_path / golden.GOLDEN_FILE).write_text(json.dumps({"schema": golden.SCHEMA, "sequences": [sequence]}))
    with pytest.raises(PackageError) as refusal:
        golden.load(tmp_path, recorded)
    assert sentence in str(refusal.value)
