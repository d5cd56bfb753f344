"""Devices, a network and recording stores for the tests of ingest: everything real but the broker.

A `TestDevice` makes envelopes by hand through the codec, so that each can be spoiled; `LoopNet` carries
payloads in memory; the recorders write down the order of effects.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas  # noqa: F401  # Arrow loads it for its first array: not while a test waits for an answer
from msgspec.structs import replace

from geartrain.adapters.system import SystemClock, SystemRandomness
from geartrain.delivery.receiver import WaitingBudget
from geartrain.errors import NetError
from geartrain.ports import Incoming, SplitProgress
from geartrain.records.event_time import END_OF_TIME, START_OF_TIME
from geartrain.records.record import Record
from geartrain.schema import ColumnBatch, RowCodec, Schema
from geartrain.wire.body import encode_rows
from geartrain.wire.codec import (
    decode_header,
    encode_envelope,
    encode_gap,
    encode_header,
    encode_schemas,
)
from geartrain.wire.control import decode_control
from geartrain.wire.crossing import Crossing, encode_crossing
from geartrain.wire.digest import FIRST_DIGEST, next_digest
from geartrain.wire.envelope import Ack, BatchKind, Control, Envelope, Header, Nack, NackReason, Welcome
from geartrain.wire.topics import parse_up, up_topic
from geartrain_cloud.ingest.config import IngestConfig
from geartrain_cloud.ingest.counters import Counter
from geartrain_cloud.ingest.flow import FollowedFlow
from geartrain_cloud.ingest.ingest import Ingest
from geartrain_cloud.ingest.recovery import Recovered, recover
from geartrain_cloud.ingest.roster import Followed
from geartrain_cloud.log.disk import OsDisk
from geartrain_cloud.log.ledger import SqliteLedger
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.log.roster import FollowedRoster, RosterReader
from geartrain_cloud.log.segment import encode_segment, merge_segments
from geartrain_cloud.ports import LedgerChange
from tests.rosters import document, put_flow
from tests.waiting import WAIT_S

FLOW = "stocks"
PATIENCE_S = WAIT_S
"""It has a name of its own, since a proof gives acks longer that wait for all others."""


class Quote(Record):
    """What the devices of these tests send."""

    symbol: str
    price: float | None


QUOTE = RowCodec(Quote)


class TestDevice:
    """A device with a spool in memory: it makes batches of one epoch, and keeps them by seq."""

    __test__ = False

    def __init__(self, name: str = "device-1", epoch: bytes = b"epoch--1", flow: str = FLOW) -> None:
        self.sources: tuple[str, ...] = ("quotes",)
        self.name, self.epoch, self.flow = name, epoch, flow
        self.topic = up_topic(name, flow)
        self.seq, self.digest, self.number, self.time = 0, FIRST_DIGEST, 0, 0
        self.batches: dict[int, Envelope] = {}
        self.crossing = 0

    def schemas(self, schemas: Mapping[str, Schema] | None = None) -> bytes:
        """A SCHEMA batch."""
        chosen = {"quotes": QUOTE.schema} if schemas is None else schemas
        return self.batch(self.header(BatchKind.SCHEMA), encode_schemas(chosen))

    def quotes(
        self, *prices: float, channel: str = "quotes", watermark: int | None = None, step: int = 10
    ) -> bytes:
        """A DATA batch of quotes whose event times go on by `step`; the watermark is the last of them."""
        values = [Quote(f"S{n}", price) for n, price in enumerate(prices)]
        times = [self.time + step * (n + 1) for n in range(len(prices))]
        numbers = list(range(self.number, self.number + len(prices)))
        self.number += len(prices)
        self.time = times[-1] if times else self.time
        return self.rows(
            channel,
            QUOTE.schema,
            ColumnBatch(QUOTE.to_columns(values), times, [self.name] * len(times), numbers),
            watermark,
        )

    def rows(self, channel: str, schema: Schema, rows: ColumnBatch, watermark: int | None = None) -> bytes:
        """A DATA batch of any rows."""
        encoded = encode_rows(schema, rows)
        header = replace(
            self.header(watermark=watermark),
            channel=channel,
            schema_id=schema.schema_id,
            count=len(rows),
            first_number=encoded.first_number,
            flags=encoded.flags,
        )
        return self.batch(header, encoded.body)

    def advance(self, watermark: int) -> bytes:
        """A DATA batch without rows."""
        return self.batch(self.header(watermark=watermark), b"")

    def end(self) -> bytes:
        """The batch after which nothing more comes."""
        return self.advance(END_OF_TIME)

    def header(self, kind: BatchKind = BatchKind.DATA, watermark: int | None = None) -> Header:
        """The header of the next batch."""
        time = self.time if watermark is None else watermark
        moved = kind is BatchKind.DATA
        if kind is BatchKind.SCHEMA:
            time = START_OF_TIME
        marks = {"quotes": time, "_dead_letters": time, "_late": time}
        return Header(
            kind=kind,
            flow=self.flow,
            device=self.name,
            epoch=self.epoch,
            seq=self.seq + 1,
            watermarks={} if kind is BatchKind.HELLO else marks,
            source_watermarks={} if kind is BatchKind.HELLO else dict.fromkeys(self.sources, time),
            positions={("quotes", self.name): SplitProgress(self.number, time)} if moved else {},
            crossing=self.crossing,
        )

    def cross(self, *cut: str, schemas: Mapping[str, Schema] | None = None, revision: int = 0) -> bytes:
        """A CROSSING batch: other steps run on the device from here on; revision: the number of theirs."""
        self.crossing += 1
        body = encode_crossing(
            Crossing(cut, ("quotes",), number=revision), schemas or {"quotes": QUOTE.schema}
        )
        return self.batch(self.header(BatchKind.CROSSING), body)

    def hello(self, ordinal: int = 1, *fresh: str, revision: int = 0) -> bytes:
        """The question where the device stands, of an epoch that takes itself for the `ordinal`-th; `fresh`:
        what runs there, of a new spool; revision: the number of that.
        """
        header = replace(self.header(BatchKind.HELLO), seq=0, ordinal=ordinal, fresh=bool(fresh))
        body = encode_crossing(Crossing(fresh, number=revision), {}) if fresh else b""
        return self.unsequenced(header, body)

    def answer_schemas(self, schemas: Mapping[str, Schema]) -> bytes:
        """A SCHEMA batch without a seq."""
        return self.unsequenced(replace(self.header(BatchKind.SCHEMA), seq=0), encode_schemas(schemas))

    @staticmethod
    def unsequenced(header: Header, body: bytes) -> bytes:
        """A publish that has no place in the epoch."""
        raw = encode_header(header)
        return encode_envelope(Envelope(raw, body, next_digest(FIRST_DIGEST, raw, body), 1))

    def drop(self, first: int, last: int, counts: Sequence[tuple[int, str, int]]) -> bytes:
        """Put a gap in the place of batches; returns its payload."""
        said, after = decode_header(self.batches[last].header), self.batches[last].digest
        for seq in range(first, last + 1):
            del self.batches[seq]
        place = Header(BatchKind.GAP, self.flow, self.name, self.epoch, last, first_seq=first)
        marks = {"watermarks": said.watermarks, "source_watermarks": said.source_watermarks}
        header = replace(place, **marks, crossing=said.crossing, digest_after=after)
        raw, body = encode_header(header), encode_gap(counts)
        self.batches[last] = Envelope(raw, body, next_digest(FIRST_DIGEST, raw, body), first)
        return self.payload(last)

    def batch(self, header: Header, body: bytes) -> bytes:
        """Commit a batch to the spool; returns its payload."""
        raw = encode_header(header)
        self.seq, self.digest = header.seq, next_digest(self.digest, raw, body)
        self.batches[self.seq] = Envelope(raw, body, self.digest, 1)
        return self.payload(self.seq)

    def payload(self, seq: int, **changes: Any) -> bytes:
        """Batch `seq` as a publish, with `changes` to its envelope."""
        return encode_envelope(replace(self.batches[seq], **changes))

    def trim(self, through_seq: int) -> None:
        """Forget batches, and say so in those that are sent from now on."""
        self.batches = {
            seq: replace(batch, oldest_seq=through_seq + 1)
            for seq, batch in self.batches.items()
            if seq > through_seq
        }


class LoopNet:
    """A broker in memory with one connection: `deliver` brings a publish, `sent` holds the answers."""

    def __init__(self, journal: list[str] | None = None) -> None:
        self.sent: list[tuple[str, Control]] = []
        self.filters: list[str] = []
        self.connections = 0
        self.refusals = 0
        self._journal = [] if journal is None else journal
        self._arrivals: asyncio.Queue[Incoming | None] = asyncio.Queue()
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def connect(self, client_id: str) -> AsyncIterator[LoopNet]:
        """One connection; it is refused as often as `refusals` says."""
        assert client_id
        if self.refusals:
            self.refusals -= 1
            raise NetError("the broker refused")
        self.connections += 1
        self._changed.set()
        yield self

    async def subscribe(self, topic_filter: str) -> None:
        """Note the filter."""
        self.filters.append(topic_filter)

    async def publish(self, topic: str, payload: bytes) -> None:
        """Note the answer."""
        control = decode_control(payload)
        self.sent.append((topic, control))
        self._journal.append(f"{type(control).__name__.lower()} {getattr(control, 'seq', 0)}")
        self._changed.set()

    async def incoming(self) -> AsyncIterator[Incoming]:
        """What was delivered, until `cut`."""
        while (arrival := await self._arrivals.get()) is not None:
            yield arrival
        raise NetError("the connection was cut")

    def deliver(self, topic: str, *payloads: bytes) -> None:
        """Bring publishes to ingest."""
        for payload in payloads:
            self._arrivals.put_nowait(Incoming(topic, payload))

    def cut(self) -> None:
        """Break the connection after what was delivered."""
        self._arrivals.put_nowait(None)

    def controls(self, device: TestDevice) -> list[Control]:
        """What was answered to a device."""
        return [
            control
            for topic, control in self.sent
            if parse_up(topic.removesuffix("ack") + "up")[0] == device.name
        ]

    def acks(self, device: TestDevice) -> list[Ack]:
        """The acks of a device."""
        return [control for control in self.controls(device) if isinstance(control, Ack)]

    def nacks(self, device: TestDevice) -> list[Nack]:
        """The NACKs of a device."""
        return [control for control in self.controls(device) if isinstance(control, Nack)]

    def welcomes(self, device: TestDevice) -> list[Welcome]:
        """The answers to the hellos of a device."""
        return [control for control in self.controls(device) if isinstance(control, Welcome)]

    async def insist(self, device: TestDevice) -> None:
        """Let the device, which has no schema, send all again at each NEED_SCHEMA until its last is acked."""
        asked = -1
        while not any(a.seq == device.seq for a in self.acks(device)):
            needs = [n for n in self.nacks(device) if n.reason is NackReason.NEED_SCHEMA]
            if len(needs) > asked:
                asked = len(needs)
                self.deliver(device.topic, *(device.payload(seq) for seq in sorted(device.batches)))
            await asyncio.sleep(0.01)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something that follows an answer holds."""
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    async def acked(self, device: TestDevice, seq: int | None = None) -> None:
        """Wait for the ack of batch `seq` (default: its last) of the device's epoch."""
        wanted = device.seq if seq is None else seq
        await self.until(lambda: any(a.seq == wanted and a.epoch == device.epoch for a in self.acks(device)))


