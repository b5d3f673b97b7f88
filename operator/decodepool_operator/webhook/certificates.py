"""What makes the webhook trusted, in a Secret: an authority of its own, a server certificate, and its path."""

from __future__ import annotations

import base64
import binascii
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS = 3650
AUTHORITY_RENEW_DAYS = 365
SERVER_DAYS = 90
SERVER_RENEW_DAYS = 30
"""Days left at which a certificate is made anew: long before anybody would miss it."""
BACKDATED = timedelta(hours=1)
"""For clocks that are behind."""

FIELDS = ("ca.crt", "ca.key", "tls.crt", "tls.key", "path")
PATH = re.compile(rb"/inject/[0-9a-f]{32}")


@dataclass(frozen=True)
class Certificates:
    """PEM texts, and the one path at which reviews are answered. Any pod may reach the webhook, and what it answers
    tells of a pool's spec: so the path is a word that the API server alone is told.
    """

    authority: bytes
    authority_key: bytes
    server: bytes
    server_key: bytes
    path: bytes

    def to_secret_data(self) -> dict[str, str]:
        """Return the data of the Secret that keeps them."""
        texts = (self.authority, self.authority_key, self.server, self.server_key, self.path)
        return {name: base64.b64encode(text).decode() for name, text in zip(FIELDS, texts, strict=True)}

    @classmethod
    def from_secret_data(cls, data: Mapping[str, str]) -> Certificates | None:
        """Return what a Secret keeps; None where that is not a set of certificates."""
        try:
            found = cls(*(base64.b64decode(data[name]) for name in FIELDS))
            x509.load_pem_x509_certificate(found.authority)
            x509.load_pem_x509_certificate(found.server)
            serialization.load_pem_private_key(found.authority_key, None)
            serialization.load_pem_private_key(found.server_key, None)
        except (KeyError, ValueError, TypeError, binascii.Error):
            return None
        return found if PATH.fullmatch(found.path) else None


def renewed(known: Certificates | None, host: str, now: datetime) -> Certificates:
    """Return certificates that are good for `host` for weeks: the known ones where they are."""
    if known is None or _days_left(known.authority, now) < AUTHORITY_RENEW_DAYS:
        authority, key = _make_authority(now)
        path = known.path if known else f"/inject/{secrets.token_hex(16)}".encode()
    elif _is_good(known, host, now):
        return known
    else:
        authority, key, path = known.authority, known.authority_key, known.path
    server, server_key = _make_server(host, authority, key, now)
    return Certificates(authority, key, server, server_key, path)


def _is_good(known: Certificates, host: str, now: datetime) -> bool:
    server = x509.load_pem_x509_certificate(known.server)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    signed_by = x509.load_pem_x509_certificate(known.authority)
    try:
        server.verify_directly_issued_by(signed_by)
    except Exception:
        return False
    return host in names.get_values_for_type(x509.DNSName) and _days_left(known.server, now) >= SERVER_RENEW_DAYS


def _days_left(pem: bytes, now: datetime) -> float:
    return (x509.load_pem_x509_certificate(pem).not_valid_after_utc - now) / timedelta(days=1)


def _make_authority(now: datetime) -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("decodepool webhook authority")
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    made = (
        _builder(name, name, key.public_key(), now, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    return _pem(made), _key_pem(key)


def _make_server(host: str, authority: bytes, authority_key: bytes, now: datetime) -> tuple[bytes, bytes]:
    signer = serialization.load_pem_private_key(authority_key, None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)  # nobody else makes them
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.load_pem_x509_certificate(authority).subject
    made = (
        _builder(_name(host[:64]), issuer, key.public_key(), now, SERVER_DAYS)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(signer, hashes.SHA256())
    )
    return _pem(made), _key_pem(key)


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + timedelta(days=days))
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
