"""Certificates for tests: an authority and the certificates that it signs."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from feedmux.target import Tls


class Authority:
    """Signs certificates into a folder as `NAME.pem` and `NAME.key`; its own is `ca.pem`."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self.folder = folder
        self.path = folder / f"{name}.pem"
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = _name(name)
        made = self._builder(self._subject, self._key.public_key(), 3600).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        self.path.write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def sign(self, name: str, *others: x509.GeneralName, lasts_s: float = 3600) -> Tls:
        """The files, as a client uses them."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(_name(name), key.public_key(), lasts_s)
        if others:
            builder = builder.add_extension(x509.SubjectAlternativeName(others), critical=False)
        certificate, private = (self.folder / f"{name}.{kind}" for kind in ("pem", "key"))
        certificate.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        private.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return Tls(root=self.path, certificate=certificate, key=private, server_name="localhost")

    def _builder(
        self, subject: x509.Name, public: ec.EllipticCurvePublicKey, lasts_s: float
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=5))
            .not_valid_after(now + timedelta(seconds=lasts_s))
        )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
