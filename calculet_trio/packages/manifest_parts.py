"""The parts of a manifest: frozen values whose types say what each key allows.

Source: SPEC section 2, 14 (S §2 ``BatchProfile``, §9, §20).
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Final

import attrs

from calculet_trio.core.profiles import InactiveLanePolicy
from calculet_trio.packages.manifest_json import Entries, Extent, Pattern, Printable, Range

# Bounds far beyond any model, so that a damaged number cannot ask for absurd work.
Count = Annotated[int, Range(1, 2**24)]
CountOrNone = Annotated[int, Range(0, 2**24)]
TokenId = Annotated[int, Range(0, 2**24 - 1)]
Batch = Annotated[int, Range(1, 1024)]
Size = Annotated[int, Range(0, 2**50)]
Word = Annotated[str, Pattern(r"[a-z0-9_.]{1,64}", "1 to 64 of a-z, 0-9, _ and .")]
Name = Annotated[
    str, Pattern(r"[a-z0-9][a-z0-9._-]{0,63}", "1 to 64 of a-z, 0-9, ., _ and -, the first a letter or digit")
]
Target = Annotated[str, Pattern(r"[a-z0-9_.-]{1,64}", "1 to 64 of a-z, 0-9, _, . and -")]
Version = Annotated[str, Pattern(r"[A-Za-z0-9][A-Za-z0-9.+_-]{0,63}", "1 to 64 of letters, digits, ., +, _ and -")]
Label = Annotated[str, Printable(1, 256)]
"""An exact name of a compiler's or a graph's."""
Line = Annotated[str, Printable(0, 1024)]
Sha256 = Annotated[str, Pattern(r"[0-9a-f]{64}", "64 lower-case hexadecimal digits")]
SUBMODELS_MAX: Final = 256
"""One for prefill and one for each batch; a dozen is many."""
_PART = r"(?!\.)[A-Za-z0-9._-]{1,128}"
FilePath = Annotated[
    str, Pattern(rf"{_PART}(/{_PART}){{0,7}}", "a path inside the package, no part of it beginning with a dot")
]


class WeightForm(Enum):
    """How the linear layers' weights are kept, and so what the model's numbers are exact to."""

    FP32 = "fp32"
    """Dequantized: bit-faithful to the source, four bytes a weight."""
    Q8Z = "q8z"
    """8 bits in blocks of 32 with a zero point, nothing clipped; activations in int8."""
    Q4X = "q4x"
    """The source's own 4 bits, exactly, with its block minimum as a second product; activations in int8."""
    DEVICE = "device"
    """Whatever a board's compiler made of them."""


class KvKind(Enum):
    CONTIGUOUS_LANES = "contiguous_lanes"
    """A batch of B addresses B adjacent lanes."""
    INDIRECT = "indirect"


class FailureIsolation(Enum):
    """How far a failed job reaches: the whole batch's KV, or only the lanes it names."""

    BATCH = "batch"
    LANE = "lane"


class MemoryBasis(Enum):
    """What the figures of `Memory` rest on."""

    MEASURED = "measured"
    DECLARED = "declared"
    """The compiler says so."""
    INFERRED = "inferred"
    """From the outside: what was missing on a device that held the model."""


class CoResidency(Enum):
    """Whether another generation may be configured at the same time."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"


@attrs.frozen(kw_only=True)
class Source:
    """What the package was built from."""

    kind: Word
    file: Line
    sha256: Sha256
    size_bytes: Size


@attrs.frozen(kw_only=True)
class Architecture:
    """The numbers of the network.

    Args:
        family: as its source calls it (``llama``, ``qwen3``, ``qwen3moe``).
        context_tokens: the longest context it was trained for.
        experts, experts_used: 0 for a dense model.
    """

    family: Word
    layers: Count
    width: Count
    feed_forward: Count
    query_heads: Count
    kv_heads: Count
    head_dim: Count
    vocab_size: Count
    context_tokens: Count
    rope_base: float
    norm_epsilon: float
    experts: CountOrNone = 0
    experts_used: CountOrNone = 0


@attrs.frozen(kw_only=True)
class Tensor:
    """One input or output of a submodel.

    Args:
        shape: extents; a name where the extent is free within the submodel's bounds.
        layout: what the axes mean, outermost first, space separated.
    """

    name: Label
    dtype: Word
    shape: tuple[Annotated[int | str, Extent()], ...]
    layout: Line


@attrs.frozen(kw_only=True)
class Csr:
    """A register to be set before a job: its exact name, how many entries it has, and what they mean."""

    name: Label
    entries: Count
    meaning: Line


@attrs.frozen(kw_only=True)
class Submodel:
    """One compiled graph, or one fixed use of a graph that several submodels share.

    Args:
        graph: its file in the package.
        batch: sequences it computes at once.
        csrs: registers; empty where tensors carry the lengths.
    """

    name: Label
    graph: FilePath
    batch: Batch
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    csrs: Annotated[tuple[Csr, ...], Entries(0, 1024)] = ()

    @property
    def candidates(self) -> int:
        """How many of a row's largest logits it names beside the row: its outputs' axis ``candidate``; 0 for none."""
        counts = (dict(zip(each.layout.split(), each.shape, strict=False)).get("candidate") for each in self.outputs)
        return next((count for count in counts if isinstance(count, int)), 0)


class Defect(Enum):
    """What today's compiler is known to leave wrong in a calbin (A §4)."""

    PREFILL_TYPED_DECODE = "prefill_typed_decode"
    """The prefill submodel's model type is ``llm_decode``."""
    WORKLOAD_ZERO = "workload_zero"
    """A submodel's workload is 0."""
    TARGET_CHIPS_EMPTY = "target_chips_empty"
    """A submodel of several chips names none of them."""


