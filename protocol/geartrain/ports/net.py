"""The network as a port, at MQTT level: connect, publish, subscribe, incoming.

Used by the agent's uplink and by ingest. A puback promises nothing (I3): what was published may be lost,
doubled, delayed or reordered, and our own ack, NACK and resend cover it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec


class Incoming(msgspec.Struct, frozen=True):
    """One received publish: its topic and raw payload, both hostile until checked.

    is_retained: whether the broker had kept it, and sends it because of the subscription.
    """

    topic: str
    payload: bytes
    is_retained: bool = False


class Connection(Protocol):
    """One live connection to the broker. Every call raises `NetError` once it is broken."""

    async def publish(self, topic: str, payload: bytes) -> None:
        """Publish with QoS 1; returns when the client's in-flight window took it, which promises nothing."""
        ...

    async def subscribe(self, topic_filter: str) -> None:
        """Subscribe with QoS 1; raises `NetError` when the broker refuses."""
        ...

    def incoming(self) -> AsyncIterator[Incoming]:
        """Received publishes in the order of their arrival; ends with `NetError` when the connection
        breaks.
        """
        ...


class Net(Protocol):
    """A way to the broker."""

    def connect(self, client_id: str) -> AbstractAsyncContextManager[Connection]:
        """Open a connection (clean session) for the `async with` block; raises `NetError`."""
        ...
