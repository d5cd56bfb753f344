"""Answers to devices, on their way to the broker: acks of what is durable, NACKs of what is missing.

Stands after the commit. Guarantees: it holds one ack and one NACK of each reason for each (device, flow), so
it is bounded; an ack is only ever replaced by a later one; the same NACK is not repeated within an interval.
"""

from __future__ import annotations

import asyncio

from geartrain.ports import AckCursor, Clock, Connection
from geartrain.wire.codec import encode_control
from geartrain.wire.envelope import Ack, Nack, NackReason
from geartrain.wire.topics import ack_topic
from geartrain_cloud.ingest.counters import Counter, Counters


class Outbox:
    """Gathers answers; `send_forever` publishes them while there is a connection."""

    def __init__(self, clock: Clock, counters: Counters, nack_interval_s: float) -> None:
        self._clock, self._counters, self._nack_interval_s = clock, counters, nack_interval_s
        self.term = 0
        self._acks: dict[tuple[str, str], Ack] = {}
        self._nacks: dict[tuple[str, str, NackReason], Nack] = {}
        self._nacked: dict[tuple[str, str, NackReason], tuple[bytes, int, float]] = {}
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()
        self._emptied.set()

    def ack(self, cursor: AckCursor) -> None:
        """Answer that all up to this cursor is durable; called only after the commit that made it so."""
        ack = Ack(cursor.flow, cursor.epoch, cursor.seq, cursor.digest, self.term)
        self._acks[cursor.device, cursor.flow] = ack
        self._wake()

    def nack(self, device: str, flow: str, epoch: bytes, seq: int, reason: NackReason) -> None:
        """Answer that `seq` is what the device must send (or, for CLOSED, that its epoch is over)."""
        key, now = (device, flow, reason), self._clock.monotonic_s()
        last = self._nacked.get(key)
        if last is not None and last[:2] == (epoch, seq) and now - last[2] < self._nack_interval_s:
            self._counters.add(Counter.NACKS_SUPPRESSED)
            return
        self._nacked[key] = (epoch, seq, now)
        self._nacks[key] = Nack(flow, epoch, seq, reason, self.term)
        self._wake()

    async def send_forever(self, connection: Connection) -> None:
        """Publish what is here and what comes, until the connection breaks with `NetError`."""
        while True:
            await self._filled.wait()
            # What is taken here is lost if the connection breaks: the devices send again, and are answered.
            acks, self._acks = self._acks, {}
            nacks, self._nacks = self._nacks, {}
            self._filled.clear()
            for (device, flow), ack in acks.items():
                await connection.publish(ack_topic(device, flow), encode_control(ack))
                self._counters.add(Counter.ACKS_SENT)
            for (device, flow, _), nack in nacks.items():
                await connection.publish(ack_topic(device, flow), encode_control(nack))
                self._counters.add(Counter.NACKS_SENT)
            if not self._filled.is_set():
                self._emptied.set()

    async def wait_empty(self) -> None:
        """Return once everything has been handed to the broker; never, while there is no connection."""
        await self._emptied.wait()

    def _wake(self) -> None:
        self._filled.set()
        self._emptied.clear()
