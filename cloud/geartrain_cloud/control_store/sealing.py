"""Secrets as the platform keeps them and as it gives them away, by the library for cryptography.

Under `Secrets`. Guarantees: what is kept is encrypted under a key that lies in a file of its own, and is
bound to its app, name and version. What is sealed can be read only with the key of one certificate of the
fleet's authority, and only under the binding that it was sealed with.
"""

from __future__ import annotations

import hmac
import os
import stat
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from geartrain.adapters.files import write_durable
from geartrain.control.sealed import NONCE, Sealed, binding, encode_sealed, key_id, key_info
from geartrain_cloud.control_store.errors import StoreError
from geartrain_cloud.errors import CertificateError

KEY_BYTES = 32
_NONCE_BYTES = 12


class KeptKey:
    """The key of the secrets of a platform, in the file at `path`; all methods raise `StoreError`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def make(self) -> None:
        """Make it where there is none."""
        if not self._path.exists():
            try:
                write_durable(self._path, os.urandom(KEY_BYTES).hex().encode() + b"\n")
            except OSError as error:
                raise StoreError(f"{self._path} cannot be written: {error.strerror or error}") from None

    def hide(self, value: bytes, app: str, name: str, version: int) -> bytes:
        """The value as the store keeps it."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._cipher().encrypt(nonce, value, binding(app, name, "", version))

    def show(self, kept: bytes, app: str, name: str, version: int) -> bytes:
        """The value that `hide` has made this of."""
        try:
            bound = binding(app, name, "", version)
            return self._cipher().decrypt(kept[:_NONCE_BYTES], kept[_NONCE_BYTES:], bound)
        except (InvalidTag, ValueError):
            raise StoreError(
                f"{self._path} is not the key of secret {name} of app {app}: bring that file back, or "
                "set the secret anew"
            ) from None

    def digest(self, value: bytes) -> str:
        """What stands for a value where equal ones are to be known: of use to nobody without the key."""
        return hmac.digest(self._key(), b"digest" + value, "sha256").hex()

    def _cipher(self) -> AESGCM:
        return AESGCM(self._key())

    def _key(self) -> bytes:
        try:
            if stat.S_IMODE(self._path.stat().st_mode) & 0o077:
                raise StoreError(f"{self._path}: others may read it: run chmod 600 {self._path}")
            key = bytes.fromhex(self._path.read_text(encoding="ascii"))
        except OSError as error:
            raise StoreError(
                f"{self._path}, the key of the secrets, cannot be read: {error.strerror or error}: bring it "
                "back from a backup"
            ) from None
        except ValueError:
            key = b""
        if len(key) != KEY_BYTES:
            raise StoreError(f"{self._path} holds no key of secrets: bring it back from a backup")
        return key


def recipient(certificate: bytes, authority: x509.Certificate, device: str) -> tuple[int, bytes]:
    """The serial of a device's certificate (DER) and its key as a point.

    Raises `CertificateError` unless the authority has issued it to the device, for a key of P-256.
    """
    try:
        found = x509.load_der_x509_certificate(certificate)
        found.verify_directly_issued_by(authority)
        names = [name.value for name in found.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)]
        key = found.public_key()
    except (ValueError, TypeError, InvalidSignature):
        raise CertificateError(f"device {device} shows a certificate of another authority") from None
    if names != [device]:
        raise CertificateError(f"device {device} shows the certificate of another one")
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise CertificateError(f"the key of device {device} is none of P-256: have it join anew")
    return found.serial_number, _point(key)


def seal(value: bytes, point: bytes, bound: bytes) -> bytes:
    """Seal a value for who has the key of this point (`geartrain.control.sealed`); bound: its binding."""
    own = ec.generate_private_key(ec.SECP256R1())
    ephemeral = _point(own.public_key())
    shared = own.exchange(ec.ECDH(), ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), point))
    secret = HKDF(hashes.SHA256(), 32, None, key_info(ephemeral, point)).derive(shared)
    return encode_sealed(Sealed(key_id(point), ephemeral, AESGCM(secret).encrypt(NONCE, value, bound)))


def _point(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint)
