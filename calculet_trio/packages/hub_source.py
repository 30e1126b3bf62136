"""A model file from a Hugging Face hub: ``hf:OWNER/REPO/PATH/FILE.gguf[@REVISION]``.

`huggingface_hub` (the ``hub`` extra) knows the addresses, the tokens and the transfer; where the bytes go is
decided here, because a transfer that was interrupted must go on where it stopped, in the next process too, and
a file counts as there only when its digest is the hub's. ``HF_ENDPOINT`` chooses another hub.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Final

import attrs

from calculet_trio.errors import PackageError, Unavailable
from calculet_trio.packages.build_options import Progress
from calculet_trio.packages.digests import CHUNK_BYTES, sha256_of

REFERENCE: Final = re.compile(r"hf:([\w.-]+/[\w.-]+)/([^@]+?)(?:@([\w./-]+))?", re.ASCII)
REFERENCE_RULE: Final = "hf:OWNER/REPO/FILE.gguf, with @REVISION at the end if it is not the main one"
RESERVE_BYTES: Final = 100_000_000
"""Left free on the disk beside the file itself."""
INSTALL_HINT: Final = "pip install 'calculet-trio[hub]'"
AGAIN_HINT: Final = "run the same command again: it goes on where this one stopped"


@attrs.frozen
class HubFile:
    """One file of one revision of one repository.

    Args:
        repository: ``OWNER/REPO``.
        path: the file's path in it.
        revision: a branch, tag or commit.
    """

    repository: str
    path: str
    revision: str

    @classmethod
    def parse(cls, reference: str) -> HubFile:
        """Raises `PackageError`, naming the form, where ``reference`` has another."""
        match = REFERENCE.fullmatch(reference)
        if match is None or not match[2].endswith(".gguf") or ".." in PurePosixPath(match[2]).parts:
            raise PackageError(
                f"{reference[:120]!r} names no model file of a hub", hint=f"the form is {REFERENCE_RULE}"
            )
        return cls(match[1], match[2], match[3] or "main")

    def __str__(self) -> str:
        return f"hf:{self.repository}/{self.path}@{self.revision}"


def fetch_from_hub(file: HubFile, downloads: Path, report: Callable[[Progress], None]) -> Path:
    """The file, below ``downloads``: the one that is there, or transferred; its digest is the hub's.

    Raises:
        PackageError: no such file, no right to it, a wrong digest, a full disk, or the extra is not installed.
        Unavailable: the hub cannot be reached or the transfer broke; what came is kept for the next attempt.
    """
    hub = _import_hub()
    endpoint = os.environ.get("HF_ENDPOINT") or None
    url = hub.hf_hub_url(file.repository, file.path, revision=file.revision, endpoint=endpoint)
    metadata = _asked(file, lambda: hub.get_hf_file_metadata(url, endpoint=endpoint))
    etag, size_bytes = metadata.etag or "", metadata.size
    if size_bytes is None or not re.fullmatch(r"[0-9a-f]{64}|[0-9a-f]{40}", etag):
        raise PackageError(
            f"the hub tells no digest or size of {file}, so it cannot be checked",
            hint="download it yourself and pull it by its path",
        )
    target = downloads / "hub" / file.repository.replace("/", "--") / etag[:16] / Path(file.path).name
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_name(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Unavailable(f"{file} is being downloaded by another command") from None
        if not (target.exists() and _digest(target, etag) == etag):
            part = target.with_name(f"{target.name}.part")
            _transfer(hub, file, url, part, size_bytes, report)
            _accept(file, part, target, etag)
    return target


def _transfer(
    hub: Any, file: HubFile, url: str, part: Path, size_bytes: int, report: Callable[[Progress], None]
) -> None:
    have_bytes = part.stat().st_size if part.exists() else 0
    if have_bytes > size_bytes:
        part.unlink()
        have_bytes = 0
    if shutil.disk_usage(part.parent).free < size_bytes - have_bytes + RESERVE_BYTES:
        raise PackageError(
            f"{file} needs {(size_bytes - have_bytes) / 1e9:.2f} GB, and {part.parent} has no room for it",
            hint="make room there, or set XDG_CACHE_HOME to a larger disk",
        )
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers, disable_progress_bars  # type: ignore[attr-defined]

    disable_progress_bars()  # ours is shown by the caller
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # its retries are its own matter
    with part.open("r+b" if have_bytes else "wb") as raw:
        raw.seek(have_bytes)
        told = _ToldFile(raw, lambda: report(Progress("download the model", raw.tell(), size_bytes)))
        headers = build_hf_headers()
        _asked(
            file,
            lambda: http_get(url, told, resume_size=have_bytes, headers=headers, expected_size=size_bytes),  # type: ignore[arg-type]
        )


class _ToldFile:
    """A file that says each time something was written to it."""

    def __init__(self, raw: BinaryIO, told: Callable[[], None]) -> None:
        self._raw = raw
        self._told = told

    def write(self, chunk: bytes) -> int:
        written = self._raw.write(chunk)
        self._told()
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)


def _accept(file: HubFile, part: Path, target: Path, etag: str) -> None:
    actual = _digest(part, etag)
    if actual != etag:
        part.unlink()
        raise PackageError(f"{file} came with the digest {actual}; the hub says {etag}", hint="pull it again")
    part.replace(target)


def _digest(path: Path, like: str) -> str:
    """The digest that a hub calls ``etag``: sha256 of a large file, git's blob id of a small one."""
    if len(like) == 64:
        return sha256_of(path)
    blob = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            blob.update(chunk)
    return blob.hexdigest()


def _import_hub() -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise PackageError(
            "`hf:` needs the package huggingface_hub, which is not installed", hint=INSTALL_HINT
        ) from None
    return huggingface_hub


def _asked(file: HubFile, ask: Callable[[], Any]) -> Any:
    """What the hub answers to ``ask``, its errors turned into a sentence of ours."""
    from huggingface_hub import errors

    try:
        return ask()
    except errors.GatedRepoError:
        raise PackageError(
            f"{file} is gated", hint="accept its terms on the hub's page, then `hf auth login` or set HF_TOKEN"
        ) from None
    except errors.RepositoryNotFoundError:
        raise PackageError(
            f"the hub has no repository {file.repository}, or only for those who log in",
            hint="look at its spelling; for a private one set HF_TOKEN",
        ) from None
    except errors.RevisionNotFoundError:
        raise PackageError(f"{file.repository} has no revision {file.revision!r}") from None
    except errors.EntryNotFoundError:
        raise PackageError(f"{file.repository} has no file {file.path!r} in {file.revision!r}") from None
    except Exception as error:  # the hub's HTTP library, and so its errors, differ between its major versions
        raise Unavailable(
            f"{file} could not be fetched: {type(error).__name__}: {str(error)[:200]}", hint=AGAIN_HINT
        ) from error
