"""The read side of the log, for Spark, the command line and pages.

After ingest: it sees what a ledger transaction has committed, and nothing else. Guarantees: it never writes
and never blocks ingest. Any thread or process may use it while ingest runs. To a worker it travels as the
folder's name alone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

import pyarrow as pa

from geartrain.errors import LedgerError
from geartrain.records.event_time import START_OF_TIME
from geartrain.schema import Schema
from geartrain_cloud.log.opening import has_tables, ledger_of
from geartrain_cloud.log.rows import read_schema, read_terms, read_totals
from geartrain_cloud.log.segment import open_segment
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
from geartrain_cloud.ports import AckCursor, Entry, position_key, split_key

_SEGMENTS_HELD = 8

# Steps from channel to channel along the primary key: a plain GROUP BY would read every entry of the flow.
_NEWEST = """
WITH RECURSIVE found (channel) AS (
    SELECT min(channel) FROM entries WHERE flow = :flow
    UNION ALL
    SELECT (SELECT min(channel) FROM entries WHERE flow = :flow AND channel > found.channel)
    FROM found WHERE found.channel IS NOT NULL
)
SELECT channel, fencing.partition, (
    SELECT max(number) FROM entries
    WHERE flow = :flow AND channel = found.channel AND partition = fencing.partition
) AS newest FROM found, fencing WHERE channel IS NOT NULL AND newest IS NOT NULL
"""


class LogReader:
    """Reads the log in `folder`. Every method raises `LedgerError` with one sentence.

    A position is the number of an entry of one (flow, channel, partition), from 1; a consumer at position n
    has seen the entries 1 to n. `key` names a partition of a channel: the channel for the first, `channel/1`
    and so on for the others.
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
        """How many partitions each channel has."""
        if not self._partitions:
            with self._ledger() as ledger:
                self._partitions = len(read_terms(ledger))
        return self._partitions

    def keys(self, channels: Iterable[str]) -> list[str]:
        """The keys of all partitions of `channels`."""
        return [position_key(c, p) for c in channels for p in range(self.partitions())]

    def positions(self, flow: str) -> dict[str, int]:
        """By key, the number of the newest entry of `flow`; keys without entries are absent."""
        with self._ledger() as ledger:
            found = ledger.execute(_NEWEST, {"flow": flow}).fetchall()
        return {position_key(channel, partition): newest for channel, partition, newest in found}

    def clock(self, flow: str, key: str, position: int) -> int:
        """The partition's clock after the entry `position`, microseconds; START_OF_TIME at position 0."""
        if position == 0:
            return START_OF_TIME
        query = SELECT_ENTRIES + AT_PLACE + "AND number = ?"
        with self._ledger() as ledger:
            row = ledger.execute(query, (flow, *split_key(key), position)).fetchone()
        if row is None:
            raise LedgerError(
                f"{flow}/{key} has no position {position}: this log is not the one that the position "
                "comes from, so use that one, or start again from nothing"
            )
        return entry_at(row, flow, *split_key(key), position).clock

    def entries(self, flow: str, key: str, after: int, upto: int) -> list[Entry]:
        """The entries with `after` < number <= `upto`, in order."""
        return self._entries(flow, *split_key(key), after, upto)

    def _entries(self, flow: str, channel: str, partition: int, after: int, upto: int) -> list[Entry]:
        query = SELECT_ENTRIES + AT_PLACE + "AND number > ? AND number <= ? ORDER BY number"
        last = SELECT_ENTRIES + AT_PLACE + "ORDER BY number DESC LIMIT 1"
        with self._ledger() as ledger:
            rows = ledger.execute(query, (flow, channel, partition, after, upto))
            entries = [entry_at(row, flow, channel, partition) for row in rows]
            is_short = len(entries) < upto - after
            newest = ledger.execute(last, (flow, channel, partition)).fetchone() if is_short else None
        # A damaged page can show a whole row twice, or hide some.
        # What stands at the end may itself be damaged: then it is no whole entry.
        if (
            newest is not None
            and len(entries) < min(upto, entry_at(newest, flow, channel, partition).number) - after
        ):
            key = position_key(channel, partition)
            raise LedgerError(
                f"{flow}/{key}: entries between {after + 1} and {upto} cannot be found, so the ledger is "
                "damaged: restore it from a copy"
            )
        for number, entry in enumerate(entries, after + 1):
            if entry.number != number:
                key = position_key(channel, partition)
                raise LedgerError(
                    f"{flow}/{key}: entry {entry.number} stands where {number} should, so the ledger is "
                    "damaged: restore it from a copy"
                )
        return entries

    def limit(self, flow: str, key: str, after: int, rows_max: int) -> int:
        """The largest position such that the entries after `after` up to it hold at most `rows_max` rows.

        At least one entry is taken if there is one; without any it is `after`.
        """
        query = (
            "SELECT number, count FROM entries "
            "WHERE flow = ? AND channel = ? AND partition = ? AND number > ? ORDER BY number"
        )
        end, rows = after, 0
        with (
            self._ledger() as ledger,
            closing(ledger.execute(query, (flow, *split_key(key), after))) as found,
        ):
            for number, count in found:
                if type(number) is not int or type(count) is not int:
                    raise LedgerError(f"{flow}/{key}: an entry after {end} is damaged: restore the ledger")
                rows += count
                if rows > rows_max and end > after:
                    break
                end = number
        return end

    def table(self, entry: Entry) -> pa.Table:
        """The rows of an entry, without a copy; an entry without rows raises `LedgerError`."""
        if not entry.segment:
            why = "holds no rows any more: retention has removed them" if entry.count else "holds no rows"
            raise LedgerError(f"entry {entry.number} of {entry.flow}/{entry.channel} {why}")
        try:
            return self._rows(entry)
        except LedgerError:
            # A merge may have put the rows into another file since the entry was read.
            now = self._entries(entry.flow, entry.channel, entry.partition, entry.number - 1, entry.number)
            if not now or now[0].segment == entry.segment:
                raise
            return self.table(now[0])

    def tables(self, entries: Sequence[Entry]) -> list[pa.Table]:
        """The rows of entries that follow one another: one table for those that lie side by side."""
        return [table for run in _side_by_side(entries) for table in self._run(run)]

    def _run(self, run: Sequence[Entry]) -> list[pa.Table]:
        try:
            return [self._rows(replace(run[0], count=sum(entry.count for entry in run)))]
        except LedgerError:  # merged meanwhile, or damaged: entry by entry it is known which
            return [self.table(entry) for entry in run]

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

    def assigned(self, flow: str, channel: str) -> list[str]:
        """The devices whose watermarks make the channel's clock."""
        query = (
            "SELECT DISTINCT device FROM entries "
            "WHERE flow = ? AND channel = ? AND kind = 'assigned' ORDER BY device"
        )
        with self._ledger() as ledger:
            return [device for (device,) in ledger.execute(query, (flow, channel))]

    def counters(self) -> Mapping[str, int]:
        """Ingest's totals by name, as of its last commit."""
        with self._ledger() as ledger:
            totals = read_totals(ledger)
        sums: dict[str, int] = {}
        for name, _, total in totals:
            sums[name] = sums.get(name, 0) + total
        return sums

    def _segment(self, name: str) -> pa.Table:
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
