"""The group: what ingest has taken and not yet committed. It goes into the log next.

Between the batches in their order and the commit. Guarantees: entry numbers have no gap, and every entry
holds the clocks after it. Clocks that moved without rows get an entry before the group is sealed. So the
ledger holds the whole state after the commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from geartrain.errors.reason import NO_REASON, Reason
from geartrain.records.event_time import START_OF_TIME
from geartrain.schema import Schema
from geartrain_cloud.ingest.clock import SourceClock
from geartrain_cloud.log.part import SegmentPart
from geartrain_cloud.ports import (
    NO_SOURCE,
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

Place = tuple[str, int]
"""(flow, partition)."""


@dataclass(slots=True)
class Partition:
    """One partition of a flow as ingest sees it: the clock of each source, and the last entry given out.

    number, logged: that of the last entry, and its clocks; mover: device, epoch and seq of the batch that
    last moved a clock; revision: the newest that it has brought; without: the members that have no source.
    """

    flow: str
    index: int
    clocks: dict[str, SourceClock]
    number: int = 0
    logged: Mapping[str, int] = field(default_factory=dict)
    mover: tuple[str, bytes, int] = ("", b"", 0)
    revision: int = 1
    without: set[str] = field(default_factory=set)

    def memberships(self) -> set[tuple[str, str]]:
        """Each (device, source) that the log names, with NO_SOURCE for a device that has none."""
        held = {(device, source) for source, clock in self.clocks.items() for device in clock.devices}
        return held | {(device, NO_SOURCE) for device in self.without}

    @property
    def has_moved(self) -> bool:
        """Whether a clock is beyond what the last entry says."""
        return any(c.value > self.logged.get(s, START_OF_TIME) for s, c in self.clocks.items())

    def logged_clock(self, sources: Iterable[str]) -> int:
        """The least of the last entry's clocks of `sources`: what readers have seen."""
        return min((self.logged.get(source, START_OF_TIME) for source in sources), default=START_OF_TIME)

    def log_clocks(self) -> Mapping[str, int]:
        """The clocks as the next entry holds them."""
        if self.has_moved:
            said = {s: c.value for s, c in self.clocks.items() if c.value > START_OF_TIME}
            self.logged = {**self.logged, **said}
        return self.logged


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

    touched: the cursors of every epoch that moved; rows: by (flow, channel), what the segments hold.
    """

    segments: list[SegmentDraft]
    change: LedgerChange
    touched: list[AckCursor]
    rows: dict[tuple[str, str], int]


class Group:
    """The group that is being gathered under fencing term `term`."""

    def __init__(self, term: int) -> None:
        self._term = term
        self._start()

    def _start(self) -> None:
        self._entries: list[Entry] = []
        self._segments: dict[tuple[Place, str, str], SegmentDraft] = {}
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

    def append_rows(
        self, partition: Partition, channel: str, schema: Schema, part: SegmentPart, epoch: bytes
    ) -> None:
        """Log the rows of one batch of a channel: one entry, with the partition's clocks as they are now."""
        key = ((partition.flow, partition.index), channel, schema.schema_id)
        if key not in self._segments:
            # The term in the name keeps a fenced ingest that still writes off the files of its successor.
            place = f"{SEGMENTS}{partition.flow}/{channel}/p{partition.index}"
            name = f"{place}/{partition.number + 1:012d}-{self._term}.arrow"
            self._segments[key] = SegmentDraft(name, schema)
        draft = self._segments[key]
        count, partition.number = len(part.rows), partition.number + 1
        self._entries.append(
            Entry(
                partition.flow,
                partition.index,
                partition.number,
                EntryKind.ROWS,
                channel,
                part.device,
                epoch,
                part.seq,
                draft.name,
                draft.rows,
                count,
                clocks=partition.log_clocks(),
            )
        )
        draft.parts.append(part)
        draft.rows += count
        self.rows += count

    def append_note(
        self,
        partition: Partition,
        kind: EntryKind,
        batch: tuple[str, bytes, int],
        reason: Reason = NO_REASON,
        *,
        channel: str = "",
        source: str = "",
    ) -> None:
        """Log an entry without rows; `batch`: the device, epoch and seq that it is about; channel: of which
        rows are declared; source: of which the membership changes; reason: where the
        kind does not say all.
        """
        partition.number += 1
        self._entries.append(
            Entry(
                partition.flow,
                partition.index,
                partition.number,
                kind,
                channel,
                *batch,
                source=source,
                reason=reason,
                clocks=partition.log_clocks(),
            )
        )

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
            if partition.has_moved:
                self.append_note(partition, EntryKind.WATERMARK, partition.mover)
        rows: dict[tuple[str, str], int] = {}
        for ((flow, _), channel, _), draft in self._segments.items():
            rows[flow, channel] = rows.get((flow, channel), 0) + draft.rows
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
