"""Certificates for a cluster on one machine: one authority, a certificate and a key for each identity."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID_DAYS = 365


@dataclass(frozen=True)
class Identity:
    """Whom a certificate speaks for: a user and its group, or a server and its names and addresses."""

    user: str
    group: str | None = None
    names: Sequence[str] = ()
    addresses: Sequence[str] = ()

    def subject(self) -> x509.Name:
        """Return the certificate's subject: Kubernetes reads the user and the group from it."""
        attributes = [x509.NameAttribute(NameOID.COMMON_NAME, self.user)]
        if self.group:
            attributes.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, self.group))
        return x509.Name(attributes)

    def alternative_names(self) -> list[x509.GeneralName]:
        """Return what a server is known as."""
        addresses = (x509.IPAddress(ipaddress.ip_address(address)) for address in self.addresses)
        return [*map(x509.DNSName, self.names), *addresses]


class Authority:
    """A certificate authority in a folder: ca.crt, and NAME.crt with NAME.key for each identity."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def create(self) -> None:
        """Make the authority's own certificate. FileExistsError if there is one."""
        self.folder.mkdir(mode=0o700)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = Identity("decodepool-cluster").subject()
        certificate = _unsigned(subject, subject, key).add_extension(_constraints(is_authority=True), critical=True)
        self._write("ca", certificate.sign(key, hashes.SHA256()), key)

    def issue(self, name: str, identity: Identity) -> None:
        """Write NAME.crt and NAME.key for an identity."""
        key = ec.generate_private_key(ec.SECP256R1())
        issuer, signer = self._signer()
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        certificate = (
            _unsigned(identity.subject(), issuer, key)
            .add_extension(_constraints(is_authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        )
        if known_as := identity.alternative_names():
            certificate = certificate.add_extension(x509.SubjectAlternativeName(known_as), critical=False)
        self._write(name, certificate.sign(signer, hashes.SHA256()), key)

    def _write(self, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        (self.folder / f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        encoded = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,  # the API server reads no PKCS #8 EC key
            serialization.NoEncryption(),
        )
        (self.folder / f"{name}.key").write_bytes(encoded)

    def _signer(self) -> tuple[x509.Name, ec.EllipticCurvePrivateKey]:
        certificate = x509.load_pem_x509_certificate((self.folder / "ca.crt").read_bytes())
        key = serialization.load_pem_private_key((self.folder / "ca.key").read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return certificate.subject, key


def _unsigned(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
    )


def _constraints(*, is_authority: bool) -> x509.BasicConstraints:
    return x509.BasicConstraints(ca=is_authority, path_length=None)
