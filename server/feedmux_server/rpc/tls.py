"""TLS of the ports: certificates that are replaced while the server runs, and the names in a client's certificate.

gRPC asks for the certificate at each handshake and gets the one read last. Open connections keep the certificate they
began with. gRPC for Python either requires a client certificate or does not ask for one, so each case has its own port.
"""

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import grpc
from cryptography import x509
from cryptography.x509.oid import NameOID

from feedmux_server.tenants.model import CertificateName, NameKind, Unauthenticated


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """PEM: the server's certificate chain, its key, and the authorities of clients' certificates."""

    certificate: bytes
    key: bytes
    client_authorities: bytes | None = None


class Tls:
    """The current material, shared by all ports."""

    def __init__(self, material: TlsMaterial) -> None:
        self.material = material

    def replace(self, material: TlsMaterial) -> None:
        """Use new material from the next handshake on."""
        self.material = material

    def credentials(self, *, client_certificate: bool) -> grpc.ServerCredentials:
        given = self.material
        lock = threading.Lock()

        def newer() -> grpc.ServerCertificateConfiguration | None:
            # gRPC's own threads call this; None means "unchanged".
            nonlocal given
            with lock:
                if self.material is given:
                    return None
                given = self.material
                return _configuration(given, client_certificate)

        return grpc.dynamic_ssl_server_credentials(
            _configuration(given, client_certificate),
            newer,  # type: ignore[arg-type]
            require_client_authentication=client_certificate,
        )


def _configuration(material: TlsMaterial, client_certificate: bool) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(material.key, material.certificate)], material.client_authorities if client_certificate else None
    )


@dataclass(frozen=True, slots=True)
class PeerCertificate:
    """What a verified client certificate says."""

    names: tuple[CertificateName, ...]
    not_after_s: float


def peer_certificate(auth_context: Mapping[str, Iterable[bytes]]) -> PeerCertificate | None:
    """The client's certificate, which gRPC has verified; None if there was none. Raises Unauthenticated."""
    pem = next(iter(auth_context.get("x509_pem_cert") or ()), None)
    return _parsed(pem) if pem is not None else None


@lru_cache(maxsize=1024)
def _parsed(pem: bytes) -> PeerCertificate:
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        names = [
            CertificateName(NameKind.COMMON_NAME, str(each.value))
            for each in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        ]
        try:
            others = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            others = x509.SubjectAlternativeName([])
        names += [CertificateName(NameKind.DNS, name) for name in others.get_values_for_type(x509.DNSName)]
        names += [
            CertificateName(NameKind.URI, name) for name in others.get_values_for_type(x509.UniformResourceIdentifier)
        ]
        return PeerCertificate(tuple(names), certificate.not_valid_after_utc.timestamp())
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        raise Unauthenticated("unreadable certificate") from None
