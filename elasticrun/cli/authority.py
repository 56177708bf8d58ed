"""A small certificate authority for one job: what TLS needs, and no more.

The authority signs certificates of hosts only, no further authorities. A host's certificate serves both ends
of a connection, as any agent may host the master. It holds exactly the names given: an agent compares them
with the name in ``--rdzv-endpoint``.

Only this module imports ``cryptography``, which is an extra: agents and masters have gRPC's own TLS.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from elasticrun.dataclass import dataclass

#: A certificate is valid from this long before it was made, as the clocks of hosts differ.
_SKEW = timedelta(hours=1)
_PRIVATE = serialization.NoEncryption()


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key."""

    cert: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def cert_pem(self) -> bytes:
        return self.cert.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return self.key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, _PRIVATE)


def load(cert_pem: bytes, key_pem: bytes) -> Pair:
    """Load an authority made before. Raises ValueError or TypeError for an unusable or unmatched pair."""
    cert = x509.load_pem_x509_certificate(cert_pem)
    key = serialization.load_pem_private_key(key_pem, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != cert.public_key():
        raise ValueError("the key is not that of the certificate")
    return Pair(cert, key)


def new_authority(name: str, now: datetime, days: int) -> Pair:
    """Make an authority that signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(name)
    usage = _usage(signs_certificates=True)
    builder = _builder(subject, subject, key, now, now + timedelta(days=days))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(usage, critical=True)
    builder = builder.add_extension(
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
    )
    return Pair(builder.sign(key, hashes.SHA256()), key)


def issue(authority: Pair, names: Sequence[str], now: datetime, days: int) -> Pair:
    """Make a certificate for a host with these names and addresses; it ends no later than its authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    end = min(now + timedelta(days=days), authority.cert.not_valid_after_utc)
    builder = _builder(_name(names[0]), authority.cert.subject, key, now, end)
    both = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    for extension, is_critical in (
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage(signs_certificates=False), True),
        (both, False),
        (x509.SubjectAlternativeName([_alternative(name) for name in names]), False),
        (signer, False),
    ):
        builder = builder.add_extension(extension, critical=is_critical)
    return Pair(builder.sign(authority.key, hashes.SHA256()), key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, end: datetime
) -> x509.CertificateBuilder:
    begin = min(now, end) - _SKEW
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])  # the length that X.520 allows


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