class RecordingLedger(SqliteLedger):
    """The ledger, which writes each commit into the journal once it is made; `refuse` is called before."""

    def __init__(self, folder: Path, journal: list[str]) -> None:
        super().__init__(folder)
        self.journal = journal
        self.refuse: Callable[[LedgerChange], None] = lambda change: None
        self.gate: Callable[[], Awaitable[None]] | None = None

    async def commit(self, term: int, change: LedgerChange) -> None:
        """Commit and take note."""
        if self.gate is not None:
            await self.gate()
        self.refuse(change)
        await super().commit(term, change)
        self.journal += [f"ledger {cursor.seq}" for cursor in change.cursors]


class RecordingDisk(OsDisk):
    """The disk, which writes each effect on a segment into the journal; `refuse` is called before."""

    def __init__(self, folder: Path, journal: list[str]) -> None:
        super().__init__(folder)
        self.journal = journal
        self.refuse: Callable[[str, str], None] = lambda effect, name: None

    async def write(self, name: str, data: bytes) -> None:
        """Write and take note."""
        self.refuse("write", name)
        await super().write(name, data)
        self._note("write", name)

    async def fsync(self, name: str) -> None:
        """Sync and take note."""
        self.refuse("fsync", name)
        await super().fsync(name)
        self._note("fsync", name)

    def _note(self, effect: str, name: str) -> None:
        if name.startswith("segments/"):
            self.journal.append(effect)


