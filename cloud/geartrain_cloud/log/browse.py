"""What a person may want to see of the log: its channels, its quarantine, its dead letters.

On the read side, for `gear`. Guarantees: nothing is written, and each call sees one state of the ledger.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from geartrain.errors import LedgerError
from geartrain.graph.graph import DEAD_LETTERS
from geartrain.records.event_time import START_OF_TIME
from geartrain.records.letters import Letter
from geartrain.schema import RowCodec
from geartrain_cloud.errors import AbsentError
from geartrain_cloud.log.opening import ledger_of
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.log.rows import read_quarantined, read_resubmitted
from geartrain_cloud.log.tables import (
    AT_PLACE,
    SELECT_CURSORS,
    SELECT_ENTRIES,
    SELECT_EXCLUDED,
    SELECT_MEMBERS,
    read_cursor,
    read_entry,
)
from geartrain_cloud.ports import AckCursor, Entry, QuarantinedBatch

_LETTERS = RowCodec(Letter)


@dataclass(frozen=True, slots=True)
class PlaceInfo:
    """What the entries of one (flow, partition) and channel hold together, and where its place stands.

    channel: empty for a place that has no rows of any channel; first, last: positions of the channel's
    entries; position, clocks: of the place's newest entry; bytes: of its segments; replaced, replaced_bytes:
    files that no entry names any more, and that are deleted once no reader can come by them.
    """

    flow: str
    partition: int
    channel: str
    first: int
    last: int
    position: int
    clocks: Mapping[str, int]
    rows: int
    segments: int
    bytes: int = 0
    replaced: int = 0
    replaced_bytes: int = 0

    @property
    def clock(self) -> int:
        """The least of the clocks of its sources, microseconds."""
        return min(self.clocks.values(), default=START_OF_TIME)


@dataclass(frozen=True, slots=True)
class HeldBatch:
    """A quarantined batch by its number; resubmitted: the term under which its rows were logged, else 0."""

    number: int
    batch: QuarantinedBatch
    resubmitted: int


@dataclass(frozen=True, slots=True)
class LoggedLetter:
    """A dead letter by its place in the log: `row` of the entry `number` of its flow and partition."""

    flow: str
    partition: int
    number: int
    row: int
    device: str
    event_time: int
    origin: tuple[str, int, bytes]
    letter: Letter
    resubmitted: bool

    @property
    def id(self) -> str:
        """By what a person names it."""
        return f"{self.flow}:{self.partition}:{self.number}:{self.row}"


def places(folder: Path) -> list[PlaceInfo]:
    """Every channel of every (flow, partition) of the log, sorted; raises `LedgerError`."""
    query = (
        "SELECT flow, partition, channel, min(number), max(number), "
        "sum(iif(segment = '', 0, count)), count(DISTINCT segment) - max(segment = '') "
        "FROM entries GROUP BY flow, partition, channel ORDER BY flow, channel, partition"
    )
    with ledger_of(folder) as ledger:
        ledger.execute("BEGIN")
        found = ledger.execute(query).fetchall()
        newest = {place: _newest(ledger, place) for place in {row[:2] for row in found}}
        sizes, old = _sizes(ledger, "segments"), _sizes(ledger, "replaced")
    has_rows = {row[:2] for row in found if row[2]}
    return [
        PlaceInfo(
            *(flow, partition, channel, first, last),
            *(newest[flow, partition].number, newest[flow, partition].clocks),
            *(rows, segments, sizes.get((flow, channel, partition), (0, 0))[1]),
            *old.get((flow, channel, partition), (0, 0)),
        )
        for flow, partition, channel, first, last, rows, segments in found
        if channel or (flow, partition) not in has_rows
    ]


def _newest(ledger: sqlite3.Connection, place: tuple[str, int]) -> Entry:
    return read_entry(
        ledger.execute(SELECT_ENTRIES + AT_PLACE + "ORDER BY number DESC LIMIT 1", place).fetchone()
    )


def find_entries(
    folder: Path, flow: str, partition: int, channel: str, after: int | None, limit: int
) -> list[Entry]:
    """At most `limit` entries of a place, of `channel` unless that is empty: those that follow the position
    `after`, or the newest. Raises `LedgerError`.
    """
    query = SELECT_ENTRIES + AT_PLACE + "AND (? = '' OR channel = ?) AND number > ? ORDER BY number "
    order = "DESC" if after is None else "ASC"
    with ledger_of(folder) as ledger:
        values = (flow, partition, channel, channel, after or 0, limit)
        rows = ledger.execute(f"{query}{order} LIMIT ?", values).fetchall()
    return sorted(map(read_entry, rows), key=lambda entry: entry.number)


def _sizes(ledger: sqlite3.Connection, table: str) -> dict[tuple[str, str, int], tuple[int, int]]:
    """By place, how many files and bytes a table lists."""
    query = f"SELECT flow, channel, partition, count(*), sum(size) FROM {table} GROUP BY 1, 2, 3"  # noqa: S608
    return {(f, c, p): (count, size) for f, c, p, count, size in ledger.execute(query)}


def all_cursors(folder: Path) -> list[AckCursor]:
    """Where each device stands in each flow, by flow and device; raises `LedgerError`."""
    with ledger_of(folder) as ledger:
        return [read_cursor(row) for row in ledger.execute(SELECT_CURSORS + "ORDER BY flow, device")]


def assigned_devices(folder: Path) -> list[tuple[str, str, str]]:
    """(flow, device, source) for every source that a device has, with NO_SOURCE for a member that has none;
    raises `LedgerError`.
    """
    with ledger_of(folder) as ledger:
        found = ledger.execute(SELECT_MEMBERS).fetchall()
    return sorted((flow, device, source) for flow, source, device in found)


def excluded_devices(folder: Path) -> set[tuple[str, str, str]]:
    """(flow, device, source) for every source whose clock goes on without a device; raises `LedgerError`."""
    with ledger_of(folder) as ledger:
        return {(flow, device, source) for flow, source, device in ledger.execute(SELECT_EXCLUDED)}


def quarantined(folder: Path, number: int | None = None) -> list[HeldBatch]:
    """The quarantined batches, oldest first, or the one of this number; raises `LedgerError`."""
    with ledger_of(folder) as ledger:
        rows = read_quarantined(ledger, number)
    if number is not None and not rows:
        raise AbsentError(f"the quarantine has no batch {number}: see gear quarantine ls")
    return [HeldBatch(*row) for row in rows]


def letters(folder: Path, flow: str | None = None) -> Iterator[LoggedLetter]:
    """The dead letters in the log, in its order; raises `LedgerError`."""
    from geartrain_cloud.log.arrow import from_table  # pyarrow, which the rest here does without
    from geartrain_cloud.log.segment import schema_of

    reader = LogReader(folder)
    query = SELECT_ENTRIES + "WHERE channel = ? AND segment <> '' AND (? IS NULL OR flow = ?) "
    with ledger_of(folder) as ledger:
        found = ledger.execute(
            query + "ORDER BY flow, partition, number", (DEAD_LETTERS, flow, flow)
        ).fetchall()
        done = read_resubmitted(ledger)
    for entry in map(read_entry, found):
        table = reader.table(entry)
        schema = schema_of(table) or reader.schema(entry.flow, DEAD_LETTERS)
        if schema is None or schema.schema_id != _LETTERS.schema.schema_id:
            raise LedgerError(
                f"entry {entry.number} of {entry.flow}/{DEAD_LETTERS} holds no dead letters: use the version "
                "that wrote it"
            )
        rows = from_table(_LETTERS.schema, table)
        for row, letter in enumerate(_LETTERS.from_columns(rows.fields)):
            path = rows.paths[row] if rows.paths is not None else b""
            place = (entry.flow, entry.partition, entry.number, row)
            origin = (rows.names[row], rows.numbers[row], path)
            yield LoggedLetter(*place, entry.device, rows.times[row], origin, letter, place in done)
