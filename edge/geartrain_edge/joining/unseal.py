"""`python -m geartrain_edge.joining.unseal`: opens secrets that are sealed for this device, and ends.

Between the parent of a device's agents, which starts it, and the files that apps read. Its request comes on
stdin, its answer is one line on stdout, and neither holds a value. Guarantees: only what was sealed for this
device's key, under its name and for this app, secret and version, is written. An older version never
replaces a newer one. It may be killed at any step.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from geartrain.adapters.secret_shelf import SecretShelf
from geartrain.control.sealed import NONCE, binding, decode_sealed, key_id, key_info
from geartrain.control.states import SealedSecret
from geartrain.errors import WireError
from geartrain_edge.joining.errors import JoinError
from geartrain_edge.joining.keys import private_key
from geartrain_edge.parent.secrets import Opened, OpenRequest

_REQUEST_BYTES_MAX = 1 << 20


def main() -> int:
    """Open what the request says; returns 0 where all of it is there."""
    os.umask(0o077)
    try:
        request = msgspec.json.decode(sys.stdin.buffer.read(_REQUEST_BYTES_MAX), type=OpenRequest)
    except msgspec.DecodeError as error:
        sys.stderr.write(f"the request cannot be read: {error}\n")
        return 2
    whys = open_all(request)
    sys.stdout.buffer.write(msgspec.json.encode(Opened(whys)) + b"\n")
    sys.stdout.buffer.flush()
    return 1 if any(whys) else 0


def open_all(request: OpenRequest) -> tuple[str, ...]:
    """Open and write each secret; in their order why one is not there, empty where it is."""
    try:
        key = private_key(Path(request.identity).read_bytes())
    except (OSError, JoinError) as error:
        return tuple(f"the device's key cannot be used: {error}" for _ in request.secrets)
    shelf = SecretShelf(Path(request.folder))
    return tuple(_open(one, request.device, key, shelf) for one in request.secrets)


def _open(one: SealedSecret, device: str, key: ec.EllipticCurvePrivateKey, shelf: SecretShelf) -> str:
    try:
        return shelf.put(one.app, one.name, one.version, unsealed(one, device, key))
    except WireError as error:
        return str(error)
    except OSError as error:
        return f"it cannot be written: {error.strerror or error}"


def unsealed(one: SealedSecret, device: str, key: ec.EllipticCurvePrivateKey) -> bytes:
    """The value of a secret that was sealed for this key and this device; raises `WireError`."""
    sealed = decode_sealed(one.sealed)
    own = key.public_key().public_bytes(
        serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
    )
    if sealed.key_id != key_id(own):
        raise WireError("it is sealed for another certificate than this device has")
    try:
        theirs = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), sealed.ephemeral)
        shared = key.exchange(ec.ECDH(), theirs)
        secret = HKDF(hashes.SHA256(), 32, None, key_info(sealed.ephemeral, own)).derive(shared)
        bound = binding(one.app, one.name, device, one.version)
        return AESGCM(secret).decrypt(NONCE, sealed.hidden, bound)
    except (InvalidTag, ValueError):
        raise WireError(
            "it was sealed for another device, app, name or version, or was damaged on its way"
        ) from None


if __name__ == "__main__":
    sys.exit(main())
