"""Who is calling: API keys to tenants. One message for every failure."""

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass

from feedmux_server.core.errors import ErrorReason, FeedmuxError

ANONYMOUS_TENANT = "default"
_BEARER = "bearer "


@dataclass(frozen=True, slots=True)
class TenantKeys:
    """A tenant and the SHA-256 digests (hex) of its API keys. Keys are 256 random bits, so a plain hash suffices."""

    tenant: str
    key_hashes: tuple[str, ...]


def hash_key(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


class Authenticator:
    """Maps call metadata to a tenant. With `tenants` None everybody is the one anonymous tenant."""

    def __init__(self, tenants: Iterable[TenantKeys] | None) -> None:
        self._tenants = None if tenants is None else list(tenants)

    def tenant(self, metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
        """Raises UNAUTHENTICATED."""
        if self._tenants is None:
            return ANONYMOUS_TENANT
        found = ""
        digest = hash_key(_bearer(metadata))
        for each in self._tenants:
            for known in each.key_hashes:
                if hmac.compare_digest(digest, known):
                    found = each.tenant
        if not found:
            raise FeedmuxError(
                ErrorReason.UNAUTHENTICATED,
                "valid credentials are required: send the metadata `authorization: Bearer <api key>`",
            )
        return found


def _bearer(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    for name, value in metadata or ():
        if name == "authorization":
            text = value if isinstance(value, str) else value.decode("latin-1")
            if text[: len(_BEARER)].lower() == _BEARER:
                return text[len(_BEARER) :].strip()
    return ""
