"""Certificates as bytes: the authority's own, what it signs, and its list of what it has revoked.

`fleet` uses it and keeps the certificates in files. All is pure but the keys, which the library draws.
Guarantees: keys are ECDSA on P-256, and serials have 159 random bits. A device's certificate cannot serve as
a broker's, nor the reverse, and none of them can sign another.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from geartrain_cloud.certs.names import is_address
from geartrain_cloud.errors import CertificateError

Key = ec.EllipticCurvePrivateKey
PublicKey = ec.EllipticCurvePublicKey

BACKDATED = timedelta(hours=1)
"""How much earlier than now a certificate begins, for clocks that are behind."""
CRL_DAYS = 3_650
"""The list is valid for as long as the authority: a broker that finds it outdated refuses the whole fleet."""


@dataclass(frozen=True, slots=True)
class Authority:
    """Who signs: its certificate and its key."""

    certificate: x509.Certificate
    key: Key


def new_key() -> Key:
    """A private key."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: Key) -> bytes:
    """A private key as PEM, not encrypted: its file's mode protects it."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def load_key(pem: bytes, where: str) -> Key:
    """The key in a PEM; raises `CertificateError` naming `where` it was."""
    try:
        key = serialization.load_pem_private_key(pem, None)
    except (ValueError, TypeError) as error:
        raise CertificateError(f"{where} is not a private key that can be read: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertificateError(f"{where} is not a key on an elliptic curve, as all of a fleet's are")
    return key


def load_certificate(pem: bytes, where: str) -> x509.Certificate:
    """The certificate in a PEM; raises `CertificateError` naming `where` it was."""
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise CertificateError(f"{where} is not a certificate: {error}") from None


def pem_of(
    found: x509.Certificate | x509.CertificateRevocationList | x509.CertificateSigningRequest,
) -> bytes:
    """As PEM."""
    return found.public_bytes(serialization.Encoding.PEM)


def fingerprint(certificate: x509.Certificate) -> str:
    """The sha256 of a certificate, in hexadecimal digits."""
    return certificate.fingerprint(hashes.SHA256()).hex()


def self_signed(key: Key, name: str, now: datetime, days: int) -> x509.Certificate:
    """The authority's own certificate."""
    usage = _usage(key_cert_sign=True, crl_sign=True)
    return (
        _begun(key.public_key(), name, _name(name), now, timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )


def requested_key(pem: bytes) -> PublicKey:
    """The key for which a signing request asks; whoever made it has the private one.

    What it says of a name counts for nothing. Raises `CertificateError`.
    """
    try:
        request = x509.load_pem_x509_csr(pem)
        key, is_its = request.public_key(), request.is_signature_valid
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise CertificateError(f"the signing request cannot be read: {error}") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise CertificateError(
            "the signing request is not for a key on the curve P-256, as all of a fleet's are"
        )
    if not is_its:
        raise CertificateError("the signing request is not signed by the key that it is for")
    return key


def key_digest(key: PublicKey) -> str:
    """What stands for a public key: sha256 in hexadecimal digits."""
    encoded = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(encoded).hexdigest()


def signed(
    authority: Authority, key: PublicKey, name: str, hosts: Sequence[str], now: datetime, life: timedelta
) -> x509.Certificate:
    """A certificate for `name`: a broker's where there are hosts, else a client's.

    It ends no later than the authority does.
    """
    issuer = authority.certificate
    left = issuer.not_valid_after_utc - now
    purpose = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
    builder = (
        _begun(key, name, issuer.subject, now, min(life, left))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False
        )
    )
    if hosts:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False
        )
    return builder.sign(authority.key, hashes.SHA256())


def revoked_list(
    authority: Authority, revoked: Iterable[tuple[int, datetime]], now: datetime
) -> x509.CertificateRevocationList:
    """The list of revoked (serial, when)."""
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(authority.certificate.subject)
        .last_update(now - BACKDATED)
        .next_update(now + timedelta(days=CRL_DAYS))
        .add_extension(x509.CRLNumber(int(now.timestamp())), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False
        )
    )
    for serial, when in revoked:
        one = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(when).build()
        builder = builder.add_revoked_certificate(one)
    return builder.sign(authority.key, hashes.SHA256())


def _begun(
    key: PublicKey, name: str, issuer: x509.Name, now: datetime, life: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + life)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(host: str) -> x509.GeneralName:
    return x509.IPAddress(ipaddress.ip_address(host)) if is_address(host) else x509.DNSName(host)


def _usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
