"""Tenants, their credentials, and what a call has proved to be: plain values without secrets.

`registry` holds the current ones, `rpc.auth` makes an `Identity` of a call, and the session keeps it, so that the
stream ends when the credential does.
"""

from dataclasses import dataclass
from enum import StrEnum

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.grant import Grants
from feedmux_server.core.quota import UNLIMITED_QUOTAS, Quotas


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What the server knows of a key. Keys are 256 random bits, so a plain hash suffices."""

    sha256: str
    label: str = ""
    expires_s: float | None = None
    """Wall clock, seconds since 1970."""


class NameKind(StrEnum):
    """Where in a client certificate a name stands."""

    COMMON_NAME = "common_name"
    DNS = "dns"
    URI = "uri"


@dataclass(frozen=True, slots=True)
class CertificateName:
    kind: NameKind
    value: str


@dataclass(frozen=True, slots=True)
class TenantRecord:
    """One tenant as the tenants file has it."""

    name: str
    api_keys: tuple[ApiKey, ...] = ()
    certificates: tuple[CertificateName, ...] = ()
    quotas: Quotas = UNLIMITED_QUOTAS
    grants: Grants = None
    any_pipelines: bool = False
    """Whether its pipelines may use MongoDB's whole language."""


class CredentialKind(StrEnum):
    NONE = "none"
    """The server was told to let everybody in."""
    API_KEY = "api_key"
    JWT = "jwt"
    CERTIFICATE = "certificate"


@dataclass(frozen=True, slots=True)
class Identity:
    """Who calls, and by which credential. `credential` names it without revealing it."""

    tenant: str
    kind: CredentialKind
    credential: str = ""
    """The key's SHA-256, the JWT's key id, or `kind:value` of the certificate's name."""
    expires_s: float | None = None


class Unauthenticated(FeedmuxError):
    """No valid credentials. The client hears one message for every cause; `cause` is for the audit log."""

    def __init__(self, cause: str) -> None:
        super().__init__(
            ErrorReason.UNAUTHENTICATED,
            "valid credentials are required: send the metadata `authorization: Bearer <API key or JWT>`, or use a"
            " client certificate that the server knows",
        )
        self.cause = cause
