"""A package's signature: of its files as they are now, by a key that is trusted for its kind; else refused, and why."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from calculet_trio.packages.manifest import SIGNATURE_FILE, Manifest
from calculet_trio.packages.package_signature import package_signer, sign_package
from calculet_trio.packages.signing import PublicKey, SignatureRefused, SigningKey
from calculet_trio.packages.store import Store
from calculet_trio.packages.trust import Trust
from tests.packages.tiny_package import write_package

REAL = Path(__file__).parent / "model_signing"
"""Signed by the OpenSSF library; its README says how."""


@pytest.fixture
def key(tmp_path: Path) -> SigningKey:
    return SigningKey.local(tmp_path / "keys")


@pytest.fixture
def package(tmp_path: Path, key: SigningKey) -> Path:
    """A signed package."""
    write_package(tmp_path / "tiny")
    sign_package(tmp_path / "tiny", key)
    return tmp_path / "tiny"


def signer(package: Path, trust: Trust) -> PublicKey:
    return package_signer(package, Manifest.load(package), trust)


def test_a_signed_package_says_by_whom_and_is_whole(package: Path, key: SigningKey, tmp_path: Path) -> None:
    assert signer(package, Trust(local=key.public)) == key.public
    Store(tmp_path / "store").check(package, thorough=True)


def test_what_the_openssf_library_signed_is_read() -> None:
    theirs = PublicKey.load(REAL / "key.pub.pem")
    assert signer(REAL / "tiny", Trust(named=(theirs,))) == theirs


def test_a_package_keeps_its_signature_wherever_it_is(package: Path, key: SigningKey, tmp_path: Path) -> None:
    package.rename(tmp_path / "elsewhere")
    assert signer(tmp_path / "elsewhere", Trust(local=key.public)) == key.public


def test_an_unsigned_package_is_refused_with_what_to_do(package: Path, key: SigningKey) -> None:
    (package / SIGNATURE_FILE).unlink()
    with pytest.raises(SignatureRefused, match="'tiny' is not signed") as caught:
        signer(package, Trust(local=key.public))
    assert "package sign" in (caught.value.hint or "")


def test_a_foreign_key_is_refused_with_its_id(package: Path, key: SigningKey, tmp_path: Path) -> None:
    other = SigningKey.local(tmp_path / "others").public
    with pytest.raises(SignatureRefused, match=f"signed by the key {key.public.key_id[:16]}…, which is not trusted"):
        signer(package, Trust(local=other))
    with pytest.raises(SignatureRefused, match="not trusted"):
        signer(package, Trust())


def test_the_local_key_counts_for_no_board(package: Path, key: SigningKey) -> None:
    """CLI.md: a board's packages need a key that the configuration names."""
    attrs.evolve(Manifest.load(package), target="calculet").save(package)
    sign_package(package, key)
    with pytest.raises(SignatureRefused, match="not trusted"):
        signer(package, Trust(local=key.public))
    assert signer(package, Trust(named=(key.public,))) == key.public


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda manifest: attrs.evolve(manifest, package_version="2"), r"manifest\.json was changed after it was"),
        (
            lambda manifest: attrs.evolve(
                manifest,
                files=manifest.files | {"golden.json": attrs.evolve(manifest.files["golden.json"], sha256="1" * 64)},
            ),
            r"golden\.json was changed after it was signed",
        ),
        (
            lambda manifest: attrs.evolve(manifest, files=manifest.files | {"a.bin": manifest.files["golden.json"]}),
            r"a\.bin is not what was signed",
        ),
    ],
)
def test_a_manifest_that_changed_since_is_refused(
    package: Path, key: SigningKey, change: Callable[[Manifest], Manifest], reason: str
) -> None:
    change(Manifest.load(package)).save(package)
    with pytest.raises(SignatureRefused, match=reason):
        signer(package, Trust(local=key.public))


