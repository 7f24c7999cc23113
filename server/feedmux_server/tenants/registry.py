"""The current set of tenants: replaced as a whole, never changed.

`app` fills the registry from the tenants file, and again when the file changes; `rpc.auth` asks it which tenant a key
or certificate belongs to, and whether an identity proved earlier still holds. Invariant: a new set replaces the old one
completely or not at all.
"""

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from feedmux_server.tenants.model import (
    ApiKey,
    CertificateName,
    CredentialKind,
    Identity,
    TenantRecord,
    Unauthenticated,
)


def hash_key(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Changes:
    """The names of the tenants that a new set added, removed or changed."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]


class Registry:
    """Finds the tenant of a credential."""

    def __init__(self, tenants: Iterable[TenantRecord] = ()) -> None:
        # Keys are found by a keyed hash of their hash, so that a lookup's timing reveals nothing about stored keys.
        self._blind = secrets.token_bytes(32)
        self.tenants: Mapping[str, TenantRecord] = {}
        self._keys: Mapping[bytes, tuple[ApiKey, str]] = {}
        self._certificates: Mapping[CertificateName, str] = {}
        self.replace(tenants)

    def replace(self, tenants: Iterable[TenantRecord]) -> Changes:
        """Replace the set of tenants. The new set is in force when this returns."""
        before, after = self.tenants, {tenant.name: tenant for tenant in tenants}
        self.tenants = after
        self._keys = {
            self._blinded(key.sha256): (key, tenant.name) for tenant in after.values() for key in tenant.api_keys
        }
        self._certificates = {name: tenant.name for tenant in after.values() for name in tenant.certificates}
        return Changes(
            added=tuple(sorted(after.keys() - before.keys())),
            removed=tuple(sorted(before.keys() - after.keys())),
            changed=tuple(sorted(name for name in after.keys() & before.keys() if after[name] != before[name])),
        )

    def by_key(self, key: str, now_s: float) -> Identity:
        """The identity of an API key. Raises Unauthenticated."""
        digest = hash_key(key)
        known, tenant = self._keys.get(self._blinded(digest), (None, ""))
        if known is None or not hmac.compare_digest(digest, known.sha256):
            raise Unauthenticated("unknown API key")
        if known.expires_s is not None and known.expires_s <= now_s:
            raise Unauthenticated("expired API key")
        return Identity(tenant, CredentialKind.API_KEY, known.sha256, known.expires_s)

    def by_certificate(self, names: Iterable[CertificateName], not_after_s: float, now_s: float) -> Identity:
        """The identity of a verified certificate, by a tenant's name in it. Raises Unauthenticated."""
        found = {self._certificates[name]: name for name in names if name in self._certificates}
        if len(found) != 1:
            raise Unauthenticated("certificate of several tenants" if found else "certificate of no tenant")
        if not_after_s <= now_s:
            raise Unauthenticated("expired certificate")
        ((tenant, name),) = found.items()
        return Identity(tenant, CredentialKind.CERTIFICATE, f"{name.kind}:{name.value}", not_after_s)

    def holds(self, identity: Identity, now_s: float) -> bool:
        """Whether an identity proved earlier would still be accepted now."""
        if identity.expires_s is not None and identity.expires_s <= now_s:
            return False
        tenant = self.tenants.get(identity.tenant)
        if tenant is None:
            return False
        match identity.kind:
            case CredentialKind.API_KEY:
                known, owner = self._keys.get(self._blinded(identity.credential), (None, ""))
                return (
                    known is not None
                    and owner == identity.tenant
                    and (known.expires_s is None or known.expires_s > now_s)
                )
            case CredentialKind.CERTIFICATE:
                return identity.credential in (f"{name.kind}:{name.value}" for name in tenant.certificates)
        return True

    def label(self, identity: Identity) -> str:
        """The credential's name in the tenants file: a key's label or a certificate's name."""
        match identity.kind:
            case CredentialKind.API_KEY:
                known, _ = self._keys.get(self._blinded(identity.credential), (None, ""))
                return known.label if known is not None else ""
            case CredentialKind.CERTIFICATE:
                return identity.credential
        return ""

    def _blinded(self, sha256: str) -> bytes:
        return hashlib.blake2b(sha256.encode(), key=self._blind, digest_size=16).digest()
