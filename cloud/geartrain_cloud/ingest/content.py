"""The content of a batch whose turn has come: schemas, rows, watermarks, positions, and where each goes.

Between the sequencer and the group that is committed next. Guarantees: a batch is taken whole: either its
rows are logged, or the batch is quarantined. Its watermarks move the clocks either way. The first schema of
a channel is final, so all rows of a channel have one layout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from geartrain.delivery.receiver import Arrival
from geartrain.errors import WireError
from geartrain.graph.graph import LATE
from geartrain.ports import SplitProgress
from geartrain.records.event_time import END_OF_TIME, START_OF_TIME
from geartrain.schema import ColumnBatch, Schema
from geartrain.wire.body import decode_rows
from geartrain.wire.codec import decode_gap, decode_schemas
from geartrain.wire.envelope import BatchKind, Header
from geartrain.wire.limits import LIMITS
from geartrain_cloud.ingest.config import SYSTEM_CHANNELS
from geartrain_cloud.ingest.counters import DROPPED_PREFIX, ROWS_PREFIX, Counter, Counters
from geartrain_cloud.ingest.domains import Domains
from geartrain_cloud.ingest.group import Group, Partition, Place
from geartrain_cloud.ingest.quarantine import Quarantine
from geartrain_cloud.ingest.streams import DeviceStream
from geartrain_cloud.log.part import SegmentPart
from geartrain_cloud.ports import AckCursor, EntryKind, StoredSchema

Positions = Mapping[tuple[str, str], SplitProgress]


class Content:
    """Appends batches to `group`. `partitions` are by place, `schemas` by (flow, channel)."""

    def __init__(
        self,
        partitions: Mapping[Place, Partition],
        schemas: dict[tuple[str, str], Schema],
        group: Group,
        counters: Counters,
        quarantine: Quarantine,
        domains: Domains,
    ) -> None:
        self._partitions, self._schemas = partitions, schemas
        self._group, self._counters, self._quarantine = group, counters, quarantine
        self._domains = domains
        self._channels = {(flow, channel) for flow, channel, _ in partitions}

    def note(
        self,
        stream: DeviceStream,
        kind: EntryKind,
        epoch: bytes,
        seq: int,
        detail: str,
        channels: Sequence[str] | None = None,
    ) -> None:
        """Log an entry without rows on `channels`, or on every one that the device feeds."""
        for channel in stream.channels if channels is None else channels:
            partition = self._partitions[stream.flow, channel, stream.partition]
            self._group.append_note(partition, kind, (stream.device, epoch, seq), detail)

    def lacks_schema(self, stream: DeviceStream, arrival: Arrival) -> bool:
        """Whether the rows of a batch are of a channel that has no schema yet."""
        channel = arrival.header.channel
        return channel in stream.channels and (stream.flow, channel) not in self._schemas

    def lacks_channel(self, stream: DeviceStream, arrival: Arrival) -> bool:
        """Whether a batch has rows of a channel that the device does not feed, as far as ingest was told."""
        header = arrival.header
        return header.kind is BatchKind.DATA and header.channel not in ("", *stream.channels)

    def learn(self, arrival: Arrival) -> None:
        """Take the schemas of a batch that has no seq."""
        self._take_schemas(arrival, in_sequence=False)

    def append(self, stream: DeviceStream, cursor: AckCursor, arrival: Arrival, first_seq: int) -> None:
        """Take the batch that follows on `cursor`, and move the stream's cursor over it.

        first_seq: of a gap, the first of its batches that was not appended before.
        """
        header = arrival.header
        rows, dropped = None, dict(header.dropped)
        if header.kind is BatchKind.SCHEMA:
            self._take_schemas(arrival, in_sequence=True)
        elif header.kind is BatchKind.GAP:
            dropped = self._gap(arrival, first_seq)
        else:
            rows = self._rows(stream, arrival)
        part = self._part(stream, header, rows) if rows is not None and len(rows) else None
        watermarks = self._move_clocks(stream, cursor, header)
        if part is not None:
            self._log(stream, header, part)
            schema = self._schemas[stream.flow, header.channel]
            self._domains.watch(stream, header.channel, schema, part.rows)
        if dropped:
            self._declare(stream, header, dropped, first_seq)
        stream.cursor = AckCursor(
            stream.device,
            stream.flow,
            header.epoch,
            cursor.ordinal,
            header.seq,
            arrival.digest_after,
            self._merged(cursor.positions, header.positions),
            watermarks,
        )
        self._group.move(stream.cursor, len(arrival.payload))
        self._counters.add(Counter.GAPS if header.kind is BatchKind.GAP else Counter.BATCHES_APPENDED)

    def _merged(self, before: Positions, moved: Positions) -> Positions:
        """The positions of a device: of as many splits as one header may name, the first that it named."""
        merged = {**before, **moved}
        if len(merged) <= LIMITS.names_max:
            return merged
        kept = dict(islice(merged.items(), LIMITS.names_max))
        self._counters.add(Counter.POSITIONS_UNKEPT, len(merged) - len(kept))
        return kept

    def _gap(self, arrival: Arrival, first_seq: int) -> dict[str, int]:
        """The rows that a gap declares as dropped, by channel; only of batches that never came."""
        header = arrival.header
        self._counters.add(Counter.BATCHES_DROPPED, header.seq - first_seq + 1)
        try:
            declared = decode_gap(header, arrival.envelope.body)
        except WireError as error:
            reason = f"gap {header.seq}: its body cannot be decoded: {error}"
            self._quarantine.keep(arrival, Counter.UNDECODABLE_BATCHES, reason, in_sequence=True)
            return {}
        dropped: dict[str, int] = {}
        for seq, channel, count in declared:
            if seq >= first_seq:
                dropped[channel] = dropped.get(channel, 0) + count
        return dropped

    def _declare(
        self, stream: DeviceStream, header: Header, dropped: Mapping[str, int], first_seq: int
    ) -> None:
        """Count rows that the device dropped, and log so on the channels they were for."""
        which = f"before batch {header.seq}"
        if header.kind is BatchKind.GAP:
            which = f"of the batches {first_seq} to {header.seq}"
        for channel, count in sorted(dropped.items()):
            self._counters.add(Counter.RECORDS_DROPPED, count)
            if channel not in stream.channels:
                continue
            self._counters.add(f"{DROPPED_PREFIX}{header.flow}/{channel}", count)
            partition = self._partitions[header.flow, channel, stream.partition]
            detail = f"{count} records {which} were dropped by the device, whose spool was full or damaged"
            batch = (stream.device, header.epoch, header.seq)
            self._group.append_note(partition, EntryKind.DROPPED, batch, detail)

    def _rows(self, stream: DeviceStream, arrival: Arrival) -> ColumnBatch | None:
        header, channel = arrival.header, arrival.header.channel
        if not channel:
            return None
        why, reason = Counter.UNDECODABLE_BATCHES, ""
        schema = self._schemas.get((stream.flow, channel))
        if schema is None or schema.schema_id != header.schema_id:
            known = "none is known" if schema is None else f"it is {schema.schema_id}"
            why = Counter.UNKNOWN_SCHEMA_BATCHES
            reason = f"schema {header.schema_id} is not that of channel {channel} ({known})"
        else:
            try:
                return decode_rows(schema, header, arrival.envelope.body)
            except WireError as error:
                reason = f"its body cannot be decoded: {error}"
        self._quarantine.keep(arrival, why, f"batch {header.seq}: {reason}", in_sequence=True)
        return None

    def _take_schemas(self, arrival: Arrival, *, in_sequence: bool) -> None:
        header = arrival.header
        try:
            announced = decode_schemas(arrival.envelope.body)
        except WireError as error:
            reason = f"batch {header.seq}: its schemas cannot be decoded: {error}"
            self._quarantine.keep(arrival, Counter.UNDECODABLE_BATCHES, reason, in_sequence=in_sequence)
            return
        refused = [
            refusal
            for channel, schema in sorted(announced.items())
            if (refusal := self._take_schema((header.flow, channel), schema)) is not None
        ]
        for why, _ in refused[1:]:
            self._counters.add(why)
        if refused:
            why, reason = refused[0]
            self._quarantine.keep(arrival, why, f"batch {header.seq}: {reason}", in_sequence=in_sequence)

    def _take_schema(self, place: tuple[str, str], schema: Schema) -> tuple[Counter, str] | None:
        """Store the schema of a channel; returns why not."""
        channel, known = place[1], self._schemas.get(place)
        if place not in self._channels:
            return Counter.UNKNOWN_CHANNEL_BATCHES, f"it announces channel {channel}, which the flow lacks"
        if known is None:
            self._schemas[place] = schema
            self._group.add_schema(StoredSchema(*place, schema.schema_id, schema.to_json()))
        elif known.schema_id != schema.schema_id:
            reason = f"its schema of {channel} is {schema.schema_id}, but the first was {known.schema_id}"
            return Counter.SCHEMA_CONFLICTS, reason
        return None

    def _part(self, stream: DeviceStream, header: Header, rows: ColumnBatch) -> SegmentPart:
        is_late = header.channel == LATE
        # Late records and dead letters may lie anywhere; any other row below the clock came too late for it.
        # What readers saw is the clock of the last entry, so that decides, not what was gathered since.
        clock = self._partitions[header.flow, header.channel, stream.partition].logged_clock
        if header.channel in SYSTEM_CHANNELS or min(rows.times) >= clock:
            return SegmentPart(header.device, header.seq, rows, is_late)
        overtaken = tuple(time < clock for time in rows.times)
        self._counters.add(Counter.RECORDS_OVERTAKEN, sum(overtaken))
        return SegmentPart(header.device, header.seq, rows, is_late, overtaken)

    def _log(self, stream: DeviceStream, header: Header, part: SegmentPart) -> None:
        partition = self._partitions[header.flow, header.channel, stream.partition]
        schema = self._schemas[header.flow, header.channel]
        self._group.append_rows(partition, schema, part, header.epoch)
        self._counters.add(Counter.RECORDS_LOGGED, len(part.rows))
        self._counters.add(f"{ROWS_PREFIX}{header.flow}/{header.channel}", len(part.rows))

    def _move_clocks(self, stream: DeviceStream, cursor: AckCursor, header: Header) -> dict[str, int]:
        """Move the clocks of all channels that the device feeds; returns its watermarks after the batch."""
        watermarks = dict(cursor.watermarks)
        for channel in stream.channels:
            before = watermarks.get(channel, START_OF_TIME)
            now = min(header.watermarks.get(channel, before), END_OF_TIME)
            if now < before:
                self._counters.add(Counter.WATERMARKS_BACK)
                continue
            watermarks[channel] = now
            partition = self._partitions[stream.flow, channel, stream.partition]
            if partition.clock.observe(stream.device, now):
                partition.mover = (stream.device, header.epoch, header.seq)
        return watermarks
