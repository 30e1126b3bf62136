"""The text side of a model: its tokenizer and chat template, opened and tried out before anybody depends on them.

Source: SPEC section 8, load step 3.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from calculet_trio.errors import InvalidRequest, PackageError
from calculet_trio.packages import manifest_json
from calculet_trio.packages.manifest import Manifest
from calculet_trio.packages.static_validation import TEXT_BYTES_MAX
from calculet_trio.regular_file import open_regular
from calculet_trio.shell.loading import ModelText
from calculet_trio.text.bpe import BpeTokenizer
from calculet_trio.text.params import ChatPrompt
from calculet_trio.text.template import TemplateProcess, TemplateWorker
from calculet_trio.text.tokenizer import SpecialIds, Tokenizer
from calculet_trio.visible import visible

PLAIN_TEMPLATE: Final = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content or '' }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""ChatML, for scripts and boards that bring no template."""
ORDINARY: Final = ChatPrompt(messages=[{"role": "user", "content": "Hello"}])
"""What every chat template can render."""


def open_text(package: Path, manifest: Manifest) -> ModelText:
    """The tokenizer and chat template that a package holds; blocks for some tenths of a second.

    Raises:
        calculet_trio.errors.PackageError: a file is missing, of a kind this version cannot read, or a program that
            does what no template need do.
    """
    if manifest.text.chat_template is None:
        return ModelText(_open_tokenizer(package, manifest), None)
    try:
        with open_regular(package / manifest.text.chat_template) as file:
            template = file.read(TEXT_BYTES_MAX["text.chat_template"]).decode()
    except (OSError, ValueError) as error:
        raise _unreadable(manifest, error) from error
    process = TemplateProcess()  # it starts beside the tokenizer's making
    try:
        tokenizer = _open_tokenizer(package, manifest)
    except BaseException:
        process.kill()
        raise
    return ModelText(tokenizer, open_template(template, tokenizer, process))


def _open_tokenizer(package: Path, manifest: Manifest) -> BpeTokenizer:
    special = SpecialIds(
        bos=manifest.special.bos,
        eos=manifest.special.eos,
        end_of_turn=manifest.special.end_of_turn,
        add_bos=manifest.special.add_bos,
    )
    try:
        path, bytes_max = package / manifest.text.vocabulary, TEXT_BYTES_MAX["text.vocabulary"]
        vocabulary: Any = manifest_json.read(path, bytes_max=bytes_max)
        _require_rows(manifest, len(vocabulary["tokens"]))
        tokenizer = BpeTokenizer.from_vocabulary(vocabulary, special)
    except PackageError:
        raise
    except Exception as error:  # the tokenizers' library raises this very class, and a vocabulary may hold anything
        raise _unreadable(manifest, error) from error
    return tokenizer


def _require_rows(manifest: Manifest, count: int) -> None:
    """Raises PackageError where there are more tokens than logits; before anything is made of them."""
    if count > manifest.architecture.vocab_size:
        raise PackageError(
            f"the package {manifest.name!r} has {count} tokens in {manifest.text.vocabulary}; "
            f"allowed: at most architecture.vocab_size, {manifest.architecture.vocab_size}",
            hint="build or pull the package again",
        )


def _unreadable(manifest: Manifest, error: Exception) -> PackageError:
    return PackageError(
        f"the package {manifest.name!r} has unreadable text files: {type(error).__name__}: {str(error)[:200]}",
        hint="build or pull the package again",
    )


def open_template(template: str, tokenizer: Tokenizer, process: TemplateProcess | None = None) -> TemplateWorker:
    """A chat template that has rendered an ordinary conversation within its bounds of time, memory and output.

    Args:
        template: jinja2 source.
        tokenizer: whose special tokens it may write.
        process: to render in, where one was begun ahead.

    Raises:
        calculet_trio.errors.PackageError: it does not compile, or not render that; with the reason.
    """

    def literal(token: int | None) -> str:
        return "" if token is None else tokenizer.token_bytes(token).decode("utf-8", "replace")

    worker = TemplateWorker(
        template,
        special_literals=tokenizer.special_literals,
        bos_token=literal(tokenizer.special.bos),
        eos_token=literal(tokenizer.special.eos),
        process=process,
    )
    try:
        tokenizer.encode_prompt(worker.render(ORDINARY))
    except BaseException as error:
        worker.close()
        if isinstance(error, InvalidRequest):
            raise PackageError(
                f"the package's chat template does not render an ordinary conversation: {visible(error.message)}",
                hint="ask for a package with another template; what it was made of may have one",
            ) from None
        raise
    return worker
