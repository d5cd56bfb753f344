"""A broker in memory that loses, doubles, delays and breaks, and an ingest that checks every batch."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from geartrain.errors import NetError
from geartrain.graph.graph import DEAD_LETTERS, LATE
from geartrain.planning import Plan
from geartrain.ports import Incoming, SplitProgress
from geartrain.records.event_time import START_OF_TIME
from geartrain.schema import RowCodec, Schema
from geartrain.wire.body import decode_rows
from geartrain.wire.codec import (
    decode_envelope,
    decode_gap,
    decode_header,
    decode_schemas,
    encode_control,
)
from geartrain.wire.crossing import decode_crossing
from geartrain.wire.digest import FIRST_DIGEST, next_digest
from geartrain.wire.envelope import (
    Ack,
    BatchKind,
    Control,
    Envelope,
    Header,
    Nack,
    NackReason,
    Offer,
    Welcome,
)
from geartrain.wire.topics import ack_topic, parse_up
from tests.edge.flows import Row


class NaiveIngest:
    """Appends in seq order, NACKs a gap, acks what it has; every rule of the wire is asserted on the way."""

    def __init__(self, plan: Plan) -> None:
        self.codecs = {channel.id: RowCodec(channel.kind) for channel in plan.channels}
        self._of_schema = {(name, codec.schema.schema_id): codec for name, codec in self.codecs.items()}
        self.channels = [set(self.codecs)]
        """Of each plan that it was told of."""
        self.crossings: list[tuple[int, tuple[str, ...]]] = []
        """Number and cut of each, in the order of the log."""
        self.rows: dict[str, list[Row]] = {channel: [] for channel in self.codecs}
        self.dropped = dict.fromkeys(self.codecs, 0)
        self.watermarks = dict.fromkeys(self.codecs, START_OF_TIME)
        self.sources: dict[str, int] = {}
        self.schemas: dict[str, Schema] = {}
        self.epoch, self.seq, self.digest = b"", 0, FIRST_DIGEST
        self.ordinal = self.opened_at = 0
        """How many epochs there were, and how many crossings as the last of them was opened."""
        self.begun: list[tuple[str, ...]] = []
        """What each fresh spool was begun with, as its hello says."""
        self.closed: list[bytes] = []
        self.counts: list[int] = []
        self.doubles = self.gaps = self.gap_records = self.announced_again = 0
        self.positions: dict[tuple[str, str], SplitProgress] = {}
        self.watermarks_ever: dict[str, int] = {}
        self.hellos = 0
        self.silent = False
        self.last_header: Header | None = None

    def add(self, plan: Plan) -> None:
        """Take the channels of another cut as well."""
        self.channels.append({channel.id for channel in plan.channels})
        for channel in plan.channels:
            self._of_schema[channel.id, channel.schema.schema_id] = RowCodec(channel.kind)
            if channel.id not in self.codecs:
                self.codecs[channel.id] = RowCodec(channel.kind)
                self.rows[channel.id], self.dropped[channel.id] = [], 0
                self.watermarks[channel.id] = START_OF_TIME

    def take(self, payload: bytes) -> list[Control]:
        """What to answer to one publish."""
        envelope = decode_envelope(payload)
        header = decode_header(envelope.header)
        if not header.seq:
            return self._take_unsequenced(envelope, header)
        if header.epoch in self.closed:
            return [Nack(header.flow, header.epoch, header.seq, NackReason.CLOSED, 1)]
        if header.epoch != self.epoch:
            assert not self.epoch, "a batch of an epoch that no hello has opened"
            if header.seq > 1:  # an ingest that has lost its ledger
                self.gaps += 1
                return [Nack(header.flow, header.epoch, 1, NackReason.GAP, 1)]
            self._open(header.epoch)
        assert envelope.oldest_seq <= header.seq
        assert envelope.oldest_seq <= self.seq + 1, "trimmed what was never acked"
        if (header.first_seq or header.seq) > self.seq + 1:
            self.gaps += 1
            return [Nack(header.flow, header.epoch, self.seq + 1, NackReason.GAP, 1)]
        if header.seq <= self.seq:
            self.doubles += 1
        elif self._digest_after(envelope, header) != envelope.digest:
            return [Nack(header.flow, header.epoch, self.seq + 1, NackReason.DIGEST, 1)]
        elif header.count and header.channel not in self.schemas:
            return [Nack(header.flow, header.epoch, header.seq, NackReason.NEED_SCHEMA, 1)]
        else:
            self._append(envelope, header)
        return [] if self.silent else [self.ack(header.flow)]

    def ack(self, flow: str = "fleet") -> Ack:
        return Ack(flow, self.epoch, self.seq, self.digest, 1)

    def speak(self) -> None:
        """Answer from now on, if it was silent."""
        self.silent = False

    def forget_schemas(self) -> None:
        """As an ingest does whose ledger was restored."""
        self.schemas = {}

    def _take_unsequenced(self, envelope: Envelope, header: Header) -> list[Control]:
        assert envelope.digest == next_digest(FIRST_DIGEST, envelope.header, envelope.body)
        if header.kind is BatchKind.HELLO:
            return self._greet(envelope, header)
        assert header.kind is BatchKind.SCHEMA
        self.announced_again += 1
        self.schemas = decode_schemas(envelope.body)
        return []

    def _greet(self, envelope: Envelope, header: Header) -> list[Control]:
        self.hellos += 1
        number = len(self.crossings)
        if header.epoch != self.epoch:
            assert header.epoch not in self.closed
            if header.ordinal <= self.ordinal:
                return [Offer(header.flow, header.epoch, self.ordinal + 1, 1)]
            if not header.fresh and header.crossing < number:
                return [Nack(header.flow, header.epoch, number, NackReason.SET_BACK, 1)]
            if header.fresh:
                self.begun.append(decode_crossing(envelope.body)[0].cut)
            if header.fresh and self.epoch:
                number += 1
                self.crossings.append((number, self.begun[-1]))
            self._open(header.epoch)
            self.opened_at = number
        elif header.fresh and number > self.opened_at:
            return [Nack(header.flow, header.epoch, number, NackReason.SET_BACK, 1)]
        where = (self.positions, self.watermarks_ever, 1)
        return [Welcome(header.flow, header.epoch, *where, crossing=number)]

    def _open(self, epoch: bytes) -> None:
        self.closed += [self.epoch] if self.epoch else []
        self.epoch, self.seq, self.digest = epoch, 0, FIRST_DIGEST
        self.ordinal += 1
        self.sources = {}
        self.watermarks = dict.fromkeys(self.codecs, START_OF_TIME)

    def _digest_after(self, envelope: Envelope, header: Header) -> bytes:
        before = FIRST_DIGEST if header.kind is BatchKind.GAP else self.digest
        return next_digest(before, envelope.header, envelope.body)

    def _append(self, envelope: Envelope, header: Header) -> None:
        self.digest = envelope.digest
        assert header.kind is BatchKind.SCHEMA or header.seq != 1
        assert set(header.watermarks) in (*self.channels, set())
        assert header.crossing in (0, len(self.crossings) + (header.kind is BatchKind.CROSSING))
        if header.kind in (BatchKind.SCHEMA, BatchKind.CROSSING):
            announced = self._announced(envelope, header)
            assert set(announced) in self.channels
            for channel, schema in announced.items():
                assert schema == self._of_schema[channel, schema.schema_id].schema
            self.schemas |= announced
        elif header.kind is BatchKind.GAP:
            self.gap_records += 1
            self.digest = header.digest_after
            for seq, channel, count in decode_gap(header, envelope.body):
                self.dropped[channel] += count if seq > self.seq else 0
        elif header.count:
            self._append_rows(envelope, header)
        else:
            assert header.channel == ""
            moved = {**header.watermarks, **header.source_watermarks} != {**self.watermarks, **self.sources}
            assert moved or header.dropped
        for channel, count in header.dropped.items():
            self.dropped[channel] += count
        for channel, watermark in header.watermarks.items():
            # That of the two channels below all sources goes back where a source comes: ingest ignores it.
            assert watermark >= self.watermarks[channel] or channel in (DEAD_LETTERS, LATE)
            self.watermarks[channel] = max(watermark, self.watermarks[channel])
        for source, watermark in header.source_watermarks.items():
            assert watermark >= self.sources.get(source, START_OF_TIME)
            self.sources[source] = watermark
        self.watermarks_ever |= self.watermarks
        self.positions |= header.positions
        self.seq = header.seq
        self.counts.append(header.count)
        self.last_header = header

    def _announced(self, envelope: Envelope, header: Header) -> dict[str, Schema]:
        if header.kind is BatchKind.SCHEMA:
            return decode_schemas(envelope.body)
        crossing, announced = decode_crossing(envelope.body)
        self.crossings.append((header.crossing, crossing.cut))
        return announced

    def _append_rows(self, envelope: Envelope, header: Header) -> None:
        codec = self._of_schema[header.channel, header.schema_id]
        columns = decode_rows(self.schemas[header.channel], header, envelope.body)
        paths = columns.paths or [b""] * len(columns)
        values = codec.from_columns(columns.fields)
        for row in zip(values, columns.times, columns.names, columns.numbers, paths, strict=True):
            if header.channel not in (DEAD_LETTERS, LATE):
                assert row[1] >= self.watermarks[header.channel], "late below its channel's watermark"
            self.rows[header.channel].append(row)

    def sorted_rows(self) -> dict[str, list[Row]]:
        """The rows of each channel by origin: with equal rows, none was lost or doubled."""
        return {channel: sorted(rows, key=lambda row: row[2:]) for channel, rows in self.rows.items()}


@dataclass(frozen=True, slots=True)
class Troubles:
    """Chances of what befalls a publish, either way, and a connection."""

    lose: float = 0.0
    double: float = 0.0
    delay: float = 0.0
    cut: float = 0.0
    seed: int = 0


class MemoryNet:
    """`Net`. `meddle` may replace what ingest answers to a publish, or swallow it."""

    def __init__(
        self,
        ingest: NaiveIngest,
        troubles: Troubles | None = None,
        meddle: Callable[[bytes, list[Control]], list[Control]] | None = None,
        swallow: Callable[[Header], bool] | None = None,
    ) -> None:
        self.ingest, self.troubles = ingest, troubles or Troubles()
        self.counters: dict[str, int] = {}
        self._meddle, self._swallow = meddle, swallow
        self.random = random.Random(self.troubles.seed)
        self.published: list[tuple[int, int]] = []
        """(seq, oldest seq) of every publish."""
        self.refuse_connects = 0
        self.connects = 0
        self.live: MemoryConnection | None = None

    @asynccontextmanager
    async def connect(self, client_id: str) -> AsyncIterator[MemoryConnection]:
        self.connects += 1
        await asyncio.sleep(0)
        if self.connects <= self.refuse_connects:
            raise NetError("nobody is there")
        assert self.live is None, "two connections at once"
        self.live = MemoryConnection(self)
        try:
            yield self.live
        finally:
            self.live = None

    def swallowed(self, payload: bytes) -> bool:
        envelope = decode_envelope(payload)
        header = decode_header(envelope.header)
        if header.seq:
            self.published.append((header.seq, envelope.oldest_seq))
        return header.seq > 0 and self._swallow is not None and self._swallow(header)

    def answers(self, payload: bytes) -> list[Control]:
        found = self.ingest.take(payload)
        unsequenced = decode_header(decode_envelope(payload).header).seq == 0
        return found if self._meddle is None or unsequenced else self._meddle(payload, found)


class MemoryConnection:
    """`Connection`."""

    def __init__(self, net: MemoryNet) -> None:
        self._net = net
        self._inbox: asyncio.Queue[Incoming | None] = asyncio.Queue()
        self._delayed: list[bytes] = []
        self._history: list[Incoming] = []
        self._filters: list[str] = []
        self._broken = False

    def _chance(self, chance: float) -> bool:
        return chance > 0 and self._net.random.random() < chance

    async def publish(self, topic: str, payload: bytes) -> None:
        await asyncio.sleep(0)
        if self._broken or self._chance(self._net.troubles.cut):
            self._broken = True
            self._inbox.put_nowait(None)
            raise NetError("the line was cut")
        device, flow = parse_up(topic)
        arriving = [] if self._chance(self._net.troubles.lose) else [payload]
        if self._chance(self._net.troubles.double):
            arriving *= 2
        if self._chance(self._net.troubles.delay):
            self._delayed += arriving
            arriving = []
        elif self._delayed:
            arriving, self._delayed = arriving + self._delayed, []
        if self._net.swallowed(payload):
            return
        for each in arriving:
            for control in self._net.answers(each):
                self.deliver(Incoming(ack_topic(device, flow), encode_control(control)))

    def deliver(self, incoming: Incoming) -> None:
        """Send to the agent, with the broker's troubles; now and then something old once more."""
        self._history.append(incoming)
        if incoming.topic in self._filters and not self._chance(self._net.troubles.lose):
            self._inbox.put_nowait(incoming)
        if self._chance(self._net.troubles.double):
            self._inbox.put_nowait(self._net.random.choice(self._history))

    async def subscribe(self, topic_filter: str) -> None:
        await asyncio.sleep(0)
        self._filters.append(topic_filter)

    async def incoming(self) -> AsyncIterator[Incoming]:
        while (found := await self._inbox.get()) is not None:
            yield found
        raise NetError("the line was cut")
