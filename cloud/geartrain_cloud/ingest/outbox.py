"""Answers to devices, on their way to the broker: acks of what is durable, NACKs of what is missing.

After the commit. Guarantees: it holds one answer of each kind for each (device, flow), so it is bounded. An
ack is only ever replaced by a later one. The same NACK is not repeated within an interval. An answer to one
device never holds up the answers to others, whatever that device has said of itself.
"""

from __future__ import annotations

import asyncio

from geartrain.delivery.receiver import NackPace
from geartrain.errors import WireError
from geartrain.ports import Clock, Connection
from geartrain.ports.buggify import buggify
from geartrain.wire.control import encode_control
from geartrain.wire.envelope import Ack, Control, Nack, NackReason, Offer, Welcome
from geartrain.wire.topics import ack_topic
from geartrain_cloud.ingest.counters import Counter, Counters
from geartrain_cloud.ports import AckCursor, ClosedEpoch


class Outbox:
    """Gathers answers; `send_forever` publishes them while there is a connection."""

    def __init__(self, clock: Clock, counters: Counters, nack_interval_s: float) -> None:
        self._clock, self._counters, self._pace = clock, counters, NackPace(nack_interval_s)
        self.term = 0
        self._acks: dict[tuple[str, str], Ack] = {}
        self._last_acks: dict[tuple[str, str], Ack] = {}
        self._welcomes: dict[tuple[str, str], Welcome] = {}
        self._offers: dict[tuple[str, str], Offer] = {}
        self._nacks: dict[tuple[str, str, NackReason], Nack] = {}
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()
        self._emptied.set()

    def ack(self, cursor: AckCursor) -> None:
        """Answer that all up to this cursor is durable; called only after the commit that made it so."""
        ack = Ack(cursor.flow, cursor.epoch, cursor.seq, cursor.digest, self.term)
        self._acks[cursor.device, cursor.flow] = ack
        self._wake()

    def close(self, closed: ClosedEpoch, seq: int) -> None:
        """Answer batch `seq` that its epoch is over, and first what of it is durable: that is never queued
        again. Called only after the commit that closed it.
        """
        if closed.seq:
            ack = Ack(closed.flow, closed.epoch, closed.seq, closed.digest, self.term)
            self._last_acks[closed.device, closed.flow] = ack
        self.nack(closed.device, closed.flow, closed.epoch, max(seq, 1), NackReason.CLOSED)

    def welcome(self, cursor: AckCursor) -> None:
        """Answer where the device stands; called only when the opening of the cursor's epoch is durable."""
        said = Welcome(
            cursor.flow,
            cursor.epoch,
            cursor.positions,
            cursor.watermarks,
            self.term,
            cursor.source_watermarks,
            cursor.crossing,
        )
        self._welcomes[cursor.device, cursor.flow] = said
        self._wake()

    def offer(self, device: str, flow: str, epoch: bytes, ordinal: int) -> None:
        """Answer that another epoch has the ordinal of the hello, and which one is free."""
        self._offers[device, flow] = Offer(flow, epoch, ordinal, self.term)
        self._wake()

    def nack(self, device: str, flow: str, epoch: bytes, seq: int, reason: NackReason) -> bool:
        """Answer that `seq` is what the device must send (or, for CLOSED, that its epoch is over).

        Returns False where the same was said a moment ago, and nothing is sent.
        """
        if not self._pace.is_due((device, flow), epoch, seq, reason, self._clock.monotonic_s()):
            self._counters.add(Counter.NACKS_SUPPRESSED)
            return False
        self._nacks[device, flow, reason] = Nack(flow, epoch, seq, reason, self.term)
        self._wake()
        return True

    async def send_forever(self, connection: Connection) -> None:
        """Publish what is here and what comes, until the connection breaks with `NetError`."""
        while True:
            await self._filled.wait()
            if buggify("slow ack", 0.1):
                await self._clock.sleep(0.5)
            # What is taken here is lost if the connection breaks: the devices send again, and are answered.
            last_acks, self._last_acks = self._last_acks, {}
            acks, self._acks = self._acks, {}
            welcomes, self._welcomes = self._welcomes, {}
            offers, self._offers = self._offers, {}
            nacks, self._nacks = self._nacks, {}
            self._filled.clear()
            for (device, flow), ack in (*last_acks.items(), *acks.items()):
                await self._send(connection, device, flow, ack, Counter.ACKS_SENT)
            for (device, flow), welcome in welcomes.items():
                await self._send(connection, device, flow, welcome, Counter.WELCOMES_SENT)
            for (device, flow), offer in offers.items():
                await self._send(connection, device, flow, offer, Counter.OFFERS_SENT)
            for (device, flow, _), nack in nacks.items():
                await self._send(connection, device, flow, nack, Counter.NACKS_SENT)
            if not self._filled.is_set():
                self._emptied.set()

    async def _send(
        self, connection: Connection, device: str, flow: str, answer: Control, sent: Counter
    ) -> None:
        try:
            payload = encode_control(answer)
        except WireError:  # the seq after the last one, or a welcome above its cap
            self._counters.add(Counter.ANSWERS_UNSENT)
            return
        await connection.publish(ack_topic(device, flow), payload)
        self._counters.add(sent)

    async def wait_empty(self) -> None:
        """Return once everything has been handed to the broker; never, while there is no connection."""
        await self._emptied.wait()

    def _wake(self) -> None:
        self._filled.set()
        self._emptied.clear()
