"""A listener that speaks as much of Kafka as a client needs to show who it is, by SASL and PLAIN."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Thread

VERSIONS, HANDSHAKE, AUTHENTICATE = 18, 17, 36
_KNOWN = ((3, 0, 1), (HANDSHAKE, 0, 1), (VERSIONS, 0, 0), (AUTHENTICATE, 0, 0))
_UNSUPPORTED, _REFUSED = 35, 58


class SaslListener(ThreadingTCPServer):
    """shown: (user, password) of each client, none of which is let in."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.shown: list[tuple[str, str]] = []

    @property
    def brokers(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        return  # a client that has gone

    def answer(self, kind: int, version: int, body: bytes) -> bytes:
        """The body of an answer."""
        if kind == VERSIONS:
            known = b"".join(struct.pack(">hhh", *one) for one in _KNOWN)
            return struct.pack(">hi", _UNSUPPORTED if version else 0, len(_KNOWN)) + known
        if kind == HANDSHAKE:
            return struct.pack(">hih", 0, 1, 5) + b"PLAIN"
        _, user, password = body[4:].split(b"\0")
        self.shown.append((user.decode(), password.decode()))
        why = b"who are you, " + password
        return struct.pack(">hh", _REFUSED, len(why)) + why + struct.pack(">i", 0)


class _Handler(StreamRequestHandler):
    server: SaslListener

    def handle(self) -> None:
        while head := self.rfile.read(4):
            request = self.rfile.read(struct.unpack(">i", head)[0])
            kind, version, number, length = struct.unpack(">hhih", request[:10])
            answer = struct.pack(">i", number) + self.server.answer(kind, version, request[10 + length :])
            self.wfile.write(struct.pack(">i", len(answer)) + answer)


@contextmanager
def listening() -> Iterator[SaslListener]:
    """One for one block."""
    with SaslListener() as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()
