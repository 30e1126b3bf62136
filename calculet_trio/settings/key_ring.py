"""Keys of clients: which tenant a presented key proves, without telling by time how near a wrong one was.

Source: SPEC section 4; API.md "Conventions that clients rely on".
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

import attrs

from calculet_trio.settings.service import Role, TenantSettings


@attrs.frozen
class Credential:
    """What a key proves."""

    tenant: str
    role: Role


class KeyRing:
    """The keys of all tenants, as digests.

    Args:
        tenants: as the configuration names them; a digest occurs once among all.
    """

    def __init__(self, tenants: Iterable[TenantSettings] = ()) -> None:
        self._keys = tuple(
            (bytes.fromhex(digest), Credential(tenant.name, tenant.role))
            for tenant in tenants
            for digest in tenant.key_sha256
        )

    def __bool__(self) -> bool:
        """Whether a key is needed at all."""
        return bool(self._keys)

    def tenant_of(self, presented: bytes) -> Credential | None:
        """Whom ``presented`` proves; None for nobody.

        The digest hides the key, and every digest is compared in constant time, whether one fitted before or not.

        Args:
            presented: the key's bytes as they came, of any encoding.
        """
        digest = hashlib.sha256(presented).digest()
        found: Credential | None = None
        for known, credential in self._keys:
            if hmac.compare_digest(known, digest):
                found = credential
        return found


def key_digest(key: bytes) -> str:
    """The ``key_sha256`` of ``key``."""
    return hashlib.sha256(key).hexdigest()
