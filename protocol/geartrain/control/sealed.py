"""How a secret is sealed for one device: the layout of the bytes, and what they are bound to.

The platform seals (`geartrain_cloud.control_store.sealing`), and the device opens
(`geartrain_edge.joining.unseal`). Guarantees: what is sealed for one device, app, name and version has a
binding that no other has.

An ephemeral key of P-256 and the key of the device's certificate agree on a key (ECDH, HKDF-SHA256 with
`key_info`) for AES-256-GCM. That key is used once, so that the nonce is zero.
"""

from __future__ import annotations

import hashlib

import msgspec

from geartrain.errors import WireError

VALUE_BYTES_MAX = 4_096
"""Of a secret that the platform sends."""
SPARK_PROCESS = "process spark"
"""Who has the secrets of sinks in the data centre, among devices: none can be called so."""
POINT_BYTES = 65
"""A key of P-256 as an uncompressed point."""
NONCE = bytes(12)
_LAYOUT, _KEY_ID_BYTES, _TAG_BYTES = b"\x01", 8, 16


class Sealed(msgspec.Struct, frozen=True):
    """The parts of a sealed secret. key_id: of the certificate's key; ephemeral: a point; hidden: what
    AES-256-GCM made of the value, with its tag.
    """

    key_id: bytes
    ephemeral: bytes
    hidden: bytes


def key_id(point: bytes) -> bytes:
    """What stands for the key of a certificate, of which this is the point: 8 bytes of its SHA-256."""
    return hashlib.sha256(point).digest()[:_KEY_ID_BYTES]


def key_info(ephemeral: bytes, recipient: bytes) -> bytes:
    """HKDF's info: both points of the agreement."""
    return b"geartrain secret 1" + ephemeral + recipient


def binding(app: str, name: str, device: str, version: int) -> bytes:
    """The associated data of a secret: equal only for equal arguments."""
    return msgspec.json.encode(["geartrain secret 1", app, name, device, version])


def encode_sealed(sealed: Sealed) -> bytes:
    """The bytes of a sealed secret."""
    return _LAYOUT + sealed.key_id + sealed.ephemeral + sealed.hidden


def decode_sealed(data: bytes) -> Sealed:
    """The parts of these bytes; raises `WireError` where they cannot be a sealed secret."""
    first = len(_LAYOUT) + _KEY_ID_BYTES
    second = first + POINT_BYTES
    if data[:1] != _LAYOUT or not second + _TAG_BYTES < len(data) <= second + VALUE_BYTES_MAX + _TAG_BYTES:
        raise WireError(f"a sealed secret of {len(data)} bytes is of no layout that this program knows")
    return Sealed(data[1:first], data[first:second], data[second:])
