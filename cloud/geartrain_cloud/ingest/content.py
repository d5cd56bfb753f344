"""The content of a batch whose turn has come: schemas, rows, watermarks, positions, and where each goes.

Between the sequencer and the group that is committed next. Guarantees: a batch is taken whole: either its
rows are logged, or the batch is quarantined. Its watermarks move the clocks either way. The rows of a batch
have the layout that its header names. That is one which the flow takes: where nobody has named any, the first
of the channel is final.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import islice

from geartrain.delivery.receiver import Arrival
from geartrain.errors import WireError
from geartrain.errors.reason import Reason, make_reason
from geartrain.graph.graph import CLAIMS, LATE, STATE
from geartrain.ports import SplitProgress
from geartrain.records.event_time import END_OF_TIME, START_OF_TIME
from geartrain.schema import ColumnBatch, Schema
from geartrain.wire.body import decode_rows
from geartrain.wire.codec import decode_gap, decode_schemas
from geartrain.wire.crossing import Crossing, decode_crossing
from geartrain.wire.envelope import BatchKind, Header
from geartrain.wire.limits import LIMITS
from geartrain_cloud.ingest.counters import BYTES_PREFIX, DROPPED_PREFIX, ROWS_PREFIX, Counter, Counters
from geartrain_cloud.ingest.domains import Domains
from geartrain_cloud.ingest.flow import TIMELESS_CHANNELS, FollowedFlow
from geartrain_cloud.ingest.group import Group, Partition, Place
from geartrain_cloud.ingest.quarantine import Quarantine
from geartrain_cloud.ingest.streams import DeviceStream, Gone
from geartrain_cloud.log.entry_reasons import EntryCode, crossing_reason, dropped_reason, number_of
from geartrain_cloud.log.part import SegmentPart
from geartrain_cloud.ports import AckCursor, EntryKind, StoredSchema

Positions = Mapping[tuple[str, str], SplitProgress]


class Content:
    """Appends batches to `group`. `partitions` are by place, `schemas` by (flow, channel), each by its id."""

    def __init__(
        self,
        partitions: Mapping[Place, Partition],
        schemas: dict[tuple[str, str], dict[str, Schema]],
        group: Group,
        counters: Counters,
        quarantine: Quarantine,
        domains: Domains,
        flows: Mapping[str, FollowedFlow],
    ) -> None:
        self._partitions, self._schemas = partitions, schemas
        self._group, self._counters, self._quarantine = group, counters, quarantine
        self._domains, self._flows = domains, flows

    def note(
        self,
        stream: DeviceStream,
        kind: EntryKind,
        epoch: bytes,
        seq: int,
        reason: Reason,
        sources: Sequence[str] = ("",),
        channel: str = "",
    ) -> None:
        """Log an entry without rows about a device, or one for each of the `sources` that it is about.
        channel: to whose readers it says something.
        """
        if stream.gone is Gone.ENDED:
            return  # behind its last entry
        for source in sources:
            batch = (stream.device, epoch, seq)
            self._group.append_note(self._of(stream), kind, batch, reason, channel=channel, source=source)

    def _of(self, stream: DeviceStream) -> Partition:
        return self._partitions[stream.flow, stream.partition]

    def lacks_schema(self, stream: DeviceStream, arrival: Arrival) -> bool:
        """Whether the rows of a batch are of a channel that has no schema yet, or of one that the flow takes
        and nobody has told.
        """
        channel, schema_id = arrival.header.channel, arrival.header.schema_id
        if stream.gone is not None or self._schema(stream.flow, channel, schema_id) is not None:
            return False
        told, is_known = self._flows[stream.flow], (stream.flow, channel) in self._schemas
        return channel in told.channels and (not is_known or told.takes(channel, schema_id))

    def _schema(self, flow: str, channel: str, schema_id: str) -> Schema | None:
        """The schema of this id that a channel has; None while nobody has told it."""
        found = self._schemas.get((flow, channel), {}).get(schema_id)
        return found or self._flows[flow].former.get(channel, {}).get(schema_id)

    def stranger(self, stream: DeviceStream, arrival: Arrival) -> tuple[str, str] | None:
        """A channel of a batch that is another in the flow that ingest was told of, and why."""
        header = arrival.header
        if stream.gone is not None:
            return None
        if header.kind is BatchKind.DATA and header.channel:
            why = self._differs(stream.flow, header.channel, header.schema_id) or self._unfed(stream, header)
            why = why or self._unread(stream, arrival)
            return (header.channel, why) if why else None
        if header.kind not in (BatchKind.SCHEMA, BatchKind.CROSSING):
            return None
        is_crossing = header.kind is BatchKind.CROSSING
        try:
            announced = _announced(arrival)
            number = decode_crossing(arrival.envelope.body)[0].number if is_crossing else 0
        except WireError:
            return None  # it is quarantined for that
        if why := self._not_brought(stream, number):
            return "", f"the device goes over to {why}"
        for channel, schema in sorted(announced.items()):
            first = next(iter(self._schemas.get((stream.flow, channel), ())), "")
            if why := self._differs(stream.flow, channel, schema.schema_id, first):
                return channel, why
        return None

    def _not_brought(self, stream: DeviceStream, number: int) -> str:
        """Why a device does not run a revision yet, "" where the log has brought it."""
        if number <= (brought := self._of(stream).revision):
            return ""
        return (
            f"revision {number} of flow {stream.flow}, and the log has brought revision {brought}: it goes "
            "on once ingest has logged that one"
        )

    def ahead(self, stream: DeviceStream, arrival: Arrival) -> str:
        """Why a fresh spool is not heard yet, by its hello; "" where it is."""
        if stream.gone is not None or not arrival.header.fresh:
            return ""
        try:
            number = decode_crossing(arrival.envelope.body)[0].number
        except WireError:
            return ""  # the log says that it cannot be decoded
        why = self._not_brought(stream, number)
        return why and f"the device runs {why}"

    def _differs(self, flow: str, channel: str, schema_id: str, first: str = "") -> str:
        """Why a flow does not have a channel with this schema, "" where it does; first: the schema that it
        has where ingest was told of none, "" for any.
        """
        told = self._flows[flow]
        if channel not in told.channels:
            return (
                f"flow {flow} has no channel {channel} as ingest was told of it: give the device the flow "
                "that was submitted, or submit the device's as another app"
            )
        due = told.schemas.get(channel) or first
        if due in ("", schema_id) or told.takes(channel, schema_id):
            return ""
        return (
            f"channel {channel} has the schema {due} in flow {flow}, and the device sends {schema_id}: give "
            "the device the flow that was submitted, or submit the device's as another app"
        )

    def _unfed(self, stream: DeviceStream, header: Header) -> str:
        """Why the device does not feed a channel of its flow, "" where it does. What it has read of a source
        that was taken from it meanwhile is of the flow all the same.
        """
        above = self._flows[stream.flow].channels[header.channel]
        said = {} if stream.cursor is None else stream.cursor.source_watermarks
        if header.channel in stream.channels or not said.keys().isdisjoint(above):
            return ""
        return (
            f"the device has no source of channel {header.channel} as ingest was told of flow {stream.flow}: "
            f"have the flow that is submitted give it {above[0]}, or take {above[0]} from the device"
        )

    def _unread(self, stream: DeviceStream, arrival: Arrival) -> str:
        """Why moved state is not taken in, "" where it is: in quarantine its step would go on without it."""
        header = arrival.header
        schema = next(iter(self._schemas.get((stream.flow, header.channel), {}).values()), None)
        if header.channel not in (STATE, CLAIMS) or schema is None:
            return ""
        try:
            decode_rows(schema, header, arrival.envelope.body)
        except WireError as error:
            return (
                f"batch {header.seq} of the device brings state of its steps, which cannot be decoded "
                f"({error}): it waits there; give the device and the platform the same version of Geartrain"
            )
        return ""

    def learn(self, arrival: Arrival) -> None:
        """Take the schemas of a batch that has no seq."""
        if arrival.header.flow not in self._flows:
            return  # it has ended
        self._take_schemas(arrival, in_sequence=False)

    def append(self, stream: DeviceStream, cursor: AckCursor, arrival: Arrival, first_seq: int) -> None:
        """Take the batch that follows on `cursor`, and move the stream's cursor over it.

        first_seq: of a gap, the first of its batches that was not appended before.
        """
        header = arrival.header
        self._cross(stream, cursor, arrival)
        if stream.gone is not None:
            self._disown(stream, cursor, arrival, first_seq)
            return
        rows, dropped = None, dict(header.dropped)
        if header.kind in (BatchKind.SCHEMA, BatchKind.CROSSING):
            announced = self._take_schemas(arrival, in_sequence=True)
            self._note_no_claim(stream, cursor, header, announced)
        elif header.kind is BatchKind.GAP:
            dropped = self._gap(arrival, first_seq)
        else:
            rows = self._rows(stream, arrival)
        part = self._part(stream, header, rows) if rows is not None and len(rows) else None
        source_watermarks = self._move_clocks(stream, cursor, header)
        schema = self._schema(stream.flow, header.channel, header.schema_id)
        if part is not None and schema is not None:
            self._log(stream, header, schema, part)
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
            self._raised(cursor.watermarks, header.watermarks, stream.channels),
            source_watermarks,
            max(cursor.crossing, header.crossing),
        )
        self._group.move(stream.cursor, len(arrival.payload))
        self._counters.add(f"{BYTES_PREFIX}{stream.flow}", len(arrival.payload))
        self._counters.add(Counter.GAPS if header.kind is BatchKind.GAP else Counter.BATCHES_APPENDED)

    def _cross(self, stream: DeviceStream, cursor: AckCursor, arrival: Arrival) -> None:
        """Log a crossing, and those before it that never came: their batches were damaged on the device."""
        header = arrival.header
        is_crossing = header.kind is BatchKind.CROSSING
        stream.is_fresh &= header.crossing <= cursor.crossing
        self._note_lost_crossings(stream, cursor.crossing, header.crossing - is_crossing, header.epoch)
        if not is_crossing:
            return
        reason = crossing_reason(_runs(arrival))
        stream.revision = max(stream.revision, number_of(reason))
        self._counters.add(Counter.CROSSINGS)
        self.note(stream, EntryKind.CROSSING, header.epoch, header.crossing, reason)

    def begin(self, stream: DeviceStream, before: AckCursor | None, arrival: Arrival) -> int:
        """The number of crossings of a device as an epoch begins behind the cursor `before`, by its hello.

        A fresh spool goes over to what it runs, for nothing of the one before it can come any more. Only
        the first one of a device does not: the entry of its epoch says what it runs. Where devices claim
        state, the entry is of that channel: what the spool before had claimed is given back there.
        """
        known, hello = 0 if before is None else before.crossing, arrival.header
        stream.is_fresh = hello.fresh
        reason = crossing_reason(_runs(arrival) if hello.fresh else None, EntryCode.FRESH_SPOOL)
        stream.revision = max(stream.revision, number_of(reason))
        if before is None or not hello.fresh:
            self._note_lost_crossings(stream, known, hello.crossing, hello.epoch)
            return max(known, hello.crossing)
        self._counters.add(Counter.CROSSINGS)
        flow = self._flows.get(stream.flow)
        channel = CLAIMS if flow is not None and CLAIMS in flow.channels else ""
        self.note(stream, EntryKind.CROSSING, hello.epoch, known + 1, reason, channel=channel)
        return known + 1

    def _note_no_claim(
        self, stream: DeviceStream, cursor: AckCursor, header: Header, announced: Collection[str]
    ) -> None:
        """Log that a spool knows of no claim, which its first batch in a new epoch shows: what the device was
        given for one goes on in the cloud. A spool that knows of one says so itself, in the channel that it
        announces then.
        """
        if header.seq != 1 or cursor.ordinal == 1 or not announced or CLAIMS in announced:
            return
        if CLAIMS in self._flows[stream.flow].channels:
            reason = make_reason(EntryCode.CLAIM_UNKNOWN)
            self.note(stream, EntryKind.LOSS, header.epoch, header.seq, reason, channel=CLAIMS)

    def _note_lost_crossings(self, stream: DeviceStream, last: int, before: int, epoch: bytes) -> None:
        """Log that the crossings behind `last` up to `before` are not in the log, if there are any."""
        if before <= last:
            return
        self._counters.add(Counter.CROSSINGS_LOST, before - last)
        reason = make_reason(EntryCode.CROSSINGS_LOST, first=last + 1, last=before)
        self.note(stream, EntryKind.CROSSING, epoch, before, reason)

    def _disown(self, stream: DeviceStream, cursor: AckCursor, arrival: Arrival, first_seq: int) -> None:
        """Take a batch of a device that has left, so that it can be acked: its rows are declared dropped."""
        header = arrival.header
        dropped = dict(header.dropped)
        if header.kind is BatchKind.GAP:
            dropped = self._gap(arrival, first_seq)
        elif header.channel:
            dropped[header.channel] = dropped.get(header.channel, 0) + header.count
            self._counters.add(Counter.RECORDS_DISOWNED, header.count)
        flow = self._flows.get(stream.flow)
        for channel, count in sorted(dropped.items()):
            self._counters.add(Counter.RECORDS_DROPPED, count)
            if flow is None or channel not in flow.channels:
                continue
            self._counters.add(f"{DROPPED_PREFIX}{header.flow}/{channel}", count)
            batch = (stream.device, header.epoch, header.seq)
            reason = make_reason(EntryCode.RETIRED_DEVICE, count=count)
            self._group.append_note(self._of(stream), EntryKind.DROPPED, batch, reason, channel=channel)
        marks = dict(cursor.source_watermarks)
        if flow is not None:  # it may be assigned again
            marks = self._raised(marks, header.source_watermarks, tuple(flow.sources))
        place = (stream.device, stream.flow, header.epoch, cursor.ordinal, header.seq, arrival.digest_after)
        positions = self._merged(cursor.positions, header.positions)
        crossing = max(cursor.crossing, header.crossing)
        stream.cursor = AckCursor(*place, positions, cursor.watermarks, marks, crossing)
        self._group.move(stream.cursor, len(arrival.payload))
        self._counters.add(f"{BYTES_PREFIX}{stream.flow}", len(arrival.payload))
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
        """Count rows that the device dropped, and log so for each channel that they were for."""
        is_gap = header.kind is BatchKind.GAP
        for channel, count in sorted(dropped.items()):
            self._counters.add(Counter.RECORDS_DROPPED, count)
            if channel not in self._flows[stream.flow].channels:
                continue
            self._counters.add(f"{DROPPED_PREFIX}{header.flow}/{channel}", count)
            reason = dropped_reason(count, first_seq, header.seq, is_gap=is_gap)
            batch = (stream.device, header.epoch, header.seq)
            self._group.append_note(self._of(stream), EntryKind.DROPPED, batch, reason, channel=channel)

    def _rows(self, stream: DeviceStream, arrival: Arrival) -> ColumnBatch | None:
        header, channel = arrival.header, arrival.header.channel
        if not channel:
            return None
        why, reason = Counter.UNDECODABLE_BATCHES, ""
        schema = self._schema(stream.flow, channel, header.schema_id)
        if schema is None:
            there = " or ".join(self._schemas.get((stream.flow, channel), ()))
            known = f"it is {there}" if there else "none is known"
            why = Counter.UNKNOWN_SCHEMA_BATCHES
            reason = f"schema {header.schema_id} is not that of channel {channel} ({known})"
        else:
            try:
                return decode_rows(schema, header, arrival.envelope.body)
            except WireError as error:
                reason = f"its body cannot be decoded: {error}"
        self._quarantine.keep(arrival, why, f"batch {header.seq}: {reason}", in_sequence=True)
        return None

    def _take_schemas(self, arrival: Arrival, *, in_sequence: bool) -> Collection[str]:
        """Take the schemas of a batch; returns the channels that it announces, none where it is damaged."""
        header = arrival.header
        try:
            announced = _announced(arrival)
        except WireError as error:
            reason = f"batch {header.seq}: its schemas cannot be decoded: {error}"
            self._quarantine.keep(arrival, Counter.UNDECODABLE_BATCHES, reason, in_sequence=in_sequence)
            return ()
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
        return announced.keys()

    def _take_schema(self, place: tuple[str, str], schema: Schema) -> tuple[Counter, str] | None:
        """Store the schema of a channel; returns why not."""
        told, channel, known = self._flows[place[0]], place[1], self._schemas.get(place, {})
        if channel not in told.channels:
            return Counter.UNKNOWN_CHANNEL_BATCHES, f"it announces channel {channel}, which the flow lacks"
        is_told = told.takes(channel, schema.schema_id)
        if not known or (is_told and schema.schema_id not in known):
            self._schemas[place] = {**known, schema.schema_id: schema}
            above = " ".join(sorted(told.channels[channel]))
            stored = StoredSchema(*place, schema.schema_id, schema.to_json(), above, is_told)
            self._group.add_schema(stored)
        elif schema.schema_id not in known:
            reason = f"its schema of {channel} is {schema.schema_id}, but the first was {next(iter(known))}"
            return Counter.SCHEMA_CONFLICTS, reason
        return None

    def _part(self, stream: DeviceStream, header: Header, rows: ColumnBatch) -> SegmentPart:
        is_late = header.channel == LATE
        # Late records, dead letters and state may lie anywhere; any other row below the clock came too late
        # for it. What readers saw are the clocks of the last entry, so these decide, not what came since.
        clock = self._of(stream).logged_clock(self._flows[header.flow].channels[header.channel])
        if header.channel in TIMELESS_CHANNELS or min(rows.times) >= clock:
            return SegmentPart(header.device, header.seq, rows, is_late)
        overtaken = tuple(time < clock for time in rows.times)
        self._counters.add(Counter.RECORDS_OVERTAKEN, sum(overtaken))
        return SegmentPart(header.device, header.seq, rows, is_late, overtaken)

    def _log(self, stream: DeviceStream, header: Header, schema: Schema, part: SegmentPart) -> None:
        self._group.append_rows(self._of(stream), header.channel, schema, part, header.epoch)
        self._counters.add(Counter.RECORDS_LOGGED, len(part.rows))
        self._counters.add(f"{ROWS_PREFIX}{header.flow}/{header.channel}", len(part.rows))

    def _move_clocks(self, stream: DeviceStream, cursor: AckCursor, header: Header) -> dict[str, int]:
        """Move the clocks of the sources that the device has; returns its watermarks of these."""
        marks = header.source_watermarks
        self._believe(stream, header, marks)
        self._counters.add(Counter.WATERMARKS_UNKNOWN, len(header.source_watermarks.keys() - stream.sources))
        raised = self._raised(cursor.source_watermarks, marks, stream.sources)
        if header.kind is not BatchKind.GAP:  # of what it lacks by now it has said nothing
            raised = {source: mark for source, mark in raised.items() if source in marks}
        partition = self._of(stream)
        for source in stream.sources:
            if source in marks and partition.clocks[source].observe(stream.device, raised[source]):
                partition.mover = (stream.device, header.epoch, header.seq)
        return raised

    def _believe(self, stream: DeviceStream, header: Header, marks: Mapping[str, int]) -> None:
        """Take a device at its word: of a source without a split there it says nothing, so that nobody needs
        to wait for it. One that comes to the device with a later revision is waited for.
        """
        clocks, device, flow = self._of(stream).clocks, stream.device, self._flows[stream.flow]
        silent = [s for s in stream.sources if s not in marks and not clocks[s].is_excluded(device)]
        lacks = [s for s in silent if not flow.is_to_come(s, stream.revision)]
        if header.kind is BatchKind.GAP:
            lacks = []  # one in the place of a damaged batch says nothing at all
        has = [s for s in stream.sources if s in marks and clocks[s].is_excluded(device)]
        for source in lacks:
            clocks[source].exclude(device)
        for source in has:
            clocks[source].readmit(device)
        batch = (header.epoch, header.seq)
        self.note(stream, EntryKind.LACKS, *batch, make_reason(EntryCode.SPLIT_LACKING), lacks)
        self.note(stream, EntryKind.READMITTED, *batch, make_reason(EntryCode.SPLIT_THERE), has)

    def _raised(
        self, before: Mapping[str, int], said: Mapping[str, int], names: Sequence[str]
    ) -> dict[str, int]:
        """A device's watermarks of `names` after a header said some; those that lie lower are ignored."""
        raised = dict(before)
        for name in names:
            if name not in said:
                continue
            if (now := min(said[name], END_OF_TIME)) < before.get(name, START_OF_TIME):
                self._counters.add(Counter.WATERMARKS_BACK)
                continue
            raised[name] = now
        return raised


def _runs(arrival: Arrival) -> Crossing | None:
    """What a CROSSING or the hello of a fresh spool says that the device runs; None where it is damaged."""
    try:
        return decode_crossing(arrival.envelope.body)[0]
    except WireError:
        return None


def first_epoch_reason(hello: Arrival | None) -> Reason:
    """Why a device has its first epoch; hello: the one that has opened it, None where a batch has."""
    if hello is None or not hello.header.fresh:
        return make_reason(EntryCode.FIRST_EPOCH)
    return crossing_reason(_runs(hello), EntryCode.FIRST_EPOCH)


def _announced(arrival: Arrival) -> dict[str, Schema]:
    """The schemas of a SCHEMA batch or a CROSSING; raises `WireError`."""
    if arrival.header.kind is BatchKind.CROSSING:
        return decode_crossing(arrival.envelope.body)[1]
    return decode_schemas(arrival.envelope.body)
