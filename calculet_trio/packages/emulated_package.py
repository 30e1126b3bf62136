"""A package for the emulator of the board's runtime: an empty calbin, and a vocabulary of bytes.

Source: binding/emulator/CALBIN.md; `calculet_trio.runtimes.emulated`, whose tokens it says.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import attrs

from calculet_trio.packages import calbin_writer
from calculet_trio.packages.calbin_package import KV_BYTES, Artefacts, PackageText, Report, build_calbin_package
from calculet_trio.packages.calbin_plan import SCHEMA, CalbinPlan, PlannedSubmodel
from calculet_trio.packages.calbin_writer import EmulatedShape, decode_name, write_calbin
from calculet_trio.packages.hugging_face import CONTROL, NORMAL, UNUSED
from calculet_trio.packages.manifest import Manifest
from calculet_trio.packages.manifest_parts import Architecture, Defect, Special

TARGET: Final = "calrt-emulator"
CONTROLS: Final = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
"""Ids 256 to 258; the last two end a reply."""
TEMPLATE: Final = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content or '' }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build_emulated_package(
    shape: EmulatedShape,
    destination: Path,
    *,
    name: str,
    package_version: str = "1",
    report: Report,
    prove: Callable[[Path], object],
) -> Manifest:
    """Make ``destination``, whole or not at all; see `build_calbin_package`.

    Raises:
        calculet_trio.errors.PackageError: ``destination`` exists.
    """
    calbin = attrs.evolve(shape, name=name).calbin()
    with tempfile.TemporaryDirectory(prefix=f".{name}.", dir=destination.parent) as scratch:
        artefacts = Artefacts(
            shards=write_calbin(calbin, Path(scratch)),
            calbin=calbin,
            plan=_plan(shape),
            architecture=_architecture(shape),
            text=_text(shape.vocab_size),
            target=TARGET,
            package_version=package_version,
        )
        return build_calbin_package(artefacts, destination, name=name, report=report, prove=prove)


def _plan(shape: EmulatedShape) -> CalbinPlan:
    return CalbinPlan(
        schema=SCHEMA,
        prefill=PlannedSubmodel(submodel=calbin_writer.PREFILL),
        decode=tuple(
            PlannedSubmodel(submodel=decode_name(batch), lane_mask=calbin_writer.LANE_VALID if batch > 1 else None)
            for batch in shape.batches
        ),
        overrides=tuple(Defect) if shape.defects else (),
    )


def _architecture(shape: EmulatedShape) -> Architecture:
    """Of a network that is not there."""
    return Architecture(
        family="emulated",
        layers=1,
        width=1,
        feed_forward=1,
        query_heads=1,
        kv_heads=1,
        head_dim=shape.kv_bytes_per_token // (2 * KV_BYTES),
        vocab_size=shape.vocab_size,
        context_tokens=shape.max_seq_len,
        rope_base=10_000.0,
        norm_epsilon=1e-6,
    )


def _text(vocab_size: int) -> PackageText:
    """A token for each byte, in GPT-2's spelling; no merges."""
    others = range(256 + len(CONTROLS), vocab_size)
    tokens = [*_spelled_bytes(), *CONTROLS, *(f"[{token}]" for token in others)]
    types = [NORMAL] * 256 + [CONTROL] * len(CONTROLS) + [UNUSED] * len(others)
    vocabulary = {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "token_types": types, "merges": []}
    return PackageText(
        vocabulary=vocabulary,
        special=Special(bos=None, eos=258, end_of_turn=(257, 258), add_bos=False),
        chat_template=TEMPLATE,
    )


def _spelled_bytes() -> list[str]:
    """GPT-2's spelling: each byte is one printable character."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in printable]
    return [chr(byte if byte in printable else 256 + hidden.index(byte)) for byte in range(256)]
