"""A broker that misbehaves on command: just enough MQTT 3.1.1 to refuse, to fall silent, and to hang up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

CONNECT, CONNACK, PUBLISH, PUBACK, SUBSCRIBE, SUBACK, PINGREQ, DISCONNECT = 1, 2, 3, 4, 8, 9, 12, 14


@dataclass
class ScriptedBroker:
    """What it answers; None is silence. `seen`: type and body of each packet received."""

    connack: int | None = 0
    suback: int | None = 1
    puback: bool = True
    pings: bool = True
    port: int = 0
    seen: list[tuple[int, bytes]] = field(default_factory=list)
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    _writer: asyncio.StreamWriter | None = None

    def published(self) -> list[bytes]:
        """Payloads of the publishes received, in order."""
        bodies = [body for kind, body in self.seen if kind == PUBLISH]
        return [body[2 + int.from_bytes(body[:2], "big") + 2 :] for body in bodies]

    async def acknowledge(self, count: int) -> None:
        """Send the puback of the first `count` publishes."""
        bodies = [body for kind, body in self.seen if kind == PUBLISH]
        for body in bodies[:count]:
            self._send(PUBACK << 4, _packet_id(body))

    def send(self, topic: bytes, payload: bytes, number: int) -> None:
        """Publish to the client with QoS 1."""
        head = len(topic).to_bytes(2, "big") + topic + number.to_bytes(2, "big")
        self._send(PUBLISH << 4 | 2, head + payload)

    def cut(self) -> None:
        """Drop the connection as a crash does."""
        assert self._writer is not None
        self._writer.transport.abort()

    def _send(self, first: int, body: bytes) -> None:
        assert self._writer is not None
        size, length = len(body), b""
        while size > 127:
            length, size = length + bytes([size & 127 | 128]), size >> 7
        self._writer.write(bytes([first]) + length + bytes([size]) + body)

    def _answer(self, kind: int, body: bytes) -> None:
        if kind == CONNECT and self.connack is not None:
            self._send(CONNACK << 4, bytes([0, self.connack]))
        elif kind == SUBSCRIBE and self.suback is not None:
            self._send(SUBACK << 4, body[:2] + bytes([self.suback]))
        elif kind == PUBLISH and self.puback:
            self._send(PUBACK << 4, _packet_id(body))
        elif kind == PINGREQ and self.pings:
            self._send(13 << 4, b"")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        # The client's end is what is tested: however it comes, it is an end.
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                first = (await reader.readexactly(1))[0]
                size = shift = 0
                while True:
                    more = (await reader.readexactly(1))[0]
                    size |= (more & 127) << shift
                    shift += 7
                    if more < 128:
                        break
                body = await reader.readexactly(size)
                self.seen.append((first >> 4, body))
                self._answer(first >> 4, body)
        self.closed.set()
        writer.close()


def _packet_id(publish: bytes) -> bytes:
    end = 2 + int.from_bytes(publish[:2], "big")
    return publish[end : end + 2]


@asynccontextmanager
async def scripted(**answers: object) -> AsyncIterator[ScriptedBroker]:
    """A scripted broker on a free port of the loopback interface."""
    broker = ScriptedBroker(**answers)  # type: ignore[arg-type]
    server = await asyncio.start_server(broker._serve, "127.0.0.1", 0)
    broker.port = server.sockets[0].getsockname()[1]
    async with server:
        yield broker
