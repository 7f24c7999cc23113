"""Who calls: metadata come before a certificate, and wrong metadata never fall back to it."""

from types import SimpleNamespace
from typing import Any

import pytest

from feedmux_server.core.errors import ErrorReason
from feedmux_server.rpc import auth as auth_module
from feedmux_server.rpc.auth import ANONYMOUS, Authenticator
from feedmux_server.rpc.tls import PeerCertificate, peer_certificate
from feedmux_server.tenants.model import CredentialKind, Identity, Unauthenticated
from tests.tables import over

BY_KEY = Identity("by-key", CredentialKind.API_KEY, "hash")
BY_JWT = Identity("by-jwt", CredentialKind.JWT, "key id")
BY_CERTIFICATE = Identity("by-certificate", CredentialKind.CERTIFICATE, "dns:a")


class Known:
    """Tenants and JWTs: the key `good` and the JWT `a.good.jwt` are valid."""

    tenants = frozenset({"by-key", "by-jwt", "by-certificate"})

    def by_key(self, token: str, now_s: float) -> Identity:
        if token != "good":
            raise Unauthenticated("unknown key")
        return BY_KEY

    def by_certificate(self, names: object, not_after_s: float, now_s: float) -> Identity:
        return BY_CERTIFICATE

    async def identity(self, token: str) -> Identity:
        return BY_JWT if token == "a.good.jwt" else Identity("nobody", CredentialKind.JWT, "key id")

    def holds(self, identity: Identity, now_s: float = 0.0) -> bool:
        return identity.credential != "revoked"

    def label(self, identity: Identity) -> str:
        return "ci" if identity is BY_KEY else ""


def context(*metadata: tuple[str, str | bytes]) -> Any:
    return SimpleNamespace(invocation_metadata=lambda: metadata, auth_context=dict)


def authenticator(*, jwt: bool = True) -> Authenticator:
    known: Any = Known()
    return Authenticator(known, known if jwt else None)


@pytest.fixture(params=[False, True])
def certificate(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the caller has a client certificate."""
    found = PeerCertificate((), 0.0) if request.param else None
    monkeypatch.setattr(auth_module, "peer_certificate", lambda _: found)
    return bool(request.param)


@pytest.mark.parametrize(
    ("token", "identity"),
    [
        ("Bearer good", BY_KEY),
        ("bearer  good ", BY_KEY),
        (b"Bearer good", BY_KEY),
        ("Bearer a.good.jwt", BY_JWT),
    ],
)
async def test_valid_metadata(certificate: bool, token: str | bytes, identity: Identity) -> None:
    assert await authenticator().identify(context(("authorization", token))) == identity


@pytest.mark.parametrize("token", ["Bearer wrong", "Basic good", "good", "", "Bearer", "Bearer a.unknown.jwt"])
async def test_wrong_metadata_are_rejected_whatever_the_certificate(certificate: bool, token: str) -> None:
    with pytest.raises(Unauthenticated) as caught:
        await authenticator().identify(context(("authorization", token)))
    assert caught.value.reason is ErrorReason.UNAUTHENTICATED
    assert "is not valid" in caught.value.message


async def test_metadata_given_twice_are_rejected(certificate: bool) -> None:
    with pytest.raises(Unauthenticated):
        await authenticator().identify(context(*[("authorization", "Bearer good")] * 2))


async def test_without_metadata_a_certificate_counts(certificate: bool) -> None:
    if certificate:
        assert await authenticator().identify(context()) == BY_CERTIFICATE
    else:
        with pytest.raises(Unauthenticated) as caught:
            await authenticator().identify(context(("other", "x")))
        assert caught.value.cause == "no credentials"
        assert "no credentials" in caught.value.message


async def test_without_jwt_settings_a_jwt_is_no_key() -> None:
    with pytest.raises(Unauthenticated):
        await authenticator(jwt=False).identify(context(("authorization", "Bearer a.good.jwt")))


async def test_without_authentication_everybody_is_one_tenant() -> None:
    auth = Authenticator(None)
    assert await auth.identify(context(("authorization", "anything"))) == ANONYMOUS
    assert auth.holds(BY_JWT)
    assert auth.name_of(ANONYMOUS) == "none"


@over(
    ("identity", "jwt", "holds"),
    [
        (BY_KEY, True, True),
        (Identity("by-key", CredentialKind.API_KEY, "revoked"), True, False),
        (BY_JWT, True, True),
        (BY_JWT, False, False),
        (Identity("by-jwt", CredentialKind.JWT, "revoked"), True, False),
    ],
)
def test_a_stream_lasts_as_long_as_its_credential(identity: Identity, jwt: bool, holds: bool) -> None:
    assert authenticator(jwt=jwt).holds(identity) == holds


def test_the_audit_log_names_a_credential_by_its_label() -> None:
    assert [authenticator().name_of(each) for each in (BY_KEY, BY_JWT)] == ["api_key:ci", "jwt"]


@over("context", [{}, {"x509_pem_cert": []}])
def test_a_call_without_a_certificate(context: dict[str, list[bytes]]) -> None:
    assert peer_certificate(context) is None


@over("pem", [b"", b"junk", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_a_certificate_that_cannot_be_read(pem: bytes) -> None:
    with pytest.raises(Unauthenticated) as caught:
        peer_certificate({"x509_pem_cert": [pem]})
    assert caught.value.cause == "unreadable certificate"