def replaced(path: Path, *keys: str | int, value: Any) -> None:
    """Put another value at one place of the signature's JSON."""
    whole = place = json.loads(path.read_bytes())
    for each in keys[:-1]:
        place = place[each]
    place[keys[-1]] = value
    path.write_text(json.dumps(whole))


ENVELOPE = "dsseEnvelope"


@pytest.mark.parametrize(
    ("keys", "value", "reason"),
    [
        (("mediaType",), "text/plain", "no signature in the model-signing format"),
        ((ENVELOPE,), None, "no signature in"),
        ((ENVELOPE, "payload"), "!", "no signature in"),
        ((ENVELOPE, "payload"), base64.b64encode(b"{}").decode(), "signed was something else"),
        ((ENVELOPE, "payloadType"), "text/plain", "no signature in"),
        ((ENVELOPE, "signatures"), [], "no signature in"),
        ((ENVELOPE, "signatures", 0, "sig"), 3, "no signature in"),
        ((ENVELOPE, "signatures", 0, "sig"), "AAAA", "signed was something else"),
        (("verificationMaterial", "publicKey", "hint"), "0" * 64, "not trusted"),
        (("verificationMaterial", "publicKey", "hint"), ["x"], "no signature in"),
    ],
)
def test_a_signature_that_was_tampered_with_is_refused(
    package: Path, key: SigningKey, keys: tuple[str | int, ...], value: Any, reason: str
) -> None:
    replaced(package / SIGNATURE_FILE, *keys, value=value)
    with pytest.raises(SignatureRefused, match=reason):
        signer(package, Trust(local=key.public))


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b"3", b"[" * 100_000, b" " * 5_000_000, b'{"a":1,"a":1}'])
def test_nonsense_is_no_signature(package: Path, key: SigningKey, content: bytes) -> None:
    (package / SIGNATURE_FILE).write_bytes(content)
    with pytest.raises(SignatureRefused):
        signer(package, Trust(local=key.public))


@pytest.mark.parametrize(
    "statement",
    [
        {},
        {"_type": "https://in-toto.io/Statement/v1", "predicateType": "https://slsa.dev/provenance/v1"},
        {
            "_type": "https://in-toto.io/Statement/v1",
            "predicateType": "https://model_signing/signature/v1.0",
            "predicate": {"resources": [{"name": "manifest.json", "algorithm": "md5", "digest": ""}]},
        },
    ],
)
def test_another_statement_of_a_trusted_key_is_no_signature_of_a_package(
    package: Path, key: SigningKey, statement: dict[str, Any]
) -> None:
    payload = json.dumps(statement).encode()
    signature = key.sign(payload, kind="application/vnd.in-toto+json")
    replaced(package / SIGNATURE_FILE, ENVELOPE, "payload", value=base64.b64encode(payload).decode())
    replaced(package / SIGNATURE_FILE, ENVELOPE, "signatures", 0, "sig", value=signature.value)
    with pytest.raises(SignatureRefused, match="no signature in the model-signing format"):
        signer(package, Trust(local=key.public))


def test_a_signature_of_another_package_is_refused(package: Path, key: SigningKey, tmp_path: Path) -> None:
    write_package(tmp_path / "other", "other")
    sign_package(tmp_path / "other", key)
    shutil.copy(tmp_path / "other" / SIGNATURE_FILE, package / SIGNATURE_FILE)
    with pytest.raises(SignatureRefused, match="changed after it was signed"):
        signer(package, Trust(local=key.public))


def test_trust_reads_the_keys_that_are_named(tmp_path: Path, key: SigningKey) -> None:
    trust = Trust.load(tmp_path / "keys", [REAL / "key.pub.pem"])
    assert (trust.local, len(trust.named)) == (key.public, 1)
    assert [len(trust.keys_for(kind)) for kind in ("cpu", "emulated", "calculet")] == [2, 2, 1]
    assert trust.describe(key.public).startswith("this machine's key")
    assert trust.describe(trust.named[0]).startswith("a trusted key")
