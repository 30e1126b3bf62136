"""Keys and signatures: what a trusted key signed is believed, for what it was signed as, and nothing else is."""

from __future__ import annotations

import shutil
import stat
import subprocess
import threading
from pathlib import Path

import attrs
import pytest

from calculet_trio.errors import ConfigurationRefused
from calculet_trio.packages.signing import (
    LOCAL_KEY_FILE,
    LOCAL_PUBLIC_FILE,
    PublicKey,
    Signature,
    SignatureRefused,
    SigningKey,
    local_public_key,
    signer_of,
)

KIND = "application/x-test"
WAIT_S = 60


@pytest.fixture
def key(tmp_path: Path) -> SigningKey:
    return SigningKey.local(tmp_path / "keys")


def openssl(*arguments: str) -> None:
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("needs openssl")
    subprocess.run([program, *arguments], check=True, capture_output=True, timeout=WAIT_S)


def test_what_a_trusted_key_signed_is_believed(key: SigningKey, tmp_path: Path) -> None:
    signature = key.sign(b"weights", kind=KIND)
    trusted = [SigningKey.local(tmp_path / "others").public, key.public]
    assert signer_of(b"weights", signature, kind=KIND, trusted=trusted).key_id == key.public.key_id


@pytest.mark.parametrize(("payload", "kind"), [(b"weightz", KIND), (b"weights", "application/x-other"), (b"", KIND)])
def test_what_it_signed_is_not_believed_of_anything_else(key: SigningKey, payload: bytes, kind: str) -> None:
    signature = key.sign(b"weights", kind=KIND)
    with pytest.raises(SignatureRefused, match="was something else"):
        signer_of(payload, signature, kind=kind, trusted=[key.public])


def test_bytes_do_not_slide_into_the_kind(key: SigningKey) -> None:
    assert not key.public.has_signed(b"b c", key.sign(b"c", kind="a b"), kind="a")


def test_a_foreign_key_is_refused_by_name(key: SigningKey, tmp_path: Path) -> None:
    foreign = SigningKey.local(tmp_path / "foreign")
    with pytest.raises(SignatureRefused, match=foreign.public.key_id[:16]):
        signer_of(b"x", foreign.sign(b"x", kind=KIND), kind=KIND, trusted=[key.public])
    lying = attrs.evolve(foreign.sign(b"x", kind=KIND), key_id=key.public.key_id)
    with pytest.raises(SignatureRefused, match="something else"):
        signer_of(b"x", lying, kind=KIND, trusted=[key.public])


@pytest.mark.parametrize("value", ["", "!", "AAAA", "MAYCAQECAQE=", "A" * 10_000_000, "é"])
def test_nonsense_is_no_signature(key: SigningKey, value: str) -> None:
    assert not key.public.has_signed(b"x", Signature(key_id=key.public.key_id, value=value), kind=KIND)


# ---- the local key --------------------------------------------------------------------------------------


def test_the_local_key_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    assert local_public_key(tmp_path) is None
    first = SigningKey.local(tmp_path / "keys")
    assert SigningKey.local(tmp_path / "keys").public == first.public == local_public_key(tmp_path / "keys")
    assert stat.S_IMODE((tmp_path / "keys" / LOCAL_KEY_FILE).stat().st_mode) == 0o600
    assert PublicKey.load(tmp_path / "keys" / LOCAL_PUBLIC_FILE) == first.public
    assert sorted(path.name for path in (tmp_path / "keys").iterdir()) == [LOCAL_KEY_FILE, LOCAL_PUBLIC_FILE]


def test_of_many_that_make_it_at_once_all_have_the_same(tmp_path: Path) -> None:
    barrier = threading.Barrier(4)
    found: list[str] = []

    def make() -> None:
        barrier.wait(WAIT_S)
        found.append(SigningKey.local(tmp_path / "keys").public.key_id)

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert len(found) == 4
    assert len(set(found)) == 1


def test_a_key_that_others_may_read_is_not_used(key: SigningKey, tmp_path: Path) -> None:
    del key
    (tmp_path / "keys" / LOCAL_KEY_FILE).chmod(0o640)
    with pytest.raises(ConfigurationRefused, match="mode 0640: others may read it") as caught:
        SigningKey.local(tmp_path / "keys")
    assert "chmod 600" in (caught.value.hint or "")


def test_a_directory_where_none_can_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationRefused, match="no signing key can be made"):
        SigningKey.local(tmp_path / "file" / "keys")


# ---- keys of elsewhere ----------------------------------------------------------------------------------


@pytest.mark.parametrize("curve", ["prime256v1", "secp384r1", "secp521r1"])
def test_keys_of_openssl_can_be_used(tmp_path: Path, curve: str) -> None:
    private, public = tmp_path / "key.pem", tmp_path / "key.pub.pem"
    openssl("ecparam", "-name", curve, "-genkey", "-noout", "-out", str(private))
    openssl("ec", "-in", str(private), "-pubout", "-out", str(public))
    private.chmod(0o600)
    signature = SigningKey.load(private).sign(b"x", kind=KIND)
    assert PublicKey.load(public).has_signed(b"x", signature, kind=KIND)


@pytest.mark.parametrize(
    "command",
    [
        ("genrsa", "2048"),
        ("genpkey", "-algorithm", "ed25519"),
        ("ecparam", "-name", "secp256k1", "-genkey", "-noout"),
    ],
)
def test_keys_of_another_kind_are_refused_with_those_allowed(tmp_path: Path, command: tuple[str, ...]) -> None:
    private, public = tmp_path / "key.pem", tmp_path / "key.pub.pem"
    name, *arguments = command
    openssl(name, "-out", str(private), *arguments)
    openssl("pkey", "-in", str(private), "-pubout", "-out", str(public))
    private.chmod(0o600)
    for load, path in ((SigningKey.load, private), (PublicKey.load, public)):
        with pytest.raises(ConfigurationRefused, match="of another kind; allowed: secp256r1"):
            load(path)


@pytest.mark.parametrize("content", [b"", b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", b"\xff" * 9])
def test_files_that_hold_no_key_are_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key.pem"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigurationRefused, match=r"key\.pem holds no public key"):
        PublicKey.load(path)
    with pytest.raises(ConfigurationRefused, match=r"key\.pem holds no private key"):
        SigningKey.load(path)


def test_files_that_are_no_key_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationRefused, match="cannot be read"):
        PublicKey.load(tmp_path / "missing.pem")
    with pytest.raises(ConfigurationRefused, match="larger than 16384 bytes"):
        PublicKey.load(Path("/dev/zero"))
