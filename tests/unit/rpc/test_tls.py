"""Names in a client's certificate, and certificates that are replaced while the server runs."""

from pathlib import Path

import pytest
from cryptography import x509

from feedmux_server.rpc.tls import Tls, TlsMaterial, peer_certificate
from feedmux_server.tenants.model import CertificateName, NameKind, Unauthenticated
from tests.integration.certificates import Authority
from tests.tables import over


def test_names_of_a_certificate(tmp_path: Path) -> None:
    others = x509.DNSName("a.example.com"), x509.UniformResourceIdentifier("spiffe://example.com/a")
    Authority(tmp_path).sign("search", *others)
    pem = (tmp_path / "search.pem").read_bytes()
    found = peer_certificate({"x509_pem_cert": [pem]})
    assert found is not None
    assert set(found.names) >= {
        CertificateName(NameKind.COMMON_NAME, "search"),
        CertificateName(NameKind.DNS, "a.example.com"),
        CertificateName(NameKind.URI, "spiffe://example.com/a"),
    }
    assert found.not_after_s == x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp()


@over("context", [{}, {"x509_pem_cert": []}])
def test_a_call_without_a_certificate(context: dict[str, list[bytes]]) -> None:
    assert peer_certificate(context) is None


@over("pem", [b"", b"junk", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_a_certificate_that_cannot_be_read(pem: bytes) -> None:
    with pytest.raises(Unauthenticated) as caught:
        peer_certificate({"x509_pem_cert": [pem]})
    assert caught.value.cause == "unreadable certificate"


def test_ports_take_new_material_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path)
    authority.sign("one")
    made: list[object] = []
    monkeypatch.setattr(
        "grpc.dynamic_ssl_server_credentials", lambda first, newer, **options: made.extend((first, newer, options))
    )
    first = TlsMaterial((tmp_path / "one.pem").read_bytes(), (tmp_path / "one.key").read_bytes(), b"authorities")
    tls = Tls(first)
    tls.credentials(client_certificate=True)
    _, newer, options = made
    assert options == {"require_client_authentication": True}
    assert callable(newer)
    assert newer() is None, "unchanged"
    tls.replace(TlsMaterial(first.certificate, first.key))
    assert newer() is not None
    assert newer() is None
