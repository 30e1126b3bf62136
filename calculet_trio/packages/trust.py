"""Trust: whose signatures are believed, and under what.

This machine's own key signs what is made here, and what is made here needs no board: packages for the CPU, evidence of
the host and emulated runtimes. It is believed for those alone. What runs on a board, and what is said about one, needs
a key that an operator named in the configuration; any of them is believed for everything.

Source: SPEC section 8 step 2, 12.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import attrs

from calculet_trio.packages.signing import PublicKey, local_public_key

LOCAL_KINDS: Final = frozenset({"cpu", "emulated", "calrt-emulator"})
"""Kinds of device (`Manifest.target`, a board kind of evidence) for which the local key is enough."""


@attrs.frozen
class Trust:
    """The keys that are believed.

    Args:
        local: this machine's own; None while it has none.
        named: those of ``trusted_keys``.
    """

    local: PublicKey | None = None
    named: tuple[PublicKey, ...] = ()

    @classmethod
    def load(cls, keys: Path, named: Iterable[Path]) -> Trust:
        """The keys that there are; none is made.

        Args:
            keys: the directory of this machine's key.
            named: files of public keys.

        Raises:
            calculet_trio.errors.ConfigurationRefused: one of them cannot be used.
        """
        return cls(local_public_key(keys), tuple(PublicKey.load(path) for path in named))

    def keys_for(self, kind: str) -> tuple[PublicKey, ...]:
        """Whose signatures count for a kind of device."""
        return self.named + ((self.local,) if self.local is not None and kind in LOCAL_KINDS else ())

    def describe(self, key: PublicKey) -> str:
        """A key, for people."""
        whose = "this machine's key" if key == self.local else "a trusted key"
        return f"{whose} {key.key_id[:16]}…"
