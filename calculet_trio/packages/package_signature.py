"""The signature of a package: ``model.sig``, in the OpenSSF model-signing format, with a plain key.

That format verifies offline with a plain elliptic-curve key, and says no more than is needed: a DSSE envelope around
a statement that lists every file with its sha256. Its own library brings some thirty packages (sigstore, tuf, pydantic,
protobuf …: ``pip install --dry-run model-signing`` lists them), for ways of signing that need a network; so the
format is read and written here, over `cryptography` alone. Whoever has that library can check a package of ours, and
sign one for us::

    model_signing verify key PACKAGE --signature PACKAGE/model.sig --public_key key.pub.pem

What is signed is ``manifest.json`` and every file that it names, by their hashes. To check a signature is therefore to
hash one small file; whether the others are what the manifest says is `calculet_trio.packages.verification`'s question.

Source: SPEC section 8 step 2; OpenSSF model-signing 1.0; in-toto Statement v1; DSSE 1.0; Sigstore bundle 0.3.
"""

from __future__ import annotations

import base64
import binascii
import json
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from calculet_trio.errors import PackageError
from calculet_trio.packages import manifest_json
from calculet_trio.packages.digests import sha256_of
from calculet_trio.packages.manifest import MANIFEST_FILE, SIGNATURE_FILE, Manifest
from calculet_trio.packages.signing import PublicKey, Signature, SignatureRefused, SigningKey, signer_of
from calculet_trio.packages.trust import Trust

PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Final = "https://model_signing/signature/v1.0"
BUNDLE_TYPE: Final = "application/vnd.dev.sigstore.bundle.v0.3+json"
SERIALIZATION: Final = {
    "method": "files",
    "hash_type": "sha256",
    "allow_symlinks": False,
    "ignore_paths": [SIGNATURE_FILE],
}
SIGN_HINT: Final = "`calculet-trio package sign NAME` signs it with this machine's key, if you trust where it is from"


def sign_package(directory: Path, key: SigningKey) -> None:
    """Sign the package in ``directory``; a signature that was there is replaced.

    Its files must have been checked before: it is the manifest's word for their hashes that is signed.

    Raises:
        PackageError: it has no manifest that can be read.
    """
    digests = _digests(directory, Manifest.load(directory))
    resources = [{"name": name, "algorithm": "sha256", "digest": digests[name]} for name in sorted(digests)]
    root = sha256(b"".join(bytes.fromhex(digests[name]) for name in sorted(digests))).hexdigest()
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": directory.resolve().name, "digest": {"sha256": root}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": {"serialization": SERIALIZATION, "resources": resources},
    }
    payload = json.dumps(statement, separators=(",", ":")).encode()
    signature = key.sign(payload, kind=PAYLOAD_TYPE)
    bundle = {
        "mediaType": BUNDLE_TYPE,
        "verificationMaterial": {"publicKey": {"hint": signature.key_id}, "tlogEntries": []},
        "dsseEnvelope": {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": PAYLOAD_TYPE,
            "signatures": [{"sig": signature.value, "keyid": ""}],
        },
    }
    manifest_json.write(bundle, directory / SIGNATURE_FILE)


def package_signer(directory: Path, manifest: Manifest, trust: Trust) -> PublicKey:
    """The trusted key that signed a package as it is now, by its manifest.

    Args:
        directory: the package.
        manifest: its manifest.
        trust: whom to believe.

    Raises:
        SignatureRefused: there is no signature, it is malformed, of other files, or of a key that is not trusted
            for this kind of package.
    """
    if not (directory / SIGNATURE_FILE).is_file():
        raise SignatureRefused(f"the package {manifest.name!r} is not signed", hint=SIGN_HINT)
    try:
        payload, signature = _opened(manifest_json.read(directory / SIGNATURE_FILE))
        signer = signer_of(payload, signature, kind=PAYLOAD_TYPE, trusted=trust.keys_for(manifest.target))
        signed = _resources(json.loads(payload))
    except SignatureRefused as error:
        raise SignatureRefused(f"the package {manifest.name!r}: {error.message}", hint=error.hint) from None
    except PackageError as error:
        raise SignatureRefused(error.message, hint=SIGN_HINT) from None
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError):
        raise SignatureRefused(
            f"the package {manifest.name!r}: {SIGNATURE_FILE} is no signature in the model-signing format",
            hint=SIGN_HINT,
        ) from None
    there = _digests(directory, manifest)
    for name in sorted({*signed, *there}):
        if signed.get(name) != there.get(name):
            was = "was changed after it was" if name in signed and name in there else "is not what was"
            raise SignatureRefused(f"the package {manifest.name!r}: {name} {was} signed", hint=SIGN_HINT)
    return signer


def _digests(directory: Path, manifest: Manifest) -> dict[str, str]:
    """Every file of the package with its sha256, as manifest and manifest's own bytes have it."""
    records = {name: record.sha256 for name, record in manifest.files.items()}
    return {MANIFEST_FILE: sha256_of(directory / MANIFEST_FILE)} | records


def _opened(bundle: Any) -> tuple[bytes, Signature]:
    """The payload of a bundle and the signature under it, of which nothing is believed yet."""
    envelope = bundle["dsseEnvelope"]
    [signature] = envelope["signatures"]
    hint, value = bundle["verificationMaterial"]["publicKey"]["hint"], signature["sig"]
    kinds = (bundle["mediaType"], envelope["payloadType"])
    if kinds != (BUNDLE_TYPE, PAYLOAD_TYPE) or not (isinstance(hint, str) and isinstance(value, str)):
        raise ValueError(f"not {BUNDLE_TYPE}")
    try:
        return base64.b64decode(envelope["payload"], validate=True), Signature(key_id=hint, value=value)
    except binascii.Error as error:
        raise ValueError(str(error)) from None


def _resources(statement: Any) -> dict[str, str]:
    """What a statement that a trusted key has signed says of files."""
    if (statement["_type"], statement["predicateType"]) != (STATEMENT_TYPE, PREDICATE_TYPE):
        raise ValueError(f"not {PREDICATE_TYPE}")
    found = {}
    for resource in statement["predicate"]["resources"]:
        if resource["algorithm"] != "sha256" or resource["name"] in found:
            raise ValueError("other than one sha256 for each file")
        found[str(resource["name"])] = str(resource["digest"])
    return found
