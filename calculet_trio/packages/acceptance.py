"""Whether a package may be used: its signature, its files, its graphs, and that it does not contradict itself.

One question with one answer, asked before a model is loaded, when a package comes into the store, by ``package
verify`` and before a rollback. The order is by price: what is refused for its signature is not hashed.

Source: SPEC section 8, load steps 2 and 3 (S §11).
"""

from __future__ import annotations

from pathlib import Path

import attrs

from calculet_trio.packages.digests import OnBytes
from calculet_trio.packages.manifest import Manifest
from calculet_trio.packages.package_signature import package_signer
from calculet_trio.packages.signing import PublicKey
from calculet_trio.packages.static_validation import ValidationReport, validate
from calculet_trio.packages.store import Store
from calculet_trio.packages.trust import Trust
from calculet_trio.packages.verification import OnFile, ignore_file


@attrs.frozen
class Accepted:
    """A package that may be used.

    Args:
        manifest: what it says of itself.
        signer: the trusted key that signed it.
        report: of the static validation; has no problems.
    """

    manifest: Manifest
    signer: PublicKey
    report: ValidationReport


def accept(
    store: Store,
    directory: Path,
    trust: Trust,
    *,
    thorough: bool,
    on_file: OnFile = ignore_file,
    on_bytes: OnBytes | None = None,
) -> Accepted:
    """Make sure of a package; blocks as long as hashing takes.

    Args:
        store: remembers what was hashed before.
        directory: the package, in the store or elsewhere.
        trust: whose signatures count.
        thorough: hash every file; else only those that changed since they were last hashed here.
        on_file: told what is hashed.
        on_bytes: told how far it has come.

    Raises:
        calculet_trio.packages.signing.SignatureRefused: it is not signed, or by nobody who is trusted for its kind.
        calculet_trio.errors.PackageError: it is damaged, or contradicts itself; with the file or the keys.
    """
    manifest = Manifest.load(directory)
    signer = package_signer(directory, manifest, trust)
    report = validate(manifest)
    report.require()
    store.check(directory, thorough=thorough, on_file=on_file, on_bytes=on_bytes)
    return Accepted(manifest, signer, report)
