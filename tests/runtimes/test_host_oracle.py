"""The CPU runtime against llama.cpp: the same files, the same tokens, the same probabilities."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import attrs
import numpy as np
import numpy.typing as npt
import pytest

from calculet_trio.packages.build import build_package
from calculet_trio.packages.build_options import BuildOptions
from calculet_trio.packages.manifest import Manifest
from calculet_trio.packages.manifest_parts import WeightForm
from calculet_trio.runtimes.host_model import HostModel, LaneStep
from tests.models import TinyModel, vocabulary
from tests.runtimes.conftest import MakePackage, ignore_progress
from tests.runtimes.llama_oracle import LlamaOracle, consulting

LETTER = vocabulary().index("A")
FORCED = [(7 * n * n + 3 * n + 1) % 256 for n in range(48)]
POSITIONS = (1, 2, 3, 8, 17, 31, 47)


def logprobs(row: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    wide = row.astype(np.float64)
    return wide - wide.max() - np.log(np.exp(wide - wide.max()).sum())


def open_model(package: Path) -> HostModel:
    return HostModel(package, Manifest.load(package), threads=2)


def forced(model: HostModel, tokens: list[int], *, begin: int, lane: int = 0) -> Iterator[npt.NDArray[np.float64]]:
    """Log-probabilities after ``tokens[:n]`` for n from ``begin`` on: one prefill, then decode steps."""
    yield logprobs(model.prefill(lane, tokens[:begin], position=0)[0])
    for position in range(begin, len(tokens)):
        yield logprobs(model.decode(lane, 1, [LaneStep(0, tokens[position], position)])[0])


# ---- tiny random models: every architecture, every form ------------------------------------------------

TINY = [
    # In fp32 on F32 weights only the order of additions differs; llama.cpp keeps its tables in f16 here and there.
    *[(TinyModel(family=family), WeightForm.FP32, 0.1) for family in ("llama", "qwen3", "qwen3moe")],
    (TinyModel(tied=False, layers=3, kv_heads=1, head_dim=64), WeightForm.FP32, 0.1),
    *[(TinyModel(family=family, quantization="F16"), WeightForm.FP32, 0.1) for family in ("llama", "qwen3moe")],
    # llama.cpp multiplies BF16 weights with activations cut to BF16.
    (TinyModel(quantization="BF16"), WeightForm.FP32, 0.8),
    # Both sides round activations to int8, each in its own way; logits spread by 7.5 around their mean.
    *[(TinyModel(family=family, quantization="Q8_0"), WeightForm.Q8Z, 1.5) for family in ("llama", "qwen3")],
    (TinyModel(quantization="Q4_0"), WeightForm.Q8Z, 1.5),
    (TinyModel(family="llama", quantization="Q4_0", tied=False), WeightForm.Q4X, 1.5),
    (TinyModel(quantization="Q4_1"), WeightForm.Q4X, 1.5),
    (TinyModel(quantization="Q4_1"), WeightForm.FP32, 1.5),
]


@pytest.mark.parametrize(
    ("tiny", "form", "largest"),
    TINY,
    ids=[f"{tiny.family}-{tiny.quantization}-{form.value}-{tiny.tied}" for tiny, form, _ in TINY],
)
def test_forced_positions_agree_with_llama_cpp(
    tiny: TinyModel, form: WeightForm, largest: float, make_package: MakePackage
) -> None:
    package = make_package(tiny, form)
    ours = list(forced(open_model(package), FORCED, begin=1))
    with consulting(package.parent / "model.gguf", vocab_size=len(vocabulary()), whole_token=LETTER) as oracle:
        for position in POSITIONS:
            theirs = oracle.logprobs(FORCED[:position])
            assert np.isfinite(theirs).all()
            assert np.abs(ours[position - 1] - theirs).max() < largest, f"after {position} tokens"


@pytest.mark.parametrize(("quantization", "middle"), [("Q8_0", 1.0), ("Q4_1", 1.5)])
def test_experts_in_eight_bits_mostly_agree_with_llama_cpp(
    quantization: str, middle: float, make_package: MakePackage
) -> None:
    """A near tie between experts, decided otherwise by a rounding, changes a whole row: compare the middle one."""
    package = make_package(TinyModel(family="qwen3moe", quantization=quantization), WeightForm.Q8Z)
    ours = list(forced(open_model(package), FORCED, begin=1))
    with consulting(package.parent / "model.gguf", vocab_size=len(vocabulary()), whole_token=LETTER) as oracle:
        differences = [np.abs(ours[n - 1] - oracle.logprobs(FORCED[:n])).max() for n in range(1, 24)]
    assert np.median(differences) < middle


def test_greedy_text_of_a_tiny_model_is_llama_cpp_s(make_package: MakePackage) -> None:
    package = make_package(TinyModel(family="qwen3"), WeightForm.FP32)
    prompt, count = FORCED[:5], 24
    with consulting(package.parent / "model.gguf", vocab_size=len(vocabulary()), whole_token=LETTER) as oracle:
        theirs = oracle.greedy(prompt, count)
    assert greedy(open_model(package), prompt, count).tokens == theirs


# ---- the real small model -----------------------------------------------------------------------------

TEXT = """<|im_start|>user
Why is the sky blue? Explain it to a child.<|im_end|>
<|im_start|>assistant
The sky is blue because sunlight, which looks white, is made of all the colours of the rainbow. When it meets \
the air, the small molecules of gas scatter blue light more than red light, so from every side a little blue \
comes to your eyes. At sunset the light has a longer way to go, and most of the blue is lost.<|im_end|>
"""
QUESTIONS = ("What is the capital of France?", "Write one sentence about the sea.", "How much is two and two?")
SMOLLM2_TOKENS = 49_152
A_SPACE = 216
"""The id of ``Ġ``, one whole character."""
SEEN = 32
"""Log-probabilities asked of the oracle at each position."""
NEAR_TIE = 0.5
"""Where the two likeliest tokens are nearer than this, rounding may choose."""


@attrs.frozen
class Greedy:
    """Tokens chosen, up to an end token, and by how much each (the end token too) led the runner-up."""

    tokens: list[int]
    gaps: list[float]


def greedy(model: HostModel, prompt: list[int], count: int, lane: int = 0) -> Greedy:
    tokens: list[int] = []
    gaps: list[float] = []
    row = model.prefill(lane, prompt, position=0)[0]
    for position in range(len(prompt), len(prompt) + count):
        second, first = np.partition(row, -2)[-2:]
        tokens.append(int(row.argmax()))
        gaps.append(float(first - second))
        if tokens[-1] in model.manifest.special.end_of_turn:
            return Greedy(tokens[:-1], gaps)
        row = model.decode(lane, 1, [LaneStep(0, tokens[-1], position)])[0]
    return Greedy(tokens, gaps)


@pytest.fixture(scope="module")
def smollm2(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> HostModel:
    """The real model in the default form."""
    package = tmp_path_factory.mktemp("smollm2") / "package"
    options = BuildOptions(max_seq=512)
    build_package(smollm2_gguf, package, name="smollm2", options=options, report=ignore_progress)
    return open_model(package)


@pytest.fixture(scope="module")
def smollm2_oracle(smollm2_gguf: Path) -> Iterator[LlamaOracle]:
    with consulting(smollm2_gguf, vocab_size=SMOLLM2_TOKENS, whole_token=A_SPACE, context_tokens=512) as oracle:
        yield oracle


def test_the_real_model_agrees_with_llama_cpp_at_forced_positions(
    smollm2: HostModel, smollm2_oracle: LlamaOracle
) -> None:
    tokens = smollm2_oracle.tokenize(TEXT)
    differences, agreed = [], 0
    for length, ours in enumerate(forced(smollm2, tokens, begin=16), start=16):
        if length % 4:
            continue
        theirs = smollm2_oracle.logprobs(tokens[:length], likeliest=SEEN)
        first, second = np.argsort(-np.nan_to_num(theirs, nan=-np.inf))[:2]
        differences.append(np.nanmax(np.abs(ours - theirs)))
        same = int(ours.argmax()) == first
        agreed += same
        assert same or theirs[first] - theirs[second] < NEAR_TIE, f"a clear choice differs after {length} tokens"
    assert agreed / len(differences) >= 0.9
    assert np.median(differences) < 1.0
    assert np.max(differences) < 3.0


def test_the_real_model_s_greedy_text_is_llama_cpp_s_up_to_a_near_tie(
    smollm2: HostModel, smollm2_oracle: LlamaOracle
) -> None:
    alike = 0
    for question in QUESTIONS:
        prompt = smollm2_oracle.tokenize(f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n")
        ours = greedy(smollm2, prompt, 24)
        end = smollm2.manifest.special.end_of_turn
        theirs = [token for token in smollm2_oracle.greedy(prompt, 24) if token not in end]
        forks = [n for n, (our, their) in enumerate(zip(ours.tokens, theirs, strict=False)) if our != their]
        shorter = min(len(ours.tokens), len(theirs))
        fork = forks[0] if forks else shorter
        alike += fork
        same = not forks and len(ours.tokens) == len(theirs)
        assert same or ours.gaps[fork] < NEAR_TIE, f"{question}: a clear choice differs at {fork}"
    assert alike >= 12, "replies begin alike"
