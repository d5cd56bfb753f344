"""The group: what ingest has taken and not yet committed. It goes into the log next.

Between the batches in their order and the commit. Guarantees: entry numbers have no gap, and every entry
holds the clock after it. A clock that moved without rows gets its own entry before the group is sealed. So
the ledger holds the whole state after the commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from geartrain.schema import Schema
from geartrain_cloud.ingest.clock import ChannelClock
from geartrain_cloud.log.part import SegmentPart
from geartrain_cloud.ports import (
    AckCursor,
    BatchDigest,
    ClosedEpoch,
    Entry,
    EntryKind,
    LedgerChange,
    QuarantinedBatch,
    StoredSchema,
)

SEGMENTS = "segments/"
"""Where segment files lie on the log's disk."""

Place = tuple[str, str, int]
"""(flow, channel, partition)."""


@dataclass(slots=True)
class Partition:
    """One partition of a channel as ingest sees it: its clock, and the last entry given out.

    number, logged_clock: of that entry; mover: device, epoch and seq of the batch that moved the clock since;
    index: which partition of the channel it is.
    """

    flow: str
    channel: str
    clock: ChannelClock
    number: int
    logged_clock: int
    mover: tuple[str, bytes, int] = ("", b"", 0)
    index: int = 0


@dataclass(slots=True)
class SegmentDraft:
    """A segment to be written: `name` is where, relative to the log's folder."""

    name: str
    schema: Schema
    parts: list[SegmentPart] = field(default_factory=list)
    rows: int = 0


@dataclass(frozen=True, slots=True)
class SealedGroup:
    """A group that is closed: first its segments become durable, then `change` is committed, then acks are
    due.

    touched: the cursors of every epoch that moved; rows: by place, what the segments hold.
    """

    segments: list[SegmentDraft]
    change: LedgerChange
    touched: list[AckCursor]
    rows: dict[Place, int]


class Group:
    """The group that is being gathered under fencing term `term`."""

    def __init__(self, term: int) -> None:
        self._term = term
        self._start()

    def _start(self) -> None:
        self._entries: list[Entry] = []
        self._segments: dict[tuple[Place, str], SegmentDraft] = {}
        self._cursors: dict[tuple[str, str], AckCursor] = {}
        self._closed: list[ClosedEpoch] = []
        self._schemas: list[StoredSchema] = []
        self._quarantined: list[QuarantinedBatch] = []
        self._digests: list[BatchDigest] = []
        self.rows = 0
        self.bytes = 0

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing that must be committed."""
        return not (self._entries or self._cursors or self._quarantined or self._schemas)

    def append_rows(self, partition: Partition, schema: Schema, part: SegmentPart, epoch: bytes) -> None:
        """Log the rows of one batch: one entry, whose clock is the partition's as it is now."""
        key = ((partition.flow, partition.channel, partition.index), schema.schema_id)
        number = partition.number + 1
        if key not in self._segments:
            # The term in the name keeps a fenced ingest that still writes off the files of its successor.
            place = f"{SEGMENTS}{partition.flow}/{partition.channel}/p{partition.index}"
            self._segments[key] = SegmentDraft(f"{place}/{number:012d}-{self._term}.arrow", schema)
        draft = self._segments[key]
        count = len(part.rows)
        self._entries.append(
            self._entry(
                partition,
                EntryKind.ROWS,
                (part.device, epoch, part.seq),
                segment=draft.name,
                first_row=draft.rows,
                count=count,
            )
        )
        draft.parts.append(part)
        draft.rows += count
        self.rows += count

    def append_note(
        self, partition: Partition, kind: EntryKind, batch: tuple[str, bytes, int], detail: str
    ) -> None:
        """Log an entry without rows; `batch`: the device, epoch and seq that it is about."""
        self._entries.append(self._entry(partition, kind, batch, detail=detail))

    @staticmethod
    def _entry(
        partition: Partition,
        kind: EntryKind,
        batch: tuple[str, bytes, int],
        *,
        segment: str = "",
        first_row: int = 0,
        count: int = 0,
        detail: str = "",
    ) -> Entry:
        partition.number += 1
        partition.logged_clock = partition.clock.value
        place = (partition.flow, partition.channel, partition.index, partition.number)
        return Entry(*place, kind, partition.logged_clock, *batch, segment, first_row, count, detail)

    def move(self, cursor: AckCursor, size: int) -> None:
        """Remember where a device stands after a batch of `size` payload bytes."""
        self._cursors[cursor.device, cursor.flow] = cursor
        self._digests.append(BatchDigest(cursor.device, cursor.flow, cursor.epoch, cursor.seq, cursor.digest))
        self.bytes += size

    def open_epoch(self, cursor: AckCursor) -> None:
        """Remember an epoch that begins, before its first batch."""
        self._cursors[cursor.device, cursor.flow] = cursor

    def close_epoch(self, closed: ClosedEpoch) -> None:
        """Remember that an epoch was replaced by a later one."""
        self._closed.append(closed)

    def add_schema(self, schema: StoredSchema) -> None:
        """Store the schema of a channel."""
        self._schemas.append(schema)

    def quarantine(self, batch: QuarantinedBatch) -> None:
        """Keep a batch raw."""
        self._quarantined.append(batch)
        self.bytes += len(batch.payload)

    def seal(self, partitions: Mapping[Place, Partition], counters: Mapping[str, int]) -> SealedGroup:
        """Close the group and begin the next; `counters`: the totals to be written with it."""
        for partition in partitions.values():
            if partition.clock.value > partition.logged_clock:
                self.append_note(partition, EntryKind.WATERMARK, partition.mover, "")
        rows: dict[Place, int] = {}
        for (place, _), draft in self._segments.items():
            rows[place] = rows.get(place, 0) + draft.rows
        sealed = SealedGroup(
            list(self._segments.values()),
            LedgerChange(
                self._entries,
                list(self._cursors.values()),
                self._closed,
                self._schemas,
                self._quarantined,
                self._digests,
                counters,
            ),
            list(self._cursors.values()),
            rows,
        )
        self._start()
        return sealed