def make_config(folder: Path, devices: tuple[str, ...] = ("device-1",), **changes: Any) -> IngestConfig:
    """Settings, where the roster has one flow, whose source and channel `quotes` all devices have."""
    put_flow(folder, FLOW, document({"quotes": devices}))
    settings: dict[str, Any] = {"log": folder, "group_commit_ms": 5, "nack_interval_ms": 1_000, **changes}
    return IngestConfig(**settings)


def followed_flows(folder: Path) -> Mapping[str, FollowedFlow]:
    """The flows that the roster of a log has, as ingest takes them."""
    found = Followed()
    found.take(RosterReader(folder).after())
    return found.flows


async def recovered(config: IngestConfig) -> Recovered:
    """What a life of ingest would begin with."""
    ledger, disk = SqliteLedger(config.log), OsDisk(config.log)
    try:
        return await recover(config, followed_flows(config.log), ledger, disk, WaitingBudget(1, 1))
    finally:
        await ledger.close()
        disk.close()


@dataclass
class Running:
    """A running ingest and all that is around it."""

    ingest: Ingest
    net: LoopNet
    ledger: RecordingLedger
    disk: RecordingDisk
    reader: LogReader
    journal: list[str] = field(default_factory=list)

    async def counted(self, counter: Counter, total: int) -> None:
        """Wait until ingest has counted that many."""
        async with asyncio.timeout(PATIENCE_S):
            # Nothing tells of a counter, so it is looked at again and again.
            while self.ingest.counter(counter) < total:  # noqa: ASYNC110
                await asyncio.sleep(0.001)


