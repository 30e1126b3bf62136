"""The corpus: what a package may do to whoever takes it in, each with the words that refuse it.

A case changes a whole, signed, running package. What a stranger can do is refused for the signature or the hashes,
whatever it is; so most cases are signed again after the change, as if somebody trusted had been careless, and must be
refused for what they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs

from calculet_trio.packages.manifest import MANIFEST_FILE, SIGNATURE_FILE
from tests.packages.hostile.changes import (
    Change,
    both,
    external,
    first_token,
    flip,
    functions,
    hard_link,
    link,
    linked_directory,
    loop,
    manifest,
    many_files,
    many_submodels,
    named_as,
    pipe,
    shorter_weights,
    sparse,
    template,
    tokens,
    unix_socket,
    vocabulary,
    write,
)

FILES: Final = ("model.onnx", "weights.bin", "vocabulary.json", "chat_template.jinja", "golden.json")
"""Of a package that this project builds."""
HUGE_BYTES: Final = 1 << 40


@attrs.frozen
class Case:
    """One hostile package.

    Args:
        name: of its directory.
        change: made to a copy of a good one.
        reason: what its refusal says; alternatives are separated by ``|``.
        signed_again: whether the manifest is brought up to date and signed by the trusted key after the change.
    """

    name: str
    change: Change
    reason: str
    signed_again: bool = True

    def is_refused_by(self, sentence: str) -> bool:
        """Whether that is the refusal it should have."""
        return any(part in sentence for part in self.reason.split("|"))


# ---- the cases ----------------------------------------------------------------------------------------


def cases() -> Iterator[Case]:
    """All of them."""
    yield from _a_stranger_s()
    yield from _of_files()
    yield from _of_json()
    yield from _of_numbers()
    yield from _of_tensors()
    yield from _of_programs()


def _a_stranger_s() -> Iterator[Case]:
    for name in FILES:
        yield Case(f"flipped-{name}", flip(name), f"{name}: its sha256 is", signed_again=False)
        yield Case(f"missing-{name}", lambda package, name=name: (package / name).unlink(), name, signed_again=False)
        yield Case(
            f"renamed-{name}",
            lambda package, name=name: (package / name).rename(package / f"{name}.old"),
            f"{name}.old is not named",
            signed_again=False,
        )
        yield Case(f"shorter-{name}", sparse(name, 1), f"{name}: it has 1 bytes", signed_again=False)
    yield Case(
        "flipped-manifest",
        manifest("package_version", value="1.1"),
        "manifest.json was changed after it was signed",
        signed_again=False,
    )
    yield Case("flipped-signature", flip(SIGNATURE_FILE), "signature|signed|JSON", signed_again=False)
    yield Case("unsigned", lambda package: (package / SIGNATURE_FILE).unlink(), "is not signed", signed_again=False)
    yield Case(
        "missing-manifest", lambda package: (package / MANIFEST_FILE).unlink(), "not a package", signed_again=False
    )


def _of_files() -> Iterator[Case]:
    yield Case("extra-file", write("run_me.py", b"import os"), "run_me.py is not named")
    yield Case("extra-directory", write("a/b/c/d.bin", b""), "a is not named")
    yield Case("many-files", many_files, "is not named")
    yield Case("linked-file", link("golden.json"), "golden.json is not a regular file")
    yield Case("linked-device", link("golden.json", "/dev/zero"), "golden.json is not a regular file")
    yield Case("linked-directory", linked_directory, "parts is not named")
    yield Case("pipe", pipe("golden.json"), "golden.json is not a regular file")
    for number, path in enumerate(("../escape", "/etc/passwd", "a/../../escape", ".ssh/key", "a//b", "a\x00b", "")):
        yield Case(f"escape-{number}", named_as(path), "a path inside the package")
    yield Case("escaping-graph", manifest("submodels", 0, "graph", value="../model.onnx"), "a path inside the package")
    yield Case("escaping-template", manifest("text", "chat_template", value="/etc/passwd"), "a path inside the package")
    yield Case("hard-link", hard_link, "extra.json is not named")
    yield Case("socket", unix_socket, "golden.json is not a regular file")
    yield Case(
        "sparse-weights", sparse("weights.bin", HUGE_BYTES), "weights.bin: it has 1099511627776", signed_again=False
    )
    for name in (MANIFEST_FILE, SIGNATURE_FILE):
        yield Case(f"names-{name}", named_as(name), f"files lists '{name}'")
    yield Case("file-as-directory", named_as("golden.json/x"), "golden.json/x cannot be used")
    for number, path in enumerate(("golden\u2024json", "golden\u202ejson", "golden.json\n", "g\uff4flden.json")):
        yield Case(f"alike-{number}", named_as(path), "a path inside the package")
    yield Case("pickle", both(write("a.pkl", b"\x80\x04."), named_as("a.pkl")), "may be a program")
    for name in FILES:
        yield Case(f"size-lie-{name}", manifest("files", name, "size_bytes", value=HUGE_BYTES), name)


def _of_json() -> Iterator[Case]:
    deep = b"[" * 200_000
    yield Case("huge-manifest", sparse(MANIFEST_FILE, HUGE_BYTES), "larger than 4194304 bytes", signed_again=False)
    yield Case("huge-signature", sparse(SIGNATURE_FILE, HUGE_BYTES), "larger than 4194304 bytes", signed_again=False)
    yield Case("deep-manifest", write(MANIFEST_FILE, deep), "is not valid JSON", signed_again=False)
    yield Case("deep-signature", write(SIGNATURE_FILE, deep), "is not valid JSON", signed_again=False)
    yield Case("deep-vocabulary", write("vocabulary.json", deep), "is not valid JSON: maximum recursion")
    yield Case("huge-vocabulary", sparse("vocabulary.json", (32 << 20) + 1), "text.vocabulary: vocabulary.json has")
    yield Case("huge-golden", sparse("golden.json", (4 << 20) + 1), "golden.file: golden.json has")
    yield Case("huge-template", sparse("chat_template.jinja", (1 << 20) + 1), "text.chat_template: chat_template")
    yield Case("twice", write(MANIFEST_FILE, b'{"schema": 1, "schema": 2}'), "stands twice", signed_again=False)
    yield Case("endless-number", write(MANIFEST_FILE, b"1" * 100_000), "JSON", signed_again=False)
    yield Case(
        "doubled-vocabulary", write("vocabulary.json", b'{"pre": "a", "pre": "b"}'), 'the key "pre" stands twice'
    )
    yield Case("endless-number-vocabulary", write("vocabulary.json", b"[" + b"1" * 100_000 + b"]"), "not valid JSON")
    yield Case("not-a-number-vocabulary", write("vocabulary.json", b"[NaN]"), "NaN is not JSON")
    yield Case("many-submodels", many_submodels, "submodels is [{")
    yield Case("name-for-a-terminal", manifest("submodels", 0, "name", value="\x1b[2J\nroot"), "printable characters")
    yield Case("lone-surrogate", manifest("submodels", 0, "name", value="\ud800"), "printable characters")
    yield Case("long-name", manifest("roles", "prefill", value="n" * 3_000_000), "printable characters")
    yield Case("digits", manifest("submodels", 0, "inputs", 0, "shape", value=[10**4000]), "an integer of 64 bits")
    yield Case("all-users-tokens", tokens(4, [f"w{number}" for number in range(300_000)]), "has 300261 tokens in")
    yield Case("all-special", tokens(3, [f"w{number}" for number in range(300_000)]), "has 300261 tokens in")
    yield Case("long-token", first_token("y" * 20_000_000), "a token of 20000000 characters; allowed: 1024")
    yield Case("tokens-of-numbers", vocabulary("tokens", [1, 2, 3]), "vocabulary|unreadable text files")
    yield Case("too-many-tokens", vocabulary("tokens", ["x"] * 100_000), "tokens")
    yield Case("merges-of-nothing", vocabulary("merges", [None, {}, "a"]), "unreadable text files")
    yield Case("no-vocabulary", write("vocabulary.json", b"3"), "unreadable text files")


def _of_numbers() -> Iterator[Case]:
    yield Case("kv-bytes", manifest("kv", "bytes_per_token", value=1), "kv.bytes_per_token is 1; 2 layers of")
    yield Case("layers", manifest("architecture", "layers", value=2**24), "kv.bytes_per_token is")
    yield Case(
        "too-many-layers", manifest("architecture", "layers", value=2**24 + 1), "architecture.layers is 16777217"
    )
    yield Case("lanes", manifest("kv", "lanes", value=2**40), "kv.lanes is 1099511627776; allowed: 1 to 1024")
    yield Case("no-mask", manifest("profiles", 1, "mask", value=None), "profiles[1].mask is missing")
    yield Case("infinite", manifest("architecture", "rope_base", value=1e308 * 10), "not valid JSON: Infinity")
    yield Case("prefill-decodes", manifest("roles", "decode", value=["prefill"]), "profiles|roles")
    yield Case(
        "impossible-shape",
        manifest("submodels", 0, "inputs", 0, "shape", value=[1, 2**62]),
        "submodels[0].inputs[0] (ids) has the shape",
    )
    yield Case("for-a-board", manifest("target", value="calculet"), "which is not trusted for it")
    yield Case("version", manifest("package_version", value="final"), "package_version is 'final'")


def _of_tensors() -> Iterator[Case]:
    yield Case("tensor-past-the-end", external("offset", str(1 << 40)), "of weights.bin")
    yield Case("tensor-longer", external("length", str(1 << 40)), "of weights.bin")
    yield Case("tensor-elsewhere", external("location", "/etc/passwd"), "which is no file of the package")
    yield Case("tensor-above", external("location", "../weights.bin"), "which is no file of the package")
    yield Case("shorter-weights", shorter_weights, "of weights.bin (length")
    yield Case("functions", functions, "it has functions of its own")
    yield Case("loop", loop, "an operator holds a graph of its own")
    yield Case("no-graph", write("model.onnx", b"%PDF-1.7" * 512), "is no graph that can be used")
    yield Case("empty-graph", write("model.onnx", b""), "allowed for a graph")


def _of_programs() -> Iterator[Case]:
    failing = "does not render an ordinary conversation: "
    for number, source in enumerate(
        (
            "{{ raise_exception.__globals__['__builtins__'] }}",
            "{{ ''.__class__.__mro__[1].__subclasses__() }}",
            "{{ messages.__class__.__init__.__globals__.os.system('true') }}",
            "{{ cycler.__init__.__globals__.os }}",
            "{{ self.__init__.__globals__ }}{{ self._TemplateReference__context.environment.loader.x }}",
            "{% for k in strftime_now.__globals__.items() %}{{ k }}{% endfor %}{{ strftime_now.__globals__.sys.path }}",
            "{{ '%c' | format(1) }}{{ '{0.__class__.__mro__}'.format(1) }}",
        )
    ):
        yield Case(f"globals-{number}", template(source), failing)
    yield Case(
        "endless",
        template("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"),
        f"{failing}the model's chat template took longer than 2 s",
    )
    yield Case("all-memory", template("{{ 'x' * 9999999999 }}"), failing)
    yield Case("all-output", template("{% for a in range(99999) %}{{ 'x' * 9999 }}{% endfor %}"), failing)
    yield Case("broken", template("{% for %}"), "chat template does not compile")
    yield Case("deep", template("{{ " + "(" * 20_000 + "1" + ")" * 20_000 + " }}"), "does not compile: RecursionError")
    yield Case("long-range", template("{% for a in range(10**12) %}{% endfor %}"), failing)
    yield Case(
        "doubling",
        template("{% macro f(n) %}{% if n %}{{ f(n-1) ~ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}"),
        failing,
    )
    yield Case("for-ever-inwards", template("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), failing)
    yield Case("wide-format", template("{{ '%999999999d' % 1 }}"), failing)
    yield Case("power", template("{% set a = 9 ** messages | length * 9 %}{{ (a ** a) ** (a ** a) }}"), failing)
    yield Case("power-while-compiling", template("{{ (9 ** 9) ** (9 ** 9) }}"), "does not compile in time")
    yield Case("file", template("{% include '/etc/passwd' %}"), failing)
    yield Case("surrogate", template("{{ '\\ud800' }}"), "a lone surrogate")
    yield Case("said-to-a-terminal", template("{{ raise_exception('\\x1b[2J') }}"), "\\x1b[2J")


_ONE_OF_EACH: Final = (
    "flipped-weights.bin", "unsigned", "escape-0", "kv-bytes", "tensor-past-the-end", "pipe", "functions",
)  # fmt: skip
ONE_OF_EACH: Final = tuple(case for case in cases() if case.name in _ONE_OF_EACH)
"""For tests in which every case costs a reply or more."""
