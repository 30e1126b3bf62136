"""RunRecord: one run of the suite as a file, finished (evidence) or not (to be resumed).

Schema ``calculet-evidence/v1``. A finished run is what `calculet_trio.core.evidence` hears; it names every case
with its verdict, so that a failure is on record as well as a pass.

Source: SPEC section 12.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Final

import attrs

from calculet_trio import __version__
from calculet_trio.conformance.result import Result, Verdict
from calculet_trio.core.evidence import Combination, EvidenceRecord
from calculet_trio.errors import PackageError
from calculet_trio.packages import manifest_json
from calculet_trio.packages.manifest_json import Pattern
from calculet_trio.packages.signing import PublicKey, Signature, SignatureRefused, SigningKey, signer_of
from calculet_trio.packages.trust import Trust
from calculet_trio.runtimes.port import DeviceInfo

SCHEMA: Final = "calculet-evidence/v1"
PAYLOAD_TYPE: Final = "application/vnd.calculet.evidence.v1+json"
EMULATED: Final = ("emulated", "calrt-emulator")
"""Kinds of boards that are none."""

RecordId = Annotated[str, Pattern(r"[a-z-]{1,32}-[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}", "KIND-YYYYMMDDTHHMMSSZ-8 hex digits")]
"""It is a file's name, too."""


class UnreadableRecord(Exception):
    """A file that is no run record; the sentence names the key and what is allowed."""


@attrs.frozen(kw_only=True)
class RunRecord:
    """What was tried, on what, and how it came out.

    Args:
        record_id: a name for it; the file's name without its ending.
        begun_at: ISO 8601, UTC.
        suite_version: of this program, whose cases they are.
        combination: what the evidence is about.
        model: the alias or package, for people.
        device: the device's name, for people.
        short: whether the long cases were left out.
        results: of the cases that were tried.
        schema: `SCHEMA`.
        signature: of everything else; None while nobody has signed.
    """

    record_id: RecordId
    begun_at: str
    suite_version: str
    combination: Combination
    model: str
    device: str
    short: bool
    results: tuple[Result, ...]
    schema: str = SCHEMA
    signature: Signature | None = attrs.field(default=None, eq=False)  # who says it is no part of what is said

    @classmethod
    def begin(cls, combination: Combination, device: DeviceInfo, *, model: str, short: bool) -> RunRecord:
        """A run of now, in which nothing has been tried yet."""
        now = datetime.now(UTC)
        number = sha256(f"{now.isoformat()} {combination}".encode()).hexdigest()[:8]
        return cls(
            record_id=f"{combination.board_kind}-{now:%Y%m%dT%H%M%SZ}-{number}",
            begun_at=now.isoformat(timespec="microseconds"),  # two runs of one second have an order, too
            suite_version=__version__,
            combination=combination,
            model=model,
            device=device.name,
            short=short,
            results=(),
        )

    @classmethod
    def load(cls, path: Path) -> RunRecord:
        """Read a record.

        Raises:
            UnreadableRecord: it is damaged, too large, or of another version.
        """
        try:
            record = manifest_json.structure(manifest_json.read(path), cls, path)
        except PackageError as error:
            raise UnreadableRecord(error.message) from None
        if record.schema != SCHEMA:
            raise UnreadableRecord(f"{path}: schema is {record.schema[:80]!r}; this version reads {SCHEMA!r}")
        return record

    def save(self, path: Path) -> None:
        """Write it, whole or not at all; raises OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        manifest_json.write(manifest_json.unstructure(self), path)

    def signed(self, key: SigningKey) -> RunRecord:
        """It, with the key's signature under it."""
        return attrs.evolve(self, signature=key.sign(self._payload(), kind=PAYLOAD_TYPE))

    def signer(self, trust: Trust) -> PublicKey:
        """The key that signed it, which must be trusted for its kind of board.

        Raises:
            calculet_trio.packages.signing.SignatureRefused: nobody has, or nobody whose word counts for that.
        """
        if self.signature is None:
            raise SignatureRefused("it is not signed")
        trusted = trust.keys_for(self.combination.board_kind)
        return signer_of(self._payload(), self.signature, kind=PAYLOAD_TYPE, trusted=trusted)

    def _payload(self) -> bytes:
        """What is signed: all but the signature, in one spelling."""
        content = manifest_json.unstructure(attrs.evolve(self, signature=None))
        return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()

    @property
    def is_emulated(self) -> bool:
        return self.combination.board_kind in EMULATED

    def cases(self, verdict: Verdict) -> frozenset[str]:
        """The names of the cases that came out so."""
        return frozenset(result.case for result in self.results if result.verdict is verdict)

    def evidence(self, *, without: frozenset[str]) -> EvidenceRecord:
        """As the core reads it; ``without`` the cases that failed in a later run."""
        return EvidenceRecord(self.combination, self.cases(Verdict.PASS) - without, self.record_id)


def combination_of(package_sha256: str, device: DeviceInfo) -> Combination:
    """What is being served or tried; the versions of all of the runtime's components count."""
    versions = ", ".join(f"{component} {version}" for component, version in sorted(device.versions.items()))
    return Combination(package_sha256, versions, device.kind)
