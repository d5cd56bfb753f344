"""The answer of a page that has as many connections as it takes: 503 with a sentence, and it hangs up.

Beside a page's answers. Guarantees: whoever is refused takes a socket and a few bytes, for `REFUSAL_S` at
most; what comes beyond `REFUSALS_MAX` of them at once is cut off without a word.
"""

from __future__ import annotations

import asyncio
import json
from typing import cast

CONNECTIONS_MAX = 256
"""Connections that a page answers, those that are kept open between two requests among them."""
REFUSALS_MAX = 64
REFUSAL_S = 5.0

SENTENCE = f"this page has {CONNECTIONS_MAX} connections, which is all that it takes: try again in a moment"


class Refusal(asyncio.Protocol):
    """One connection too many."""

    def __init__(self, others: set[Refusal], headers: dict[str, str]) -> None:
        """`others`: that are being refused now; headers: what every answer of the page carries."""
        self._others, self._headers = others, headers
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for what it has to say: what is closed before it was read would be lost with its answer."""
        self._transport = cast(asyncio.Transport, transport)
        if len(self._others) >= REFUSALS_MAX:
            self._transport.abort()
            return
        self._others.add(self)
        self._timer = asyncio.get_running_loop().call_later(REFUSAL_S, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        """Answer whatever it is, and hang up."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(self._answer())
            self._transport.close()

    def _answer(self) -> bytes:
        body = json.dumps({"error": SENTENCE}).encode()
        ours = {"Content-Type": "application/json; charset=utf-8", "Content-Length": str(len(body))}
        lines = {**ours, "Retry-After": "1", "Connection": "close", **self._headers}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        return f"HTTP/1.1 503 Service Unavailable\r\n{head}\r\n".encode("ascii") + body

    def connection_lost(self, error: Exception | None) -> None:
        """There is room for another."""
        self._others.discard(self)
        if self._timer is not None:
            self._timer.cancel()
