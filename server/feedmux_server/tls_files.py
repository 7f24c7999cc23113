"""Reads and checks TLS files: gRPC's error for a bad pair says no more than its error for a port in use."""

import ssl
from pathlib import Path

from feedmux_server.config.errors import ConfigError, FileUnreadable
from feedmux_server.config.sections import TlsSection
from feedmux_server.rpc.tls import TlsMaterial


def tls_paths(section: TlsSection) -> list[Path]:
    return [path for path in (section.certificate_file, section.key_file, section.client_ca_file) if path is not None]


def load_tls(section: TlsSection) -> TlsMaterial:
    """Raises ConfigError."""
    material = TlsMaterial(
        _read("certificate_file", section.certificate_file),
        _read("key_file", section.key_file),
        _read("client_ca_file", section.client_ca_file) if section.client_ca_file else None,
    )
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            section.certificate_file, section.key_file, password=_no_password
        )
    except (ssl.SSLError, ValueError, OSError):
        raise ConfigError(
            f"tls.certificate_file and tls.key_file: {section.certificate_file} and {section.key_file} are not a"
            " certificate chain and its private key in PEM without a passphrase. To check whether they belong together,"
            " compare the output of `openssl x509 -pubkey` and `openssl pkey -pubout`"
        ) from None
    if material.client_authorities is not None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cadata=material.client_authorities.decode())
        except (ssl.SSLError, ValueError):
            raise ConfigError(
                f"tls.client_ca_file: {section.client_ca_file} holds no certificate in PEM. Name the file of the"
                " authorities that sign the clients' certificates"
            ) from None
    return material


def _no_password() -> str:
    raise ValueError("encrypted keys are not supported")


def _read(field: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise FileUnreadable(
            f"tls.{field}: {path} cannot be read: {error.strerror}. Name a PEM file that this user may read"
        ) from None
