"""Which JWTs become identities, and the cause that the audit log gets for the others."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from feedmux_server.tenants.jwt_verifier import SKEW_S, JwtRules, JwtVerifier, looks_like_jwt
from feedmux_server.tenants.model import CredentialKind, Unauthenticated

RULES = JwtRules("https://issuer", "feedmux", ("RS256", "PS256", "ES256"), "tenant")
RSA, OTHER = (rsa.generate_private_key(public_exponent=65537, key_size=2048) for _ in range(2))
ELLIPTIC = ec.generate_private_key(ec.SECP256R1())
PUBLIC_PEM = RSA.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


class Keys:
    """The issuer's keys: `rsa`, `bound` for RS256 alone, and `elliptic`."""

    def __init__(self) -> None:
        self.known: dict[str, tuple[Any, str, str]] = {
            "rsa": (RSA, "RSA", ""),
            "bound": (RSA, "RSA", "RS256"),
            "elliptic": (ELLIPTIC, "EC", "ES256"),
        }

    async def find(self, kid: str | None, tried: Collection[str] = ()) -> Any:
        return [
            SimpleNamespace(public=private.public_key(), kind=kind, algorithm=algorithm, fingerprint=f"of {name}")
            for name, (private, kind, algorithm) in self.known.items()
            if (kid is None or name.partition(" ")[0] == kid) and f"of {name}" not in tried
        ]

    def knows(self, fingerprint: str) -> bool:
        return fingerprint.removeprefix("of ") in self.known


def token(key: Any = RSA, algorithm: str = "RS256", kid: str | None = "rsa", **claims: Any) -> str:
    given = {"iss": RULES.issuer, "aud": RULES.audience, "tenant": "a", "exp": time.time() + 3600} | claims
    return jwt.encode(
        {name: value for name, value in given.items() if value is not None},
        key,
        algorithm,
        headers={"kid": kid} if kid else {},
    )


def part(content: dict[str, Any]) -> bytes:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).rstrip(b"=")


def forged(algorithm: str, sign: Callable[[bytes], bytes], **header: Any) -> str:
    """A token that no library would make."""
    claims = {"iss": RULES.issuer, "aud": RULES.audience, "tenant": "a", "exp": int(time.time()) + 3600}
    signed = part({"alg": algorithm, "typ": "JWT", "kid": "rsa", **header}) + b"." + part(claims)
    return (signed + b"." + base64.urlsafe_b64encode(sign(signed)).rstrip(b"=")).decode()


def hmac_of(key: bytes) -> Callable[[bytes], bytes]:
    return lambda signed: hmac.new(key, signed, hashlib.sha256).digest()


def signed_by_rsa(signed: bytes) -> bytes:
    return RSA.sign(signed, PKCS1v15(), SHA256())


@pytest.mark.parametrize(
    ("made", "credential"),
    [
        (lambda: token(), "of rsa"),
        (lambda: forged("RS256", signed_by_rsa), "of rsa"),
        (lambda: token(ELLIPTIC, "ES256", "elliptic"), "of elliptic"),
        (lambda: token(aud=["other", "feedmux"]), "of rsa"),
        (lambda: token(exp=time.time() - SKEW_S / 2), "of rsa"),
        (lambda: token(nbf=time.time() + SKEW_S / 2), "of rsa"),
    ],
)
async def test_tokens_that_are_accepted(made: Any, credential: str) -> None:
    keys: Any = Keys()
    verifier = JwtVerifier(RULES, keys)
    identity = await verifier.identity(made())
    assert (identity.tenant, identity.kind, identity.credential) == ("a", CredentialKind.JWT, credential)
    assert identity.expires_s is not None
    assert verifier.holds(identity)
    keys.known.clear()
    assert not verifier.holds(identity), "a stream ends with the key that signed its token"


