"""Reading a GGUF: what is taken from it, and what is refused by name."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

pytest.importorskip("gguf", reason="needs the host extra")

from calculet_trio.errors import PackageError
from calculet_trio.packages.gguf_source import GgufSource
from tests.models import TEMPLATE, TinyModel, vocabulary


@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen3moe"])
def test_the_numbers_are_those_of_the_file(tmp_path: Path, family: str) -> None:
    tiny = TinyModel(family=family)
    numbers = GgufSource(tiny.write(tmp_path / "model.gguf")).architecture
    for name in ("family", "layers", "width", "feed_forward", "query_heads", "kv_heads", "head_dim", "context_tokens"):
        assert getattr(numbers, name) == getattr(tiny, name), name
    assert numbers.vocab_size == len(vocabulary())
    assert (numbers.experts, numbers.experts_used) == ((4, 2) if family == "qwen3moe" else (0, 0))


def test_the_text_side_is_taken_as_it_stands(tmp_path: Path) -> None:
    source = GgufSource(TinyModel().write(tmp_path / "model.gguf"))
    found = source.vocabulary()
    assert (found["model"], found["pre"], found["tokens"]) == ("gpt2", "qwen2", vocabulary())
    assert found["merges"] == ["Ġ t", "h e"]
    assert found["token_types"][-3:] == [3, 3, 3]
    assert source.chat_template() == TEMPLATE


def test_control_tokens_that_end_a_turn_are_found_by_their_text(tmp_path: Path) -> None:
    special = GgufSource(TinyModel().write(tmp_path / "model.gguf")).special()
    tokens = vocabulary()
    end_of_text, end_of_turn = tokens.index("<|endoftext|>"), tokens.index("<|im_end|>")
    assert (special.bos, special.eos) == (end_of_text, end_of_turn)
    assert special.end_of_turn == (end_of_text, end_of_turn)
    assert not special.add_bos


@attrs.frozen(kw_only=True)
class Odd(TinyModel):
    """A tiny model with one more key, or one more tensor."""

    uint_key: tuple[str, int] | None = None
    string_key: tuple[str, str] | None = None
    tensor: str | None = None

    def _write_metadata(self, writer):
        if self.uint_key is not None:
            writer.add_uint32(*self.uint_key)
        if self.string_key is not None:
            writer.add_string(*self.string_key)
        return super()._write_metadata(writer)

    def _shapes(self, vocab_size):
        shapes = super()._shapes(vocab_size)
        return shapes if self.tensor is None else {**shapes, self.tensor: (self.width,)}


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (TinyModel(family="gemma3"), "'gemma3' model; the CPU builder supports llama, qwen3, qwen3moe"),
        (Odd(string_key=("qwen3.rope.scaling.type", "yarn")), "rope scaling 'yarn'"),
        (Odd(family="llama", uint_key=("llama.expert_count", 8)), "mixture of experts"),
        (TinyModel(query_heads=3, kv_heads=2), "contradict each other"),
    ],
)
def test_what_the_graphs_cannot_compute_is_refused_by_name(tmp_path: Path, model: TinyModel, sentence: str) -> None:
    path = model.write(tmp_path / "model.gguf")
    with pytest.raises(PackageError) as refusal:
        GgufSource(path)
    assert sentence in str(refusal.value)
    assert "model.gguf" in str(refusal.value)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    source = GgufSource(TinyModel(layers=1).write(tmp_path / "model.gguf"))
    with pytest.raises(PackageError, match=r"has no tensor 'blk\.1\.attn_q\.weight', which a qwen3 model needs"):
        source.array("blk.1.attn_q.weight")


@pytest.mark.parametrize("keep_bytes", [0, 3, 4, 16, 100, 2000, -4096])
def test_a_cut_file_is_not_readable(tmp_path: Path, keep_bytes: int) -> None:
    path = TinyModel().write(tmp_path / "model.gguf")
    path.write_bytes(path.read_bytes()[:keep_bytes])
    with pytest.raises(PackageError, match=r"model\.gguf is not a readable GGUF file"):
        GgufSource(path)


def test_a_file_that_is_something_else_is_not_readable(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"PK\3\4" + bytes(4096))
    with pytest.raises(PackageError, match="not a readable GGUF file"):
        GgufSource(path)
    with pytest.raises(PackageError, match="is not a file"):
        GgufSource(tmp_path)
    with pytest.raises(PackageError, match="is not a file"):
        GgufSource(tmp_path / "nothing.gguf")


@pytest.mark.parametrize("kept", [0.0001, 0.01, 0.5, 0.99])
def test_tensors_past_the_end_of_their_file_are_refused(tmp_path: Path, kept: float) -> None:
    path = TinyModel().write(tmp_path / "model.gguf")
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * kept)])
    with pytest.raises(PackageError, match=r"model\.gguf is not a readable GGUF file"):
        GgufSource(path)
