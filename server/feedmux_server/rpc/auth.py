"""Identifies the caller: maps an API key, a JWT or a client certificate to a tenant. All credentials that are not valid
have one message.

Asks `tenants` and keeps no state. Metadata takes precedence over a certificate, and wrong metadata never falls back to
a certificate.
"""

from collections.abc import Iterable

from feedmux_server.clock import wall_s
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.rpc.status import Context
from feedmux_server.rpc.tls import peer_certificate
from feedmux_server.rpc.transport import ENTRY_BYTES, METADATA_BYTES
from feedmux_server.tenants.jwt_verifier import JwtVerifier, looks_like_jwt
from feedmux_server.tenants.model import CredentialKind, Identity, Unauthenticated
from feedmux_server.tenants.registry import Registry

ANONYMOUS = Identity("default", CredentialKind.NONE)
_BEARER = "bearer "


class Authenticator:
    """Identifies callers. If `registry` is None, every caller is the anonymous tenant."""

    def __init__(self, registry: Registry | None, jwt: JwtVerifier | None = None) -> None:
        self.registry = registry
        self._jwt = jwt

    async def identify(self, context: Context) -> Identity:
        """Raises Unauthenticated, and MESSAGE_INVALID for metadata that are too large."""
        metadata = context.invocation_metadata() or ()
        size = sum(len(name) + len(value) + ENTRY_BYTES for name, value in metadata)
        if size > METADATA_BYTES:
            raise FeedmuxError(
                ErrorReason.MESSAGE_INVALID,
                f"the metadata of the call have {size} bytes, more than {METADATA_BYTES}; use a shorter token",
                {"field": "metadata"},
            )
        registry = self.registry
        if registry is None:
            return ANONYMOUS
        token = _bearer(metadata)
        if token is None:
            certificate = peer_certificate(context.auth_context())
            if certificate is None:
                raise Unauthenticated("no credentials", missing=True)
            return registry.by_certificate(certificate.names, certificate.not_after_s, wall_s())
        if self._jwt is not None and looks_like_jwt(token):
            identity = await self._jwt.identity(token)
            if identity.tenant not in registry.tenants:
                raise Unauthenticated("JWT of an unknown tenant")
            return identity
        return registry.by_key(token, wall_s())

    def holds(self, identity: Identity) -> bool:
        """Whether a stream that was opened by `identity` may continue."""
        if self.registry is None:
            return True
        if identity.kind is CredentialKind.JWT and (self._jwt is None or not self._jwt.holds(identity)):
            return False
        return self.registry.holds(identity, wall_s())

    def name_of(self, identity: Identity) -> str:
        """The credential's name for the audit log: its kind and label, never its value."""
        label = self.registry.label(identity) if self.registry is not None else ""
        return f"{identity.kind}{':' if label else ''}{label}"


def _bearer(metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    """The token in `authorization`; None without that metadata, '' if it has another scheme or is given twice."""
    values = [value for name, value in metadata if name == "authorization"]
    if not values:
        return None
    text = values[0] if isinstance(values[0], str) else values[0].decode("latin-1")
    if len(values) > 1 or text[: len(_BEARER)].lower() != _BEARER:
        return ""
    return text[len(_BEARER) :].strip()
