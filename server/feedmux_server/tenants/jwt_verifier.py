"""Turns JSON Web Tokens into identities: checks signature, issuer, audience, times, and the claim with the tenant.

A token's own header decides only which known key is tried: the token's algorithm must be on the list and fit that key,
so neither `none` nor an HMAC made with a public key is accepted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import jwt

from feedmux_server.tenants.jwks import Keys, SigningKey
from feedmux_server.tenants.model import CredentialKind, Identity, Unauthenticated

SKEW_S: Final = 60.0
_KEYS_TRIED_MAX: Final = 8
"""Limit of the signatures that one token may cost, if several keys fit it."""
_CAUSES: Final = (
    (jwt.ExpiredSignatureError, "expired JWT"),
    (jwt.ImmatureSignatureError, "JWT that is not valid yet"),
    (jwt.InvalidAudienceError, "JWT for another audience"),
    (jwt.InvalidIssuerError, "JWT of another issuer"),
    (jwt.MissingRequiredClaimError, "JWT without a claim that is required"),
    (jwt.InvalidSignatureError, "JWT with a wrong signature"),
)


class _OtherKey(Unauthenticated):
    """None of the keys signed the token."""


@dataclass(frozen=True, slots=True)
class JwtRules:
    """The requirements for a token."""

    issuer: str
    audience: str
    algorithms: tuple[str, ...]
    tenant_claim: str


def looks_like_jwt(token: str) -> bool:
    """Whether a token has three parts with dots between them; an API key has no dots."""
    return token.count(".") == 2


class JwtVerifier:
    """Verifies the tokens of the configured issuers."""

    def __init__(self, rules: JwtRules, keys: Keys) -> None:
        self._rules = rules
        self._keys = keys

    async def identity(self, token: str) -> Identity:
        """The identity of a token. Raises Unauthenticated. The registry decides whether the tenant exists."""
        rules = self._rules
        try:
            header = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError, RecursionError):
            raise Unauthenticated("malformed JWT") from None
        algorithm, kid = header.get("alg"), header.get("kid")
        if algorithm not in rules.algorithms:
            raise Unauthenticated("JWT with an algorithm that is not allowed")
        keys = await self._keys.find(kid)
        if not keys:
            raise Unauthenticated("JWT of an unknown key")
        try:
            key, claims, expires_s = self._verified(token, algorithm, keys)
        except _OtherKey as error:
            newer = await self._keys.find(kid, {each.fingerprint for each in keys})
            if not newer:
                raise Unauthenticated(error.cause) from None
            key, claims, expires_s = self._verified(token, algorithm, newer)
        tenant = claims.get(rules.tenant_claim)
        if not isinstance(tenant, str) or not tenant:
            raise Unauthenticated("JWT without the tenant's claim")
        return Identity(tenant, CredentialKind.JWT, key.fingerprint, expires_s)

    def _verified(
        self, token: str, algorithm: str, keys: Sequence[SigningKey]
    ) -> tuple[SigningKey, dict[str, Any], float]:
        """The key that signed the token, its claims, and when it expires. Raises Unauthenticated."""
        kind = _kind_for(algorithm)
        fitting = [key for key in keys if key.kind == kind and key.algorithm in ("", algorithm)]
        if not fitting:
            raise _OtherKey("JWT with an algorithm that its key is not for")
        if len(fitting) > _KEYS_TRIED_MAX:
            raise Unauthenticated("JWT that names none of many keys")
        for key in fitting:
            try:
                claims = self._claims(token, key, algorithm)
                return key, claims, float(claims["exp"]) + SKEW_S
            except (jwt.InvalidSignatureError, jwt.InvalidKeyError) as error:
                failure: Exception = error
            except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
                raise Unauthenticated(_cause(error)) from None
        raise _OtherKey(_cause(failure))

    def _claims(self, token: str, key: SigningKey, algorithm: str) -> dict[str, Any]:
        claims: dict[str, Any] = jwt.decode(
            token,
            key.public,  # type: ignore[arg-type]
            algorithms=[algorithm],
            audience=self._rules.audience,
            issuer=self._rules.issuer,
            leeway=SKEW_S,
            options={"require": ["exp", "iss", "aud"]},
        )
        return claims

    def holds(self, identity: Identity) -> bool:
        """Whether the key that signed the token is still one of the issuer's keys."""
        return self._keys.knows(identity.credential)


def _kind_for(algorithm: str) -> str:
    return {"R": "RSA", "P": "RSA"}.get(algorithm[0], "OKP" if algorithm == "EdDSA" else "EC")


def _cause(error: Exception) -> str:
    return next((cause for kind, cause in _CAUSES if isinstance(error, kind)), "invalid JWT")
