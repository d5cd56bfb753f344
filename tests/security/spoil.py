"""Good bytes spoiled: at random, by a protobuf's fields, within what is deflated, by the grammar of HTTP.

Beside the readers of `tests.security.fuzz`. Guarantees: equal seeds give equal bytes; what is spoiled by its
structure stays parseable around the spoiled place, so that it reaches what is behind the parser.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from random import Random

SEED = 20_260_101
BOMB_BYTES = 32 << 20
_DEPTH_MAX = 4
_INFLATED_BYTES_MAX = 1 << 20
_INTERESTING = (
    b"\x00",
    b"\xff",
    b"\x7f",
    b"\x80",
    b"\xff\xff\xff\xff\x0f",
    b"\xff" * 9 + b"\x01",
    b"%00",
    b"../",
)
_NUMBERS = (0, 1, 127, 128, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1)

Way = Callable[[Random, Sequence[bytes]], bytes]


def inputs(seeds: Sequence[bytes], numbers: range, way: Way) -> Iterator[tuple[int, bytes]]:
    """The inputs of these numbers; each is the same in every run."""
    for number in numbers:
        yield number, way(Random(SEED + number), seeds)


def spoiled(rng: Random, seeds: Sequence[bytes]) -> bytes:
    """Good bytes with bits flipped, parts cut out, doubled, exchanged or put in; and noise."""
    if rng.random() < 0.05:
        return rng.randbytes(rng.randrange(200))
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3, 8))):
        _spoil(rng, data, seeds)
    return bytes(data)


def _spoil(rng: Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    at, way = rng.randrange(len(data) + 1), rng.randrange(6)
    if way == 0 and data:
        data[at % len(data)] ^= 1 << rng.randrange(8)
    elif way == 1:
        del data[at:]
    elif way == 2:
        del data[at : at + rng.randrange(1, 16)]
    elif way == 3:
        data[at:at] = rng.choice(_INTERESTING)
    elif way == 4:
        data[at:at] = data[at : at + rng.randrange(1, 64)]
    else:
        other = rng.choice(seeds)
        data[at:] = other[min(at, len(other)) :]


def structured(rng: Random, seeds: Sequence[bytes]) -> bytes:
    """One or two fields of a protobuf changed, at any depth, deflated or not; half the time just bytes."""
    if rng.random() < 0.5:
        return spoiled(rng, seeds)
    data = rng.choice(seeds)
    for _ in range(rng.randrange(1, 3)):
        data = shaken(rng, data, seeds)
    return data


def shaken(rng: Random, data: bytes, seeds: Sequence[bytes], depth: int = 0) -> bytes:
    """A protobuf with one field changed, and the lengths around it right; other bytes are spoiled."""
    inflated = _inflated(data)
    if inflated is not None:
        if rng.random() < 0.002:
            return _BOMB
        return zlib.compress(shaken(rng, inflated, seeds, depth + 1), 1)
    fields = _fields(data)
    if not fields or depth > _DEPTH_MAX:
        return spoiled(rng, [data, *seeds])
    at = rng.randrange(len(fields))
    number, kind, value = fields[at]
    way = rng.randrange(8)
    if way == 0:
        del fields[at]
    elif way == 1:
        fields[at:at] = [fields[at]] * rng.choice((1, 2, 50))
    elif way == 2:
        fields[at] = (rng.choice((number + 1, number - 1, 2**28)), kind, value)
    elif way == 3:
        fields.append(fields.pop(at))
    elif isinstance(value, int):
        fields[at] = (number, kind, rng.choice((value + 1, value - 1, *_NUMBERS)) % 2**64)
    else:
        fields[at] = (number, kind, shaken(rng, value, seeds, depth + 1))
    return b"".join(_field(*one) for one in fields)


def _inflated(data: bytes) -> bytes | None:
    if data[:1] != b"\x78":
        return None
    try:
        return zlib.decompressobj().decompress(data, _INFLATED_BYTES_MAX)
    except zlib.error:
        return None


def _fields(data: bytes) -> list[tuple[int, int, int | bytes]]:
    """(number, wire type, value) of each field; empty where these are no protobuf's bytes."""
    found: list[tuple[int, int, int | bytes]] = []
    at = 0
    try:
        while at < len(data):
            tag, at = _varint(data, at)
            kind = tag & 7
            if kind == 0:
                number, at = _varint(data, at)
                found.append((tag >> 3, kind, number))
                continue
            size, at = {1: (8, at), 5: (4, at)}[kind] if kind != 2 else _varint(data, at)
            if at + size > len(data):
                return []
            found.append((tag >> 3, kind, data[at : at + size]))
            at += size
    except (IndexError, KeyError):
        return []
    return found


