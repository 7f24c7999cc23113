"""Tenants, their credentials, and the proved identity of a call: plain values without secrets.

`registry` holds the current tenants, `rpc.auth` makes the `Identity` of a call, and the session keeps that identity, so
that the stream ends when the credential does.
"""

from dataclasses import dataclass
from enum import StrEnum

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.grants.grant import Grants
from feedmux_server.core.limits.quota import UNLIMITED_QUOTAS, Quotas


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What the server knows about a key. Keys are 256 random bits, so a plain hash is enough."""

    sha256: str
    label: str = ""
    expires_s: float | None = None
    """Wall clock, seconds since 1970."""


class NameKind(StrEnum):
    """Where a name is in a client certificate."""

    COMMON_NAME = "common_name"
    DNS = "dns"
    URI = "uri"


@dataclass(frozen=True, slots=True)
class CertificateName:
    kind: NameKind
    value: str


@dataclass(frozen=True, slots=True)
class TenantRecord:
    """One tenant as described in the tenants file."""

    name: str
    api_keys: tuple[ApiKey, ...] = ()
    certificates: tuple[CertificateName, ...] = ()
    quotas: Quotas = UNLIMITED_QUOTAS
    grants: Grants = None
    any_pipelines: bool = False
    """Whether its pipelines may use MongoDB's whole language."""


class CredentialKind(StrEnum):
    NONE = "none"
    """The server is configured to accept every caller."""
    API_KEY = "api_key"
    JWT = "jwt"
    CERTIFICATE = "certificate"


@dataclass(frozen=True, slots=True)
class Identity:
    """A caller and its credential. `credential` identifies the credential without revealing it."""

    tenant: str
    kind: CredentialKind
    credential: str = ""
    """The key's SHA-256, the JWT's key id, or `kind:value` of the certificate's name."""
    expires_s: float | None = None


class Unauthenticated(FeedmuxError):
    """No valid credentials. The client gets the same message for all that are not valid; `cause` is for the audit
    log."""

    def __init__(self, cause: str, *, missing: bool = False) -> None:
        super().__init__(
            ErrorReason.UNAUTHENTICATED,
            "the call has no credentials: give the client an API key or a token (the metadata `authorization: Bearer"
            " <API key or JWT>`), or a client certificate that the server knows"
            if missing
            else "the API key, JWT or client certificate is not valid: it is unknown, expired or revoked",
        )
        self.cause = cause
