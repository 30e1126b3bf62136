"""Keys: whom they prove, whatever bytes a stranger sends, and every digest compared each time."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calculet_trio.settings import key_ring as module
from calculet_trio.settings.key_ring import Credential, KeyRing, key_digest
from calculet_trio.settings.service import Role, TenantSettings
from tests.settings.values import PATIENT

ACME, OLD, BOSS = b"acme-key-0123456789", "schlüssel-0123456789".encode(), b"boss-key-0123456789"
RING = KeyRing(
    [
        TenantSettings(name="acme", key_sha256=(key_digest(ACME), key_digest(OLD))),
        TenantSettings(name="boss", key_sha256=(key_digest(BOSS),), role=Role.OPERATOR),
        TenantSettings(name="revoked"),
    ]
)


def test_each_key_proves_its_tenant_and_role() -> None:
    assert RING.tenant_of(ACME) == RING.tenant_of(OLD) == Credential("acme", Role.TENANT)
    assert RING.tenant_of(BOSS) == Credential("boss", Role.OPERATOR)


@PATIENT
@given(presented=st.binary(max_size=100) | st.sampled_from([ACME[:-1], ACME + b" ", ACME.upper(), b"\xff" * 5000]))
def test_anything_else_proves_nobody(presented: bytes) -> None:
    assert RING.tenant_of(presented) is None


def test_the_hash_itself_is_no_key() -> None:
    assert RING.tenant_of(key_digest(ACME).encode()) is None
    assert RING.tenant_of(bytes.fromhex(key_digest(ACME))) is None


def test_a_digest_is_the_sha256_in_hex() -> None:
    assert key_digest(ACME) == hashlib.sha256(ACME).hexdigest()


def test_a_ring_without_keys_says_so() -> None:
    assert RING
    assert not KeyRing()
    assert not KeyRing([TenantSettings(name="default")])
    assert KeyRing().tenant_of(b"") is None


@pytest.mark.parametrize("presented", [ACME, OLD, BOSS, b"nothing"])
def test_every_digest_is_compared_in_constant_time(presented: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many comparisons for the first key as for none: the time tells nothing of where a key stands."""
    compared: list[tuple[bytes, bytes]] = []
    real = hmac.compare_digest

    def counting(known: bytes, presented: bytes) -> bool:
        compared.append((known, presented))
        return real(known, presented)

    monkeypatch.setattr(module.hmac, "compare_digest", counting)
    RING.tenant_of(presented)
    assert len(compared) == 3
    assert {type(each) for pair in compared for each in pair} == {bytes}
