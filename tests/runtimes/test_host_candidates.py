"""A package that names candidates: each row's largest logits, and the text is the same with them as without."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from calculet_trio.core.jobs import EngineId
from calculet_trio.ids import GenerationId
from calculet_trio.packages.manifest import Manifest
from calculet_trio.packages.manifest_parts import WeightForm
from calculet_trio.packages.static_validation import validate
from calculet_trio.runtimes.host import HostRuntime
from calculet_trio.runtimes.host_model import HostModel, LaneStep
from calculet_trio.runtimes.port import CANDIDATES
from calculet_trio.text.byte_tokenizer import ByteTokenizer
from calculet_trio.text.params import ReplyParams, SamplingParams
from calculet_trio.text.reply import ReplyStream
from tests.models import TinyModel
from tests.runtimes.conftest import MakePackage

COUNT = 16
PROMPTS = ((3, 5, 7), (11, 13, 17, 19), (23, 29))
INDEXES = (0, 2, 3)
TOKENS = 12
"""Of each reply."""

WAYS = {
    "greedy": SamplingParams(temperature=0),
    "top-k": SamplingParams(temperature=0.8, top_k=8, top_p=0.95, seed=1),
    "of the whole row": SamplingParams(temperature=1.0, seed=2),
    "penalized": SamplingParams(temperature=0, repetition_penalty=1.3),
}


def opened(make_package: MakePackage, candidates: int) -> HostModel:
    package = make_package(TinyModel(), WeightForm.FP32, candidates=candidates)
    return HostModel(package, Manifest.load(package), threads=1)


def test_a_package_declares_its_candidates_and_its_runtime_says_so(make_package: MakePackage) -> None:
    for count in (0, COUNT):
        package = make_package(TinyModel(), WeightForm.FP32, candidates=count)
        manifest = Manifest.load(package)
        assert {submodel.candidates for submodel in manifest.submodels} == {count}
        assert validate(manifest).problems == ()
        runtime = HostRuntime()
        runtime.open()
        runtime.configure(GenerationId(1), package)
        assert (CANDIDATES in runtime.inspect(GenerationId(1)).capabilities) == bool(count)
        runtime.close()


def test_no_row_has_more_candidates_than_tokens(make_package: MakePackage) -> None:
    package = make_package(TinyModel(), WeightForm.FP32, candidates=4096)
    manifest = Manifest.load(package)
    assert manifest.submodel("prefill").candidates == manifest.architecture.vocab_size


@pytest.mark.parametrize("engine", EngineId)
def test_they_are_the_largest_of_each_active_row(make_package: MakePackage, engine: EngineId) -> None:
    model = opened(make_package, COUNT)
    rows = {}
    for index, prompt in zip(INDEXES, PROMPTS, strict=True):
        rows[index] = model.prefill(index, prompt, position=0, engine=engine)[0].copy()
        named = model.candidates(engine)
        assert named is not None
        np.testing.assert_array_equal(np.sort(named.values[0]), np.sort(rows[index])[-COUNT:])
    steps = [LaneStep(index, 2, len(prompt)) for index, prompt in zip(INDEXES, PROMPTS, strict=True)]
    said = model.decode(0, 4, steps, engine=engine)
    named = model.candidates(engine)
    assert named is not None
    for index in INDEXES:
        np.testing.assert_array_equal(said[index][named.ids[index]], named.values[index])
        np.testing.assert_array_equal(np.sort(named.values[index]), np.sort(said[index])[-COUNT:])


@pytest.mark.parametrize("way", WAYS)
def test_the_text_is_the_same_with_candidates_as_without(make_package: MakePackage, way: str) -> None:
    without, with_them = (replies(opened(make_package, count), WAYS[way]) for count in (0, COUNT))
    assert with_them == without


def replies(model: HostModel, sampling: SamplingParams) -> list[list[int | None]]:
    """The tokens of a reply to each prompt, in one batch beside an idle lane."""
    padding = [b"x"] * (model.manifest.architecture.vocab_size - ByteTokenizer([]).vocab_size)
    params = ReplyParams(sampling=sampling, ignore_eos=True)
    streams = [ReplyStream(ByteTokenizer(padding), params, prompt=prompt) for prompt in PROMPTS]
    tokens: list[list[int | None]] = []
    for index, prompt, stream in zip(INDEXES, PROMPTS, streams, strict=True):
        tokens.append([_accepted(stream, model, model.prefill(index, prompt, position=0), 0)])
    for done in range(1, TOKENS):
        steps = [
            LaneStep(index, own[-1] or 0, len(prompt) + done - 1)
            for index, prompt, own in zip(INDEXES, PROMPTS, tokens, strict=True)
        ]
        rows = model.decode(0, 4, steps)
        for index, own, stream in zip(INDEXES, tokens, streams, strict=True):
            own.append(_accepted(stream, model, rows, index))
    return tokens


def _accepted(stream: ReplyStream, model: HostModel, rows: Sequence[np.ndarray], index: int) -> int | None:
    named = model.candidates(EngineId.PING)
    return stream.accept(rows[index], None if named is None else named.row(index)).token