@attrs.frozen(kw_only=True)
class DeviceBinary:
    """The calbin of a board's package.

    Args:
        version: of the calbin's schema, as it says (``0.1``).
        compiler: what made it, with its version; empty where it does not say.
        calcore_rt: the CalcoreRT that it was compiled for; empty where it does not say.
        shards: its files, in their order.
        overridden: its known defects; what this manifest says holds in their place.
    """

    version: Line
    compiler: Line
    calcore_rt: Line
    shards: Annotated[tuple[FilePath, ...], Entries(0, 1024)]
    overridden: Annotated[tuple[Defect, ...], Entries(0, 16)] = ()


@attrs.frozen(kw_only=True)
class Roles:
    """Which submodel does what; chosen by this and never by a substring of a name."""

    prefill: Label
    decode: Annotated[tuple[Label, ...], Entries(0, SUBMODELS_MAX)]


@attrs.frozen(kw_only=True)
class Profile:
    """One decode batch that the package offers; see `calculet_trio.core.profiles.BatchProfile`.

    Args:
        mask: the submodel's input or register that says which lanes count; None where ``inactive_lane`` is none.
    """

    submodel: Label
    compiled_batch: Batch
    max_seq: Count
    inactive_lane: InactiveLanePolicy
    mask: Label | None = None


@attrs.frozen(kw_only=True)
class Kv:
    """The KV cache: ``lanes`` sequences of up to ``max_seq`` tokens.

    Args:
        layout: the axes of one layer's K (and V) buffer, outermost first, space separated.
        bytes_per_token: K and V of all layers together.
    """

    kind: KvKind
    layout: Line
    dtype: Word
    lanes: Batch
    max_seq: Count
    bytes_per_token: Size


@attrs.frozen(kw_only=True)
class ChipMemory:
    """What the model takes of one chip's memory, its KV lanes at their full length.

    Args:
        reserved_bytes: what is gone beside the other three, whatever it is for.
    """

    parameters_bytes: Size
    kv_bytes: Size
    buffers_bytes: Size
    reserved_bytes: Size


@attrs.frozen(kw_only=True)
class Memory:
    """What the model takes of a device's memory, chip by chip."""

    chips: Annotated[tuple[ChipMemory, ...], Entries(1, 16)]
    basis: MemoryBasis


@attrs.frozen(kw_only=True)
class Special:
    """Token ids with a meaning of their own.

    Args:
        end_of_turn: every id that ends a reply, ``eos`` included if it has one.
        add_bos: whether plain text is to begin with ``bos``.
    """

    bos: TokenId | None
    eos: TokenId | None
    end_of_turn: Annotated[tuple[TokenId, ...], Entries(0, 1024)]
    add_bos: bool


@attrs.frozen(kw_only=True)
class Text:
    """Files of the text side: ``{"model","pre","tokens","token_types","merges"}``, and a jinja template."""

    vocabulary: FilePath
    chat_template: FilePath | None


@attrs.frozen(kw_only=True)
class Golden:
    """What the model said when the package was made, and how far it may differ elsewhere.

    Args:
        file: a JSON file of prompts and the logits that followed.
        logit_tolerance: the largest difference of any recorded logit.
        decisive_gap: ids are compared where the two likeliest tokens were further apart than this.
    """

    file: FilePath
    logit_tolerance: float
    decisive_gap: float


@attrs.frozen(kw_only=True)
class FileRecord:
    sha256: Sha256
    size_bytes: Size
