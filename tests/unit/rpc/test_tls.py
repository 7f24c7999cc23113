"""Names in a client's certificate, and certificates that are replaced while the server runs."""

import pytest

from feedmux_server.rpc.tls import peer_certificate
from feedmux_server.tenants.model import Unauthenticated
from tests.tables import over


@over("context", [{}, {"x509_pem_cert": []}])
def test_a_call_without_a_certificate(context: dict[str, list[bytes]]) -> None:
    assert peer_certificate(context) is None


@over("pem", [b"", b"junk", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_a_certificate_that_cannot_be_read(pem: bytes) -> None:
    with pytest.raises(Unauthenticated) as caught:
        peer_certificate({"x509_pem_cert": [pem]})
    assert caught.value.cause == "unreadable certificate"
