"""Ways to change a package, as a stranger may, or somebody who is trusted and careless."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from calculet_trio.packages.manifest import MANIFEST_FILE

Change = Callable[[Path], None]


def flip(name: str, at: float = 0.5) -> Change:
    """Another byte somewhere in the file."""

    def change(package: Path) -> None:
        content = bytearray((package / name).read_bytes())
        content[int(len(content) * at)] ^= 0x20
        (package / name).write_bytes(bytes(content))

    return change


def write(name: str, content: bytes) -> Change:
    def change(package: Path) -> None:
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_bytes(content)

    return change


def sparse(name: str, size_bytes: int) -> Change:
    def change(package: Path) -> None:
        with (package / name).open("ab") as file:
            file.truncate(size_bytes)

    return change


def manifest(*keys: str | int, value: Any) -> Change:
    """Another value at one place of the manifest."""

    def change(package: Path) -> None:
        whole = place = json.loads((package / MANIFEST_FILE).read_bytes())
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = value
        (package / MANIFEST_FILE).write_text(json.dumps(whole))

    return change


def named_as(path: str) -> Change:
    """The manifest lists a file of that name."""

    def change(package: Path) -> None:
        whole = json.loads((package / MANIFEST_FILE).read_bytes())
        whole["files"][path] = {"sha256": hashlib.sha256(b"").hexdigest(), "size_bytes": 0}
        (package / MANIFEST_FILE).write_text(json.dumps(whole))

    return change


def both(first: Change, second: Change) -> Change:
    def change(package: Path) -> None:
        first(package)
        second(package)

    return change


def link(name: str, target: str | None = None) -> Change:
    """The file is a link, to itself elsewhere or to what it has no business with."""

    def change(package: Path) -> None:
        elsewhere = package.with_name(f"{package.name}.elsewhere")
        (package / name).rename(elsewhere)
        (package / name).symlink_to(target or elsewhere)

    return change


def linked_directory(package: Path) -> None:
    (package / "parts").symlink_to("/etc")


def pipe(name: str) -> Change:
    def change(package: Path) -> None:
        (package / name).unlink()
        os.mkfifo(package / name)

    return change


def many_files(package: Path) -> None:
    for number in range(5_000):
        (package / f"{number}.bin").touch()


def external(key: str, value: str) -> Change:
    """Another place for the weights of the graph's first tensor that lies outside of it."""

    def change(package: Path) -> None:
        import onnx

        model = onnx.load(str(package / "model.onnx"), load_external_data=False)
        tensor = next(each for each in model.graph.initializer if each.data_location == onnx.TensorProto.EXTERNAL)
        entry = next(each for each in tensor.external_data if each.key == key)
        entry.value = value
        (package / "model.onnx").write_bytes(model.SerializeToString())

    return change


def shorter_weights(package: Path) -> None:
    content = (package / "weights.bin").read_bytes()
    (package / "weights.bin").write_bytes(content[: len(content) // 2])


def hard_link(package: Path) -> None:
    os.link(package / "golden.json", package / "extra.json")


def unix_socket(package: Path) -> None:
    (package / "golden.json").unlink()
    with socket.socket(socket.AF_UNIX) as listening, working_in(package):  # a socket's path is short
        listening.bind("golden.json")


@contextmanager
def working_in(directory: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(directory)
    try:
        yield
    finally:
        os.chdir(before)


def many_submodels(package: Path) -> None:
    whole = json.loads((package / MANIFEST_FILE).read_bytes())
    bare = {**whole["submodels"][1], "inputs": [], "outputs": []}
    whole["submodels"] += [{**bare, "name": f"d{number}"} for number in range(12_000)]
    (package / MANIFEST_FILE).write_text(json.dumps(whole))


def functions(package: Path) -> None:
    """Each calls the next one twice: a billion operators, were they written out."""
    import onnx

    model = onnx.load(str(package / "model.onnx"), load_external_data=False)
    for number in range(30):
        calls = [onnx.NodeProto(op_type=f"F{number + 1}", domain="f", input=["x"], output=["y"])] * 2
        model.functions.append(onnx.FunctionProto(name=f"F{number}", domain="f", input=["x"], output=["y"], node=calls))
    (package / "model.onnx").write_bytes(model.SerializeToString())


def loop(package: Path) -> None:
    import onnx

    model = onnx.load(str(package / "model.onnx"), load_external_data=False)
    body = onnx.AttributeProto(name="body", type=onnx.AttributeProto.GRAPH, g=onnx.GraphProto(name="for ever"))
    model.graph.node.append(onnx.NodeProto(op_type="Loop", attribute=[body]))
    (package / "model.onnx").write_bytes(model.SerializeToString())


def tokens(kind: int, more: list[str]) -> Change:
    """More tokens of one kind, as a GGUF counts kinds."""

    def change(package: Path) -> None:
        whole = json.loads((package / "vocabulary.json").read_bytes())
        whole["tokens"] += more
        whole["token_types"] += [kind] * len(more)
        (package / "vocabulary.json").write_text(json.dumps(whole))

    return change


def first_token(text: str) -> Change:
    """Another text for the vocabulary's first token."""

    def change(package: Path) -> None:
        whole = json.loads((package / "vocabulary.json").read_bytes())
        whole["tokens"][0] = text
        (package / "vocabulary.json").write_text(json.dumps(whole))

    return change


def vocabulary(key: str, value: Any) -> Change:
    def change(package: Path) -> None:
        whole = json.loads((package / "vocabulary.json").read_bytes())
        whole[key] = value
        (package / "vocabulary.json").write_text(json.dumps(whole))

    return change


def template(source: str) -> Change:
    return write("chat_template.jinja", source.encode())
