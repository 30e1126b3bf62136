"""Evidence stores with a key of their own, away from the machine's."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from calculet_trio.conformance.evidence_store import EvidenceStore
from calculet_trio.packages.signing import SigningKey
from calculet_trio.packages.trust import Trust


def store_in(root: Path, *, keys: Path | None = None) -> EvidenceStore:
    """A store whose records a local key signs, which is in ``keys``, or beside them."""
    keys = root / "keys" if keys is None else keys
    return EvidenceStore(root, trust=partial(Trust.load, keys, ()), key=partial(SigningKey.local, keys))
