"""MQTT control packets as the fault proxy sees them: kind, quality, topic and packet id, and all their bytes.

Under the proxy. Guarantees: 3.1.1 and 5 are framed alike, and nothing behind a packet's id is looked at; what
is no MQTT is a `FramingError`, and a packet above the cap is one too, before any of its body is read.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import IntEnum

PACKET_BYTES_MAX = 128 << 20
"""Above the largest publish of any scenario: a bound, not a policy."""

_LENGTH_BYTES_MAX = 4


class FramingError(Exception):
    """The bytes are no MQTT."""


class Kind(IntEnum):
    """The type of a control packet, by MQTT's own numbers."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


_WITH_ID = frozenset(
    {Kind.PUBACK, Kind.PUBREC, Kind.PUBREL, Kind.PUBCOMP}
    | {Kind.SUBSCRIBE, Kind.SUBACK, Kind.UNSUBSCRIBE, Kind.UNSUBACK}
)


@dataclass(frozen=True, slots=True)
class Packet:
    """One control packet. topic: of a PUBLISH, else empty; packet_id: 0 where the kind has none; level: of a
    CONNECT, 4 for MQTT 3.1.1 and 5 for MQTT 5, else 0; data: all its bytes.
    """

    kind: Kind
    data: bytes
    topic: str = ""
    packet_id: int = 0
    qos: int = 0
    level: int = 0

    @property
    def payload(self) -> bytes:
        """Of a PUBLISH of MQTT 3.1.1."""
        start = 1
        while self.data[start] & 0x80:
            start += 1
        topic_bytes = int.from_bytes(self.data[start + 1 : start + 3])
        return self.data[start + 3 + topic_bytes + (2 if self.qos else 0) :]

    @property
    def repeated(self) -> bytes:
        """Its bytes as a sender would send them once more: a PUBLISH of QoS 1 or 2 with the DUP flag."""
        if self.kind is Kind.PUBLISH and self.qos:
            return bytes([self.data[0] | 0x08]) + self.data[1:]
        return self.data


async def read_packet(reader: asyncio.StreamReader) -> Packet | None:
    """The next packet of a stream, None at its end; raises `FramingError`, for an end within a packet too."""
    first = await reader.read(1)
    if not first:
        return None
    try:
        head, length = bytearray(first), 0
        for place in range(_LENGTH_BYTES_MAX):
            byte = (await reader.readexactly(1))[0]
            head.append(byte)
            length |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                break
        else:
            raise FramingError("a length of more than four bytes")
        if length > PACKET_BYTES_MAX:
            raise FramingError(f"a packet of {length} bytes")
        body = await reader.readexactly(length)
    except asyncio.IncompleteReadError as error:
        raise FramingError("the stream ends within a packet") from error
    return parse(bytes(head), body)


def parse(head: bytes, body: bytes) -> Packet:
    """A packet of its fixed header and the rest; raises `FramingError`."""
    try:
        kind = Kind(head[0] >> 4)
    except ValueError:
        raise FramingError("packet type 0") from None
    data = head + body
    try:
        if kind is Kind.PUBLISH:
            qos, end = head[0] >> 1 & 3, 2 + int.from_bytes(_exactly(body, 0, 2))
            topic = _exactly(body, 2, end).decode("utf-8", "backslashreplace")
            packet_id = int.from_bytes(_exactly(body, end, end + 2)) if qos else 0
            return Packet(kind, data, topic, packet_id, qos)
        if kind in _WITH_ID:
            return Packet(kind, data, packet_id=int.from_bytes(_exactly(body, 0, 2)))
        if kind is Kind.CONNECT:
            name_end = 2 + int.from_bytes(_exactly(body, 0, 2))
            return Packet(kind, data, level=_exactly(body, name_end, name_end + 1)[0])
    except IndexError:
        raise FramingError(f"a {kind.name} that is too short") from None
    return Packet(kind, data)


def _exactly(body: bytes, start: int, end: int) -> bytes:
    if end > len(body):
        raise IndexError
    return body[start:end]
