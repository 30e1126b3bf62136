"""Keys and signatures: bytes signed with a plain key, and believed only if a key that one trusts signed them.

The keys are elliptic-curve keys in PEM files, which ``openssl`` makes and shows, and every signature is an ECDSA
one over DSSE's encoding of its subject: the bytes together with what kind of thing they are, so that a signature
under one kind of thing can never be shown as one under another. Both are what the OpenSSF model-signing format
prescribes (`calculet_trio.packages.package_signature`), which is why they are not ed25519: that format knows no
such keys.

Source: SPEC section 8 step 2, 12; DSSE 1.0 "Signature Definition"; OpenSSF model-signing 1.0.
"""

from __future__ import annotations

import base64
import binascii
import os
import stat
import tempfile
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final

import attrs
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from calculet_trio.errors import ConfigurationRefused, PackageError
from calculet_trio.regular_file import open_unwaited

LOCAL_KEY_FILE: Final = "local.pem"
"""This machine's own key, in the keys directory; made on first use."""
LOCAL_PUBLIC_FILE: Final = "local.pub.pem"
KEY_FILE_BYTES_MAX: Final = 16 * 1024
"""A PEM file of the largest of the curves has 800 bytes."""
SIGNATURE_CHARACTERS_MAX: Final = 1024
KEY_HINT: Final = "`openssl ecparam -name prime256v1 -genkey -noout -out key.pem` makes a key that can be used"

_HASHES: Final[Mapping[str, hashes.HashAlgorithm]] = {
    "secp256r1": hashes.SHA256(),
    "secp384r1": hashes.SHA384(),
    "secp521r1": hashes.SHA512(),
}
"""The curves that the format knows, each with the hash that goes with it."""


class SignatureRefused(PackageError):
    """A signature is missing or malformed, is not of what it lies beside, or of no key that is trusted."""


@attrs.frozen(kw_only=True)
class Signature:
    """A signature that lies beside what it signs.

    Args:
        key_id: `PublicKey.key_id` of the key that made it; says which key to try, and proves nothing.
        value: base64 of the ECDSA signature.
    """

    key_id: str
    value: str


@attrs.frozen
class PublicKey:
    """A key that signatures are checked with."""

    _key: ec.EllipticCurvePublicKey = attrs.field(repr=False, eq=False)
    key_id: str = attrs.field(init=False)
    """The sha256 of its PEM text, in hexadecimal; ``sha256sum`` of the file shows the same."""

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "key_id", sha256(self.pem).hexdigest())

    @property
    def pem(self) -> bytes:
        """It, as a file holds it."""
        return self._key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    @classmethod
    def load(cls, path: Path) -> PublicKey:
        """The public key in the PEM file ``path``.

        Raises:
            ConfigurationRefused: it cannot be read, or holds no key of this kind.
        """
        data = _read_key_file(path)
        try:
            key = load_pem_public_key(data)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise ConfigurationRefused(f"{path} holds no public key in PEM form", hint=KEY_HINT) from None
        if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name not in _HASHES:
            raise _unsupported(path)
        return cls(key)

    def has_signed(self, payload: bytes, signature: Signature, *, kind: str) -> bool:
        """Whether ``signature`` is this key's under ``payload`` as a ``kind``."""
        if len(signature.value) > SIGNATURE_CHARACTERS_MAX:
            return False
        try:
            value = base64.b64decode(signature.value, validate=True)
            self._key.verify(value, _subject(payload, kind), ec.ECDSA(_HASHES[self._key.curve.name]))
        except (InvalidSignature, binascii.Error, ValueError):
            return False
        return True