@pytest.mark.parametrize(
    ("made", "credential"),
    [
        (lambda: token(kid="shared"), "of shared RS256"),
        (lambda: token(algorithm="PS256", kid="shared"), "of shared PS256"),
        (lambda: token(ELLIPTIC, "ES256", "shared"), "of shared elliptic"),
        (lambda: token(kid="rotated"), "of rotated to"),
        (lambda: token(OTHER, kid="rotated"), "of rotated from"),
        (lambda: token(OTHER, kid=None), "of rotated from"),
    ],
)
async def test_keys_that_share_an_id_and_tokens_that_name_none(made: Any, credential: str) -> None:
    keys: Any = Keys()
    keys.known = {
        "shared RS256": (RSA, "RSA", "RS256"),
        "shared PS256": (RSA, "RSA", "PS256"),
        "shared elliptic": (ELLIPTIC, "EC", ""),
        "rotated from": (OTHER, "RSA", ""),
        "rotated to": (RSA, "RSA", ""),
    }
    assert (await JwtVerifier(RULES, keys).identity(made())).credential == credential
    keys.known |= {f"many {n}": (RSA, "RSA", "") for n in range(20)}
    with pytest.raises(Unauthenticated) as caught:
        await JwtVerifier(RULES, keys).identity(token(kid=None))
    assert caught.value.cause == "JWT that names none of many keys"


@pytest.mark.parametrize(
    ("made", "cause"),
    [
        (lambda: "a.b.c", "malformed JWT"),
        (lambda: token(exp=time.time() - 2 * SKEW_S), "expired JWT"),
        (lambda: token(nbf=time.time() + 2 * SKEW_S), "JWT that is not valid yet"),
        (lambda: token(aud="other"), "JWT for another audience"),
        (lambda: token(iss="other"), "JWT of another issuer"),
        (lambda: token(exp=None), "JWT without a claim that is required"),
        (lambda: token(aud=None), "JWT without a claim that is required"),
        (lambda: token(OTHER), "JWT with a wrong signature"),
        (lambda: token(kid="unknown"), "JWT of an unknown key"),
        (lambda: token(tenant=None), "JWT without the tenant's claim"),
        (lambda: token(tenant=7), "JWT without the tenant's claim"),
        (lambda: token(tenant=""), "JWT without the tenant's claim"),
        (lambda: token("secret" * 10, "HS256"), "JWT with an algorithm that is not allowed"),
        (lambda: token("", "none"), "JWT with an algorithm that is not allowed"),
        (lambda: token(RSA, "RS512"), "JWT with an algorithm that is not allowed"),
        (lambda: token(ELLIPTIC, "ES256", "rsa"), "JWT with an algorithm that its key is not for"),
        (lambda: token(RSA, "PS256", "bound"), "JWT with an algorithm that its key is not for"),
        (lambda: token(exp="soon"), "invalid JWT"),
        (lambda: token(iss=None), "JWT without a claim that is required"),
        (lambda: token()[:-2], "JWT with a wrong signature"),
        (lambda: token().rpartition(".")[0] + ".", "JWT with a wrong signature"),
        (lambda: "..", "malformed JWT"),
        (lambda: forged("None", lambda _: b""), "JWT with an algorithm that is not allowed"),
        (lambda: forged("HS256", hmac_of(PUBLIC_PEM)), "JWT with an algorithm that is not allowed"),
        (lambda: forged("RS256", hmac_of(PUBLIC_PEM)), "JWT with a wrong signature"),
        # Extensions without which a token must not be understood (RFC 7515, 4.1.11).
        (lambda: forged("RS256", signed_by_rsa, crit=["http://bound"], **{"http://bound": 1}), "malformed JWT"),
    ],
)
async def test_tokens_that_are_rejected(made: Any, cause: str) -> None:
    keys: Any = Keys()
    with pytest.raises(Unauthenticated) as caught:
        await JwtVerifier(RULES, keys).identity(made())
    assert caught.value.cause == cause


def test_an_api_key_is_no_jwt() -> None:
    assert [looks_like_jwt(each) for each in ("fmx_abc", "a.b.c", "a.b")] == [False, True, False]
