"""Keys and their encoded bytes, whose order is the order of the keys.

A key is a str, int, bool or bytes, or a tuple of them. The bytes name the key's state, choose its shard and
order results, on every tier. Guarantees: equal bytes iff equal type and value; a tuple sorts by its elements.
Each element is a tag and what follows it. A bool is one byte, an int eight big-endian bytes with the sign bit
flipped. A str or bytes is its bytes with 0x00 escaped as 0x00 0xFF and ended by 0x00 0x01 (as FoundationDB's
tuple layer does).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from geartrain.errors import SchemaError

_BOOL, _INT, _BYTES, _STR, TUPLE = b"\x01", b"\x02", b"\x03", b"\x04", b"\x05"
_END = b"\x00\x01"
_NO_BYTES = _BYTES + _END
_SIGN = 1 << 63


def encode_key(key: Any) -> bytes:
    """The encoded bytes of a key; raises `SchemaError` for a value that cannot be one."""
    return _encode_str(key) if type(key) is str else _encode(key)


def encode_keys(keys: list[Any]) -> list[bytes]:
    """The encoded bytes of each of several keys; raises `SchemaError` as `encode_key`."""
    return list(map(_encode_str if set(map(type, keys)) == {str} else encode_key, keys))


def encode_elements(time: int, name: str, number: int, path: bytes) -> bytes:
    """What follows `TUPLE` in the encoded bytes of this tuple, a record's place in canonical order."""
    head = _INT + (time + _SIGN).to_bytes(8, "big") + _encode_str(name)
    return head + _INT + (number + _SIGN).to_bytes(8, "big") + (_element(path) if path else _NO_BYTES)


@lru_cache(maxsize=65_536)
def _encode_str(key: str) -> bytes:
    return _encode(key)


def _encode(key: Any) -> bytes:
    if isinstance(key, tuple):
        return TUPLE + b"".join(_element(part) for part in key)
    return _element(key)


def _element(part: Any) -> bytes:
    if isinstance(part, bool):
        return _BOOL + (b"\x01" if part else b"\x00")
    if isinstance(part, int):
        if not -_SIGN <= part < _SIGN:
            raise SchemaError(f"key {part} does not fit into 64 bits")
        return _INT + (part + _SIGN).to_bytes(8, "big")
    if isinstance(part, str):
        try:
            return _STR + part.encode().replace(b"\x00", b"\x00\xff") + _END
        except UnicodeEncodeError:
            raise SchemaError("a key holds text that is not valid Unicode") from None
    if isinstance(part, bytes):
        return _BYTES + part.replace(b"\x00", b"\x00\xff") + _END
    raise SchemaError(f"a key must be str, int, bool, bytes or a tuple of them, got {type(part).__name__}")


def decode_key(raw: bytes) -> Any:
    """The key of its encoded bytes; raises `SchemaError` for bytes that `encode_key` cannot have made."""
    parts: list[Any] = []
    at = 1 if raw[:1] == TUPLE else 0
    while at < len(raw):
        part, at = _decode_element(raw, at)
        parts.append(part)
    if raw[:1] == TUPLE:
        return tuple(parts)
    if len(parts) != 1:
        raise SchemaError("encoded key is damaged")
    return parts[0]


def _decode_element(raw: bytes, at: int) -> tuple[Any, int]:
    tag = raw[at : at + 1]
    if tag == _BOOL:
        return raw[at + 1 : at + 2] == b"\x01", at + 2
    if tag == _INT:
        return int.from_bytes(raw[at + 1 : at + 9], "big") - _SIGN, at + 9
    if tag in (_STR, _BYTES):
        end = raw.find(_END, at + 1)
        if end >= 0:
            content = raw[at + 1 : end].replace(b"\x00\xff", b"\x00")
            return (content.decode() if tag == _STR else content), end + 2
    raise SchemaError("encoded key is damaged")
