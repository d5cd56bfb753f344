"""The read side of the log, for Spark, the command line and pages.

After ingest: it sees what a ledger transaction has committed, and nothing else. Guarantees: it never writes
and never blocks ingest. Any thread or process may use it while ingest runs. To a worker it travels as the
folder's name alone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from geartrain.errors import LedgerError
from geartrain.graph.graph import CLAIMS, STATE
from geartrain.records.event_time import START_OF_TIME
from geartrain.schema import Schema
from geartrain_cloud.log.opening import has_tables, ledger_of
from geartrain_cloud.log.rows import read_schema, read_terms, read_totals
from geartrain_cloud.log.tables import (
    AT_PLACE,
    LEDGER_FILE,
    SELECT_CURSORS,
    SELECT_ENTRIES,
    SELECT_SEGMENTS,
    entry_at,
    read_cursor,
    read_segment,
)
from geartrain_cloud.ports import AckCursor, Entry, EntryKind, partition_of_key, position_key

if TYPE_CHECKING:
    import pyarrow as pa

_SEGMENTS_HELD = 8

_NEWEST = """
SELECT partition, (SELECT max(number) FROM entries WHERE flow = ? AND partition = fencing.partition) AS newest
FROM fencing WHERE newest IS NOT NULL ORDER BY partition
"""
_ROWS_OF = """
SELECT coalesce(sum(count), 0) FROM entries
WHERE flow = ? AND channel = ? AND partition = ? AND number > ? AND number <= ? AND channel <> ''
"""
_COUNTS = """
SELECT channel, sum(count) FROM entries
WHERE flow = ? AND partition = ? AND number > ? AND number <= ? AND count > 0 GROUP BY channel
"""


class LogReader:
    """Reads the log in `folder`. Every method raises `LedgerError` with one sentence.

    A position is the number of an entry of one (flow, partition), from 1; a consumer at position n has seen
    the entries 1 to n, of all channels. `key` names a partition: `0`, `1` and so on.
    """

    def __init__(self, folder: str | Path) -> None:
        """`folder`: what `gear-ingest` calls `log`; it need not exist yet."""
        self.folder = Path(folder)
        self._segments: OrderedDict[str, pa.Table] = OrderedDict()
        self._partitions = 0
        self._lock = Lock()

    def __reduce__(self) -> tuple[type[LogReader], tuple[str]]:
        return LogReader, (str(self.folder),)

    def ready(self) -> bool:
        """Whether there is a ledger yet: ingest makes it when it first starts."""
        try:
            with self._ledger():
                return True
        except LedgerError:
            if (self.folder / LEDGER_FILE).exists() and has_tables(self.folder):
                raise
            return False

    def partitions(self) -> int:
        """How many partitions each flow has."""
        if not self._partitions:
            with self._ledger() as ledger:
                self._partitions = len(read_terms(ledger))
        return self._partitions

    def keys(self) -> list[str]:
        """The keys of all partitions."""
        return [position_key(partition) for partition in range(self.partitions())]

    def positions(self, flow: str) -> dict[str, int]:
        """By key, the number of the newest entry of `flow`; keys without entries are absent."""
        with self._ledger() as ledger:
            found = ledger.execute(_NEWEST, (flow,)).fetchall()
        return {position_key(partition): newest for partition, newest in found}

    def newest(self, flows: Iterable[str]) -> dict[str, dict[str, int]]:
        """As `positions`, of several flows at once."""
        found: dict[str, dict[str, int]] = {}
        with self._ledger() as ledger:
            for flow in flows:
                rows = ledger.execute(_NEWEST, (flow,)).fetchall()
                found[flow] = {position_key(partition): last for partition, last in rows}
        return found

    def clocks(self, flow: str, key: str, position: int) -> Mapping[str, int]:
        """By source step, the partition's clock after the entry `position`, microseconds; a source without
        one is absent.
        """
        if position == 0:
            return {}
        partition, query = partition_of_key(key), SELECT_ENTRIES + AT_PLACE + "AND number = ?"
        with self._ledger() as ledger:
            row = ledger.execute(query, (flow, partition, position)).fetchone()
        if row is None:
            raise LedgerError(
                f"{flow}/{key} has no position {position}: this log is not the one that the position "
                "comes from, so use that one, or start again from nothing"
            )
        return entry_at(row, flow, partition, position).clocks

    def clocks_at(self, flow: str, positions: Mapping[str, int]) -> dict[str, int]:
        """By source step, the flow's clock where each partition stands at its position: the least of the
        partitions'; a source that has none in one of them is absent.
        """
        first, *others = (self.clocks(flow, key, positions.get(key, 0)) for key in self.keys())
        return {
            source: min([clock, *(other[source] for other in others)])
            for source, clock in first.items()
            if all(source in other for other in others)
        }

    def entries(
        self, flow: str, key: str, after: int, upto: int, channels: Collection[str] | None = None
    ) -> list[Entry]:
        """The entries with `after` < number <= `upto`, in order; of `channels` alone where they are given.

        Those of other channels are checked all the same: a damaged one may have been of ours.
        """
        found = self._entries(flow, partition_of_key(key), after, upto)
        return found if channels is None else [entry for entry in found if entry.channel in channels]

    def counts(self, flow: str, key: str, after: int, upto: int) -> dict[str, int]:
        """By channel, how many rows the entries with `after` < number <= `upto` have brought."""
        with self._ledger() as ledger:
            found = ledger.execute(_COUNTS, (flow, partition_of_key(key), after, upto)).fetchall()
        return dict(found)

    def rows_of(self, flow: str, channel: str, key: str, after: int, upto: int) -> int:
        """How many rows the entries of a channel with `after` < number <= `upto` have brought."""
        with self._ledger() as ledger:
            place = (flow, channel, partition_of_key(key), after, upto)
            [(count,)] = ledger.execute(_ROWS_OF, place).fetchall()
        return int(count)

    def removed(self, flow: str, after: Mapping[str, int] | None = None) -> int:
        """How many entries of `flow` have lost their rows to retention; after: of those behind a position of
        each partition, by key.
        """
        query = "SELECT partition, number FROM entries WHERE flow = ? AND kind = ?"
        with self._ledger() as ledger:
            rows = ledger.execute(query, (flow, EntryKind.REMOVED.value)).fetchall()
        places = after or {}
        return sum(number > places.get(position_key(partition), 0) for partition, number in rows)

    def before(self, flow: str, key: str, time_us: int, sources: Collection[str], upto: int) -> int:
        """The last position, `upto` at most, at which the partition's clock of `sources` has not come to a
        time; clocks never go back, so few entries are read.
        """
        low, high = 0, upto
        while low < high:
            middle = (low + high + 1) // 2
            clocks = self.clocks(flow, key, middle)
            if min((clocks.get(source, START_OF_TIME) for source in sources), default=time_us) < time_us:
                low = middle
            else:
                high = middle - 1
        return low

    def _entries(self, flow: str, partition: int, after: int, upto: int) -> list[Entry]:
        query = SELECT_ENTRIES + AT_PLACE + "AND number > ? AND number <= ? ORDER BY number"
        last = SELECT_ENTRIES + AT_PLACE + "ORDER BY number DESC LIMIT 1"
        with self._ledger() as ledger:
            # The newest first: what is appended meanwhile is then no gap.
            newest = ledger.execute(last, (flow, partition)).fetchone()
            rows = ledger.execute(query, (flow, partition, after, upto))
            entries = [entry_at(row, flow, partition) for row in rows]
        is_short = len(entries) < upto - after
        # A damaged page can show a whole row twice, or hide some.
        # What stands at the end may itself be damaged: then it is no whole entry.
        if (
            is_short
            and newest is not None
            and len(entries) < min(upto, entry_at(newest, flow, partition).number) - after
        ):
            key = position_key(partition)
            raise LedgerError(
                f"{flow}/{key}: entries between {after + 1} and {upto} cannot be found, so the ledger is "
                "damaged: restore it from a copy"
            )
        for number, entry in enumerate(entries, after + 1):
            if entry.number != number:
                key = position_key(partition)
                raise LedgerError(
                    f"{flow}/{key}: entry {entry.number} stands where {number} should, so the ledger is "
                    "damaged: restore it from a copy"
                )
        return entries

    def limit(self, flow: str, key: str, after: int, room: Room, revision: int = 0) -> int:
        """The largest position such that the entries after `after` up to it fit into `room`.

        revision: that which the reader runs, as `end_of` has it.
        """
        query = (
            "SELECT number, count, CASE WHEN kind = 'revision' THEN seq ELSE 0 END, channel, "
            "coalesce((SELECT count * size / max(rows, 1) FROM segments WHERE name = segment), 0) "
            "FROM entries WHERE flow = ? AND partition = ? AND number >= ? ORDER BY number"
        )
        with (
            self._ledger() as ledger,
            closing(ledger.execute(query, (flow, partition_of_key(key), after))) as found,
        ):
            return end_of(_intact(found, f"{flow}/{key}", after), after, room, revision)

    def boundary(self, flow: str, revision: int) -> dict[str, int]:
        """By key, the position of the entry that brings a revision; keys that lack it are absent."""
        query = SELECT_ENTRIES + AT_PLACE + "AND kind = 'revision' AND seq = ? ORDER BY number LIMIT 1"
        found: dict[str, int] = {}
        with self._ledger() as ledger:
            for partition in read_terms(ledger):
                row = ledger.execute(query, (flow, partition, revision)).fetchone()
                if row is not None:
                    found[position_key(partition)] = entry_at(row, flow, partition).number
        return found

    def table(self, entry: Entry) -> pa.Table:
        """The rows of an entry, without a copy; an entry without rows raises `LedgerError`."""
        if not entry.segment:
            why = "holds no rows any more: retention has removed them" if entry.count else "holds no rows"
            raise LedgerError(f"entry {entry.number} of {entry.flow}/{entry.partition} {why}")
        try:
            return self._rows(entry)
        except LedgerError:
            # A merge may have put the rows into another file since the entry was read.
            now = self._entries(entry.flow, entry.partition, entry.number - 1, entry.number)
            if not now or now[0].segment == entry.segment:
                raise
            return self.table(now[0])

    def tables(self, entries: Sequence[Entry]) -> list[tuple[int, pa.Table]]:
        """The rows of entries that follow one another: one table for those that lie side by side, with the
        number of the last entry. Its metadata says the type of its rows.
        """
        return [table for run in _side_by_side(entries) for table in self._run(run)]

    def _run(self, run: Sequence[Entry]) -> list[tuple[int, pa.Table]]:
        try:
            return [(run[-1].number, self._rows(replace(run[0], count=sum(entry.count for entry in run))))]
        except LedgerError:  # merged meanwhile, or damaged: entry by entry it is known which
            return [(entry.number, self.table(entry)) for entry in run]

    def _rows(self, entry: Entry) -> pa.Table:
        rows = self._segment(entry.segment).slice(entry.first_row, entry.count)
        if rows.num_rows != entry.count:
            raise LedgerError(
                f"segment {entry.segment} is shorter than the ledger says: restore the file from a copy"
            )
        return rows

    def schema(self, flow: str, channel: str) -> Schema | None:
        """The schema of the channel's rows, or None until a device has announced it."""
        with self._ledger() as ledger:
            stored = read_schema(ledger, flow, channel)
        return None if stored is None else Schema.from_json(stored.text)

    def cursors(self, flow: str) -> list[AckCursor]:
        """Where each device of `flow` stands, by device."""
        query = SELECT_CURSORS + "WHERE flow = ? ORDER BY device"
        with self._ledger() as ledger:
            return [read_cursor(row) for row in ledger.execute(query, (flow,))]

    def assigned(self, flow: str) -> list[str]:
        """The devices that `flow` ever had, with its sources or without any, by name."""
        query = (
            "SELECT DISTINCT device FROM entries WHERE flow = ? AND kind = 'assigned' AND "
            "kind IN ('assigned', 'retired', 'excluded', 'lacks', 'readmitted') ORDER BY device"
        )
        with self._ledger() as ledger:
            return [device for (device,) in ledger.execute(query, (flow,))]

    def counters(self) -> Mapping[str, int]:
        """Ingest's totals by name, as of its last commit."""
        with self._ledger() as ledger:
            totals = read_totals(ledger)
        sums: dict[str, int] = {}
        for name, _, total in totals:
            sums[name] = sums.get(name, 0) + total
        return sums

    def _segment(self, name: str) -> pa.Table:
        from geartrain_cloud.log.segment import open_segment  # pyarrow: who reads entries alone needs none

        with self._lock:
            if name not in self._segments:
                self._segments[name] = open_segment(self.folder / name, self._digest(name))[1]
                if len(self._segments) > _SEGMENTS_HELD:
                    self._segments.popitem(last=False)
            self._segments.move_to_end(name)
            return self._segments[name]

    def _digest(self, name: str) -> bytes | None:
        with self._ledger() as ledger:
            row = ledger.execute(SELECT_SEGMENTS + "WHERE name = ?", (name,)).fetchone()
        return None if row is None else read_segment(row).segment.digest

    def _ledger(self) -> AbstractContextManager[Any]:
        return ledger_of(self.folder)


