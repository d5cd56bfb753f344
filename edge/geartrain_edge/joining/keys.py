"""A device's key, its signing request, and what a certificate says, by the library for certificates.

Only the short-lived processes that join and renew import this. Guarantees: a key never leaves the device.
"""

from __future__ import annotations

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from geartrain_edge.joining.errors import JoinError


def new_key() -> bytes:
    """A private key, PEM."""
    return ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def request_for(key: bytes) -> str:
    """The signing request for a key, PEM; who signs it gives the name. Raises `JoinError`."""
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return request.sign(private_key(key), hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def end_of(certificate: str, key: bytes, device: str) -> float:
    """When a certificate ends, seconds since 1970; raises `JoinError` unless it is that of the key."""
    try:
        found = x509.load_pem_x509_certificate(certificate.encode())
        names = [name.value for name in found.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)]
        fits = found.public_key() == private_key(key).public_key() and names == [device]
    except ValueError as error:
        raise JoinError(f"the platform sent a certificate that cannot be read: {error}") from None
    if not fits:
        raise JoinError("the platform sent a certificate that is not for this device's key")
    return found.not_valid_after_utc.timestamp()


def private_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    """The key of this device out of a PEM file; raises `JoinError`."""
    try:
        key = serialization.load_pem_private_key(pem, None)
    except ValueError as error:
        raise JoinError(f"the key of this device cannot be read: {error}: remove it and join anew") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise JoinError("the key of this device is of another kind: remove it and join anew")
    return key