@attrs.frozen
class SigningKey:
    """A key that signs; its file is readable by its owner alone."""

    _key: ec.EllipticCurvePrivateKey = attrs.field(repr=False, eq=False)

    @property
    def public(self) -> PublicKey:
        """The key that checks what this one signs."""
        return PublicKey(self._key.public_key())

    @classmethod
    def load(cls, path: Path) -> SigningKey:
        """The private key in the PEM file ``path``.

        Raises:
            ConfigurationRefused: it cannot be read, others may read it, or it holds no key of this kind.
        """
        data = _read_key_file(path, private=True)
        try:
            key = load_pem_private_key(data, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise ConfigurationRefused(
                f"{path} holds no private key in PEM form without a passphrase", hint=KEY_HINT
            ) from None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name not in _HASHES:
            raise _unsupported(path)
        return cls(key)

    @classmethod
    def local(cls, keys: Path) -> SigningKey:
        """This machine's own key in the directory ``keys``, made if there is none yet.

        Raises:
            ConfigurationRefused: it cannot be made, or what is there cannot be used.
        """
        path = keys / LOCAL_KEY_FILE
        try:
            if not path.exists():
                _make_local(keys)
        except OSError as error:
            raise ConfigurationRefused(f"no signing key can be made in {keys}: {error.strerror}") from error
        return cls.load(path)

    def sign(self, payload: bytes, *, kind: str) -> Signature:
        """Sign ``payload`` as a ``kind``, a media type such as ``application/vnd.in-toto+json``."""
        value = self._key.sign(_subject(payload, kind), ec.ECDSA(_HASHES[self._key.curve.name]))
        return Signature(key_id=self.public.key_id, value=base64.b64encode(value).decode())


def signer_of(payload: bytes, signature: Signature, *, kind: str, trusted: Iterable[PublicKey]) -> PublicKey:
    """The trusted key that signed ``payload`` as a ``kind``.

    Raises:
        SignatureRefused: by its key id none of ``trusted`` made it; or one should have, and these are other bytes.
    """
    key = next((each for each in trusted if each.key_id == signature.key_id), None)
    if key is None:
        raise SignatureRefused(
            f"it is signed by the key {signature.key_id[:16]}…, which is not trusted for it",
            hint="name the public key's file under trusted_keys in the service's configuration, if you trust its owner",
        )
    if not key.has_signed(payload, signature, kind=kind):
        raise SignatureRefused(f"what the key {key.key_id[:16]}… signed was something else")
    return key


def local_public_key(keys: Path) -> PublicKey | None:
    """This machine's own public key; None while it has none. Nothing is made.

    Raises:
        ConfigurationRefused: it is there and cannot be used.
    """
    path = keys / LOCAL_KEY_FILE
    return SigningKey.load(path).public if path.exists() else None


def _subject(payload: bytes, kind: str) -> bytes:
    """DSSE's pre-authentication encoding."""
    return b"DSSEv1 %d %s %d %s" % (len(kind.encode()), kind.encode(), len(payload), payload)


def _make_local(keys: Path) -> None:
    """Both files, whole; of two that make one at the same time, the first is kept by both."""
    keys.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    descriptor, name = tempfile.mkstemp(prefix=f".{LOCAL_KEY_FILE}.", dir=keys)  # for its owner alone, by contract
    scratch = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(pem)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(scratch, keys / LOCAL_KEY_FILE)
        except FileExistsError:
            return
    finally:
        scratch.unlink(missing_ok=True)
    (keys / LOCAL_PUBLIC_FILE).write_bytes(PublicKey(key.public_key()).pem)


def _read_key_file(path: Path, *, private: bool = False) -> bytes:
    try:
        with open_unwaited(path) as file:
            if private and (mode := stat.S_IMODE(os.fstat(file.fileno()).st_mode)) & 0o077:
                raise ConfigurationRefused(
                    f"the key {path} has mode {mode:04o}: others may read it", hint=f"chmod 600 {path}"
                )
            data = file.read(KEY_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigurationRefused(f"the key {path} cannot be read: {error.strerror}", hint=KEY_HINT) from error
    if len(data) > KEY_FILE_BYTES_MAX:
        raise ConfigurationRefused(f"{path} is larger than {KEY_FILE_BYTES_MAX} bytes, which no key is", hint=KEY_HINT)
    return data


def _unsupported(path: Path) -> ConfigurationRefused:
    return ConfigurationRefused(f"the key in {path} is of another kind; allowed: {', '.join(_HASHES)}", hint=KEY_HINT)
