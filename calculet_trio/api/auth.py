"""Who asks: the key alone decides the tenant.

Nothing else reads ``Authorization`` or ``x-api-key``, and no key goes anywhere from here.

Source: API.md "Authentication"; SPEC section 4; report B36.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from werkzeug.datastructures import Headers

from calculet_trio.errors import KeyRefused, NotPermitted
from calculet_trio.settings.key_ring import Credential, KeyRing
from calculet_trio.settings.service import Role

EVERYBODY: Final = Credential("default", Role.OPERATOR)
"""Whoever can reach a service without keys; it listens on loopback only, unless told otherwise."""

OPEN_PATHS: Final = frozenset({"/health", "/v1/health", "/health/ready", "/health/live"})
OPERATOR_PATHS: Final = frozenset({"/metrics"})
"""Per-tenant series and other tenants' data are for operators."""


def authorize(keys: Callable[[], KeyRing], *, path: str, headers: Headers) -> Credential:
    """Whom the request's headers prove, if that is enough for the path.

    Raises:
        calculet_trio.errors.KeyRefused: a key is needed, and none that is known was presented.
        calculet_trio.errors.NotPermitted: the path needs an operator's key.
    """
    ring = keys()
    if not ring or path in OPEN_PATHS:
        return EVERYBODY
    presented = _presented_key(headers)
    credential = None if presented is None else ring.tenant_of(presented)
    if credential is None:
        raise KeyRefused
    if path in OPERATOR_PATHS and credential.role is not Role.OPERATOR:
        raise NotPermitted(f"{path} needs an operator's key")
    return credential


def _presented_key(headers: Headers) -> bytes | None:
    """The one key in the headers, as bytes; None for none, several, or another scheme."""
    bearers = headers.getlist("Authorization")
    plain = headers.getlist("x-api-key")
    if len(bearers) + len(plain) != 1:
        return None
    if plain:
        return plain[0].encode("latin-1", "replace")
    scheme, _, key = bearers[0].partition(" ")
    if scheme.lower() != "bearer" or not key.strip(" "):
        return None
    return key.strip(" ").encode("latin-1", "replace")
