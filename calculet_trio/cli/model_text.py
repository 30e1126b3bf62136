"""The text side of a model that is to be served: its tokenizer and its chat template.

A package stores vocabulary, merges and template; `text` makes a tokenizer of them, and knows no package.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from calculet_trio.errors import PackageError
from calculet_trio.packages.manifest import Manifest
from calculet_trio.shell.model_manager import ModelText
from calculet_trio.text.bpe import BpeTokenizer
from calculet_trio.text.template import TemplateWorker
from calculet_trio.text.tokenizer import SpecialIds, Tokenizer

PLAIN_TEMPLATE: Final = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content or '' }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""ChatML, for scripts and boards that bring no template."""


def open_text(package: Path, manifest: Manifest) -> ModelText:
    """The tokenizer and chat template that a package holds; blocks for about a second.

    Raises:
        calculet_trio.errors.PackageError: a file is missing or of a kind this version cannot read.
    """
    try:
        vocabulary = json.loads((package / manifest.text.vocabulary).read_bytes())
        template = (
            None
            if manifest.text.chat_template is None
            else (package / manifest.text.chat_template).read_text(encoding="utf-8")
        )
    except (OSError, ValueError) as error:
        raise PackageError(f"the package {manifest.name!r} has unreadable text files: {error}") from error
    special = SpecialIds(
        bos=manifest.special.bos,
        eos=manifest.special.eos,
        end_of_turn=manifest.special.end_of_turn,
        add_bos=manifest.special.add_bos,
    )
    tokenizer = BpeTokenizer.from_vocabulary(vocabulary, special)
    return ModelText(tokenizer, None if template is None else open_template(template, tokenizer))


def open_template(template: str, tokenizer: Tokenizer) -> TemplateWorker:
    """A worker for a template, with the texts of the tokenizer's special tokens."""

    def literal(token: int | None) -> str:
        return "" if token is None else tokenizer.token_bytes(token).decode("utf-8", "replace")

    return TemplateWorker(
        template,
        special_literals=tokenizer.special_literals,
        bos_token=literal(tokenizer.special.bos),
        eos_token=literal(tokenizer.special.eos),
    )
