"""The cloud's ledger as a port: the manifest of the log and the memory of every device's place in it.

One `commit` is one transaction, made after the segments it names are durable and before any ack is sent.
A segment that the ledger does not name does not exist. Several ingests may share a ledger, each with
partitions of its own. Each partition has a fencing term, which says whose it is. Every call raises
`LedgerError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from geartrain.errors.reason import NO_REASON, Reason
from geartrain.ports.spool import SplitProgress
from geartrain.records.event_time import START_OF_TIME

NO_SOURCE = ""
"""Stands in the place of the source where an entry is about a device that has none of its flow: a member that
takes what is sent to it, and for which no clock waits.
"""


class EntryKind(Enum):
    """What an entry of the log says: rows, or a change of clocks or of the devices without rows."""

    ROWS = "rows"
    WATERMARK = "watermark"
    ASSIGNED = "assigned"
    JOINED = "joined"
    EPOCH = "epoch"
    LOSS = "loss"
    DROPPED = "dropped"
    EXCLUDED = "excluded"
    READMITTED = "readmitted"
    LACKS = "lacks"
    RETIRED = "retired"
    ENDED = "ended"
    ADVANCE = "advance"
    REMOVED = "removed"
    REVISION = "revision"
    CROSSING = "crossing"


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a (flow, partition); its number is its position, whatever its channel.

    channel: what its rows are of, or what it declares rows of, else empty; clocks: the partition's clock of
    each source after it, microseconds, without those that nobody has said anything of; source: what a
    change of membership is about, NO_SOURCE where a device without any comes or goes; seq: of a REVISION or a
    CROSSING its number; segment: file name on the log's disk and `[first_row, first_row + count)` in it,
    empty for an entry without rows; reason: why it was made, where its kind does not say all.
    """

    flow: str
    partition: int
    number: int
    kind: EntryKind
    channel: str = ""
    device: str = ""
    epoch: bytes = b""
    seq: int = 0
    segment: str = ""
    first_row: int = 0
    count: int = 0
    source: str = ""
    reason: Reason = NO_REASON
    clocks: Mapping[str, int] = field(default_factory=dict)

    def clock(self, sources: Iterable[str]) -> int:
        """The least clock of `sources` after it, microseconds; START_OF_TIME where one of them has none."""
        return min((self.clocks.get(source, START_OF_TIME) for source in sources), default=START_OF_TIME)


@dataclass(frozen=True, slots=True)
class ClosedEpoch:
    """An epoch that a later one has replaced: its ordinal among those of its device, and the last batch that
    was appended of it (seq 0: none).
    """

    device: str
    flow: str
    epoch: bytes
    ordinal: int
    seq: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class AckCursor:
    """Where a (device, flow) stands: the last batch appended of its open epoch, and what it knew then.

    seq: 0 where the epoch was opened by a HELLO and has no batch yet; positions: by (source step, split);
    watermarks: by channel, source_watermarks: by source step, microseconds; crossing: the number of the
    device's newest CROSSING entry, which the store does not keep with the cursor.
    """

    device: str
    flow: str
    epoch: bytes
    ordinal: int
    seq: int
    digest: bytes
    positions: Mapping[tuple[str, str], SplitProgress] = field(default_factory=dict)
    watermarks: Mapping[str, int] = field(default_factory=dict)
    source_watermarks: Mapping[str, int] = field(default_factory=dict)
    crossing: int = 0


@dataclass(frozen=True, slots=True)
class StoredSchema:
    """A channel's schema as the device announced it: `text` is `Schema.to_json()`; sources: the source steps
    above the channel, sorted, with a space between; told: the flow names it, so that the channel may have
    others beside (this is not kept).
    """

    flow: str
    channel: str
    schema_id: str
    text: str
    sources: str = ""
    told: bool = False


@dataclass(frozen=True, slots=True)
class QuarantinedBatch:
    """A batch kept raw and out of the log, with the reason; `count` as its header claims.

    acked: it had its place in its epoch and was acked, so that no spool holds it any more.
    """

    device: str
    flow: str
    epoch: bytes
    seq: int
    count: int
    reason: str
    payload: bytes
    acked: bool = False


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """A segment file as it was made durable: its name, its size, the blake2b of its bytes (16 bytes), and
    when, wall clock in microseconds.
    """

    name: str
    size: int
    digest: bytes
    made_us: int = 0


@dataclass(frozen=True, slots=True)
class HeldSegment:
    """A segment that entries name: those of one channel and partition that have rows in it lie at `first` to
    `last`, among those of other channels.
    """

    segment: StoredSegment
    flow: str
    channel: str
    partition: int
    first: int
    last: int
    rows: int