def _side_by_side(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Entries whose rows follow one another in one segment, together."""
    run: list[Entry] = []
    for entry in entries:
        if run and (entry.segment, entry.first_row) != (run[-1].segment, run[-1].first_row + run[-1].count):
            yield run
            run = []
        run.append(entry)
    if run:
        yield run


CELLS_MAX = 20_000
"""So many cells of state that a device has left are in one micro-batch. No result comes before the last of
them is there, so a pause is as long as their micro-batches are many.
"""
UNBOUNDED = 2**62
Extent = tuple[int, int, int, str, int]
"""Of an entry, its number and count, the revision that it brings (0 for none), its channel, and its bytes."""


@dataclass(frozen=True, slots=True)
class Room:
    """What a micro-batch may take of a partition, one entry at the least.

    rows: of all channels but moved state; cells: of moved state; size: bytes of all these in their segments.
    """

    rows: int
    cells: int = CELLS_MAX
    size: int = UNBOUNDED


def end_of(entries: Iterable[Extent], after: int, room: Room, revision: int = 0) -> int:
    """Where a micro-batch ends that begins behind entry `after`: the number of its last entry, or `after`.

    entries: those of a partition from number `after` on, in order. revision: that which the reader runs; the
    entry that brings a later one is the last that it may take, 0 for no such end. So is an entry by which a
    device claims the state of steps.
    """
    end, rows, cells, size = after, 0, 0, 0
    for number, count, begins, channel, bytes_in in entries:
        if number > after:
            size += bytes_in
            if channel == STATE:
                cells += count
            else:
                rows += count
            if (rows > room.rows or cells > room.cells or size > room.size) and end > after:
                break
            end = number
        if begins > revision > 0 or (channel == CLAIMS and number > after):
            break
    return end


def _intact(found: Iterable[tuple[Any, ...]], place: str, after: int) -> Iterator[Extent]:
    """Rows of the ledger as extents; raises `LedgerError` for one that is none."""
    for number, count, begins, channel, size in found:
        if not all(type(one) is int for one in (number, count, begins, size)):
            raise LedgerError(f"{place}: an entry after {after} is damaged: restore the ledger")
        after = number
        yield number, count, begins, channel, size
