"""EvidenceStore: the records of finished runs on this machine, and the one run that may be resumed.

A directory of ``calculet-evidence/v1`` files. A damaged file earns nothing and stops nobody.

Source: SPEC section 12.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Final

import attrs

from calculet_trio.conformance.case import Verdict
from calculet_trio.conformance.run_record import RunRecord, UnreadableRecord
from calculet_trio.core.evidence import Combination, Evidence
from calculet_trio.errors import Unavailable

RECORDS_MAX: Final = 1024
"""Files that are looked at; the latest by name of each board kind."""
KEPT_PER_COMBINATION: Final = 8
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


class EvidenceStore:
    """The records below ``root``; the directory need not exist."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def found(self) -> Found:
        """Every record that can be read."""
        records, unreadable = [], []
        for path in sorted(self.root.glob("*.json"))[-RECORDS_MAX:]:
            try:
                records.append(RunRecord.load(path))
            except UnreadableRecord as error:
                unreadable.append(str(error))
        return Found(tuple(sorted(records, key=lambda record: record.begun_at)), tuple(unreadable))

    def keep(self, record: RunRecord) -> Path:
        """Store a finished run, and forget the oldest of its combination beyond `KEPT_PER_COMBINATION`.

        Raises:
            calculet_trio.errors.Unavailable: it cannot be written.
        """
        path = self.root / f"{record.record_id}.json"
        try:
            record.save(path)
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
            record.save(path)
        except OSError as error:
            raise _cannot_write(path, error) from error

    def interrupted(self, combination: Combination) -> RunRecord | None:
        """The run of ``combination`` that was not finished; None if there is none that can be read."""
        try:
            return RunRecord.load(self._unfinished(combination))
        except UnreadableRecord:
            return None

    def _unfinished(self, combination: Combination) -> Path:
        return self.root / UNFINISHED / f"{sha256(repr(combination).encode()).hexdigest()[:16]}.json"


def _cannot_write(path: Path, error: OSError) -> Unavailable:
    return Unavailable(f"{path} cannot be written: {error.strerror}", hint="set state in the service's configuration")
