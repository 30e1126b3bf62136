"""EvidenceStore: the records of finished runs on this machine, and the one run that may be resumed.

A directory of ``calculet-evidence/v1`` files. A damaged file, or one that nobody signed whose word counts for its
kind of board, earns nothing and stops nobody.

Source: SPEC section 12.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

import attrs

from calculet_trio.conformance.result import Verdict
from calculet_trio.conformance.run_record import RunRecord, UnreadableRecord
from calculet_trio.core.evidence import Combination, Evidence
from calculet_trio.errors import Unavailable
from calculet_trio.packages.signing import SignatureRefused, SigningKey
from calculet_trio.packages.trust import Trust

RECORDS_MAX: Final = 1024
"""Files that are looked at; the latest by name of each board kind."""
KEPT_PER_COMBINATION: Final = 8
ROOM_BYTES: Final = 64 * 2**10
"""More than a record of a run has: 5 kB."""
UNFINISHED: Final = "unfinished"


@attrs.frozen
class Found:
    """What a directory holds.

    Args:
        records: oldest first.
        unreadable: a sentence for each file that is none.
    """

    records: tuple[RunRecord, ...]
    unreadable: tuple[str, ...]

    def evidence(self, combination: Combination) -> Evidence:
        """What counts for ``combination``: of each run what passed in it and failed in none after it."""
        failed: frozenset[str] = frozenset()
        heard = []
        for record in reversed([record for record in self.records if record.combination == combination]):
            heard.append(record.evidence(without=failed))
            failed |= record.cases(Verdict.FAIL)
        return Evidence(combination, reversed(heard))

    def failures(self, combination: Combination) -> frozenset[str]:
        """The cases whose latest verdict for ``combination`` is FAIL."""
        failed: frozenset[str] = frozenset()
        for record in self.records:
            if record.combination == combination:
                failed = failed - record.cases(Verdict.PASS) | record.cases(Verdict.FAIL)
        return failed


class EvidenceStore:
    """The records below ``root``; the directory need not exist.

    Args:
        root: of the files.
        trust: whose signatures count, now.
        key: signs what is kept; made on first use.
    """

    def __init__(self, root: Path, *, trust: Callable[[], Trust], key: Callable[[], SigningKey]) -> None:
        self.root = root
        self._trust = trust
        self._key = key

    def found(self) -> Found:
        """Every record that can be read and is believed."""
        records, unreadable = [], []
        trust = self._trust()
        for path in sorted(self.root.glob("*.json"))[-RECORDS_MAX:]:
            try:
                record = RunRecord.load(path)
                record.signer(trust)
                records.append(record)
            except UnreadableRecord as error:
                unreadable.append(str(error))
            except SignatureRefused as refused:
                unreadable.append(f"{path} earns nothing: {refused.message}")
        return Found(tuple(sorted(records, key=lambda record: record.begun_at)), tuple(unreadable))

    def require_room(self) -> None:
        """Asked before what takes minutes: whether a record of it could be kept.

        Raises:
            calculet_trio.errors.Unavailable: it could not.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=self.root) as file:
                file.write(bytes(ROOM_BYTES))
        except OSError as error:
            raise _cannot_write(self.root, error) from error

    def keep(self, record: RunRecord) -> Path:
        """Sign and store a finished run, and forget the oldest of its combination beyond `KEPT_PER_COMBINATION`.

        Raises:
            calculet_trio.errors.Unavailable: it cannot be written.
            calculet_trio.errors.ConfigurationRefused: there is no key to sign with, and none can be made.
        """
        path = self.root / f"{record.record_id}.json"
        try:
            record.signed(self._key()).save(path)
            others = [each for each in self.found().records if each.combination == record.combination]
            for old in others[:-KEPT_PER_COMBINATION]:
                (self.root / f"{old.record_id}.json").unlink(missing_ok=True)
            self._unfinished(record.combination).unlink(missing_ok=True)
        except OSError as error:
            raise _cannot_write(path, error) from error
        return path

    # ---- a run that was interrupted -------------------------------------------------------------

    def remember(self, record: RunRecord) -> None:
        """The run has come so far.

        Raises:
            calculet_trio.errors.Unavailable: it cannot be written.
        """
        path = self._unfinished(record.combination)
        try:
            record.signed(self._key()).save(path)
        except OSError as error:
            raise _cannot_write(path, error) from error

    def interrupted(self, combination: Combination) -> RunRecord | None:
        """The run of ``combination`` that was not finished; None if there is none that can be read and is believed."""
        try:
            record = RunRecord.load(self._unfinished(combination))
            record.signer(self._trust())
        except (UnreadableRecord, SignatureRefused):
            return None
        return record

    def _unfinished(self, combination: Combination) -> Path:
        return self.root / UNFINISHED / f"{sha256(repr(combination).encode()).hexdigest()[:16]}.json"


def _cannot_write(path: Path, error: OSError) -> Unavailable:
    return Unavailable(f"{path} cannot be written: {error.strerror}", hint="set state in the service's configuration")