@dataclass(frozen=True, slots=True)
class ReplacedFile:
    """A file that no entry names any more, since a merge or retention at since_us (wall clock).

    A reader that asked before may still open it: the rows of its partition up to `last` were in it.
    """

    name: str
    flow: str
    channel: str
    partition: int
    last: int
    size: int
    since_us: int


@dataclass(frozen=True, slots=True)
class QueryProgress:
    """A registered query: of `key` (see `position_key`) it has done all up to `position` that it needs, and
    never reads that again.
    """

    name: str
    flow: str
    key: str
    position: int


def position_key(partition: int) -> str:
    """How positions name a partition: `0`, `1` and so on."""
    return str(partition)


def partition_of_key(key: str) -> int:
    """The partition that a position's key names."""
    return int(key)


@dataclass(frozen=True, slots=True)
class BatchDigest:
    """The running digest after an appended batch; the store keeps the last 1,024 of each epoch."""

    device: str
    flow: str
    epoch: bytes
    seq: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class LedgerChange:
    """What one transaction writes. `counters` are totals by name, only those that changed."""

    entries: Sequence[Entry] = ()
    cursors: Sequence[AckCursor] = ()
    closed_epochs: Sequence[ClosedEpoch] = ()
    schemas: Sequence[StoredSchema] = ()
    quarantined: Sequence[QuarantinedBatch] = ()
    digests: Sequence[BatchDigest] = ()
    counters: Mapping[str, int] = field(default_factory=dict)
    segments: Sequence[StoredSegment] = ()


class LedgerStore(Protocol):
    """The ledger of one log."""

    async def open(self, partitions: int = 1, owned: Sequence[int] | None = None) -> int:
        """Open or create, take the partitions `owned` (None: all) under one fencing term, and return it.

        The term is one above the highest of the ledger. partitions: how many a flow has, fixed by the
        first call of all; another number later raises `ConfigError`.
        """
        ...

    async def check(self, term: int) -> None:
        """Raise `FencedError` when `term` is no longer the newest of a partition that was taken with it."""
        ...

    async def commit(self, term: int, change: LedgerChange) -> None:
        """Write in one durable transaction; raises `FencedError` as `check` does."""
        ...

    async def remove_rows(
        self, term: int, names: Sequence[str], now_us: int, counters: Mapping[str, int]
    ) -> None:
        """Make every entry in these segments one without rows, and their files replaced ones."""
        ...

    async def merge(
        self, term: int, merged: StoredSegment, names: Sequence[str], now_us: int, counters: Mapping[str, int]
    ) -> bool:
        """Let the entries in these segments, in this order, name the durable `merged`.

        The old files become replaced ones. If one of them is no longer named, nothing changes and the answer
        is False.
        """
        ...

    async def forget_files(self, term: int, names: Sequence[str]) -> None:
        """Forget replaced files, which have been deleted."""
        ...

    async def cursors(self) -> list[AckCursor]:
        """Every device's cursor."""
        ...

    async def closed_epochs(self) -> list[ClosedEpoch]:
        """The epochs that a later one has replaced, by device, flow and ordinal: the last 1,000 of each."""
        ...

    async def schemas(self) -> list[StoredSchema]:
        """Every schema announced so far."""
        ...

    async def last_entries(self) -> list[Entry]:
        """The newest entry of every (flow, partition)."""
        ...

    async def devices(self) -> list[tuple[str, str, str]]:
        """(flow, source, device) of every member: its newest ASSIGNED or RETIRED entry is ASSIGNED."""
        ...

    async def excluded(self) -> list[tuple[str, str, str]]:
        """(flow, source, device) of every member whose newest entry of that source is EXCLUDED or LACKS."""
        ...

    async def revisions(self) -> dict[tuple[str, int], int]:
        """By (flow, partition), the number of the newest REVISION entry, where it has one."""
        ...

    async def crossings(self) -> dict[tuple[str, str], tuple[int, Reason]]:
        """By (device, flow), the number and reason of the newest CROSSING entry, where it has one."""
        ...

    async def segments(self) -> set[str]:
        """Every file name that an entry names."""
        ...

    async def held_segments(self) -> list[HeldSegment]:
        """Every segment of the partitions taken, the oldest first, then by name."""
        ...

    async def replaced_files(self) -> list[ReplacedFile]:
        """Every replaced file of the partitions taken, by name."""
        ...

    async def queries(self) -> list[QueryProgress]:
        """Every registered query by name, flow and key."""
        ...

    async def digest_at(self, device: str, flow: str, epoch: bytes, seq: int) -> bytes | None:
        """The running digest of an appended batch that is still remembered (the last 1,024 of an epoch),
        else None.
        """
        ...

    async def counters(self) -> Mapping[str, int]:
        """Totals by name, of the partitions taken."""
        ...

    async def close(self) -> None:
        """Release the ledger."""
        ...