def _field(number: int, kind: int, value: int | bytes) -> bytes:
    head = _as_varint(max(number, 0) << 3 | kind)
    if isinstance(value, int):
        return head + _as_varint(value)
    if kind == 2:
        return head + _as_varint(len(value)) + value
    return head + value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise IndexError


def _as_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_BOMB = zlib.compress(bytes(BOMB_BYTES), 9)

_METHODS = (*["GET"] * 20, "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "get", "")
_PARTS = (
    "api", "symbols", "report", "A", "streets", "..", "%2e%2e", "%2F", "%00", "%ff", "etc", "passwd", ".", "",
    "page.js", "index.html", "%F0%9F%A6%80", "<script>", "x" * 300, "~root", "a\\b", "A%2F..%2Fx", ":80",
)  # fmt: skip
_GOOD_PATHS = (
    "/", "/api/symbols", "/api/report/A", "/page.js", "/api/report/%3Cb%3E", "/api/streets", "/api/overspeed",
)  # fmt: skip
_QUERIES = (
    "period=2008", "period=", "period", "token=x", "token=a-token-of-128-random-bits", "after=0", "after=-1",
    "after=99999999999999999999", "after=1e9", "limit=0", "%00=%00", "period=2008&period=2009", "=", "&&&",
    "a=" + "b" * 2_000, "period=%ff", "minute=2026-01-01T00:07:00Z", "minute=x", ";", "period=<b>",
)  # fmt: skip
_HEADERS = (
    "Host: localhost", "Host: evil.example", "Host:", "Host: [::1", "Content-Length: 5",
    "Content-Length: 99999999999999999999", "Content-Length: -1", "Transfer-Encoding: chunked",
    "Transfer-Encoding: gzip, chunked", "Expect: 100-continue", "Expect: x", "Cookie: geartrain=x; \x01=2",
    "Cookie: " + "a=b; " * 200, "Authorization: Bearer x", "Authorization: Bearer a-token-of-128-random-bits",
    "Authorization: Basic eDp5", "Upgrade: websocket\r\nConnection: upgrade", "Range: bytes=0-1,5-",
    "Connection: close", "Accept-Encoding: gzip", "Content-Encoding: br", "X: " + "y" * 9_000,
    "If-Modified-Since: never", "Sec-WebSocket-Key: x", " folded: x", "no colon", "X\x00Y: z",
)  # fmt: skip


def requests(rng: Random, seeds: Sequence[bytes]) -> bytes:
    """An HTTP request put together from good and bad parts; half the time one that was spoiled."""
    if rng.random() < 0.5:
        return spoiled(rng, seeds)
    path = "/" + "/".join(rng.choice(_PARTS) for _ in range(rng.randrange(4)))
    if rng.random() < 0.6:
        path = rng.choice(_GOOD_PATHS)
    if rng.random() < 0.6:
        path += "?" + "&".join(rng.choice(_QUERIES) for _ in range(rng.randrange(1, 4)))
    version = rng.choice(("HTTP/1.1",) * 20 + ("HTTP/1.0", "HTTP/2.0", "HTTP/9.9.9", ""))
    lines = [f"{rng.choice(_METHODS)} {path} {version}"]
    if rng.random() < 0.9:
        lines.append("Host: localhost")
    lines += [rng.choice(_HEADERS) for _ in range(rng.choice((0, 0, 0, 0, 0, 1, 1, 1, 2, 3, 200)))]
    whole = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
    return whole + rng.choice((b"",) * 8 + (b"hello", b"5\r\nhello\r\n0\r\n\r\n", b"ffffffffffffffff\r\n"))