@asynccontextmanager
async def running(config: IngestConfig, net: LoopNet | None = None) -> AsyncIterator[Running]:
    """Run ingest on real files for the block, and stop it in good order at the end."""
    journal: list[str] = []
    wire = net or LoopNet(journal)
    ledger, disk = RecordingLedger(config.log, journal), RecordingDisk(config.log, journal)
    ingest = Ingest(
        config,
        FollowedRoster(config.log),
        ledger,
        disk,
        wire,
        SystemClock(),
        encode_segment,
        SystemRandomness(),
        merge_segments,
    )
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(ingest.run())
        ready = tasks.create_task(wire.until(lambda: bool(wire.filters)))
        await asyncio.wait((task, ready), return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if not task.done():
            yield Running(ingest, wire, ledger, disk, LogReader(config.log), journal)
            ingest.stop()
        async with asyncio.timeout(PATIENCE_S):
            await task
    disk.close()


def prices(reader: LogReader, channel: str = "quotes") -> list[float | None]:
    """The prices in the log, in order."""
    upto = reader.positions(FLOW).get("0", 0)
    entries = [e for e in reader.entries(FLOW, "0", 0, upto) if e.count and e.channel == channel]
    return [price for entry in entries for price in reader.table(entry).column("price").to_pylist()]
