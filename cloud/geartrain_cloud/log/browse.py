"""What a person may want to see of the log: its channels, its quarantine, its dead letters.

On the read side, for `gear`. Guarantees: nothing is written, and each call sees one state of the ledger.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from geartrain.errors import LedgerError, SchemaError
from geartrain.graph.graph import DEAD_LETTERS
from geartrain.records.letters import Letter
from geartrain.schema import RowCodec
from geartrain_cloud.log.arrow import from_table
from geartrain_cloud.log.opening import ledger_of
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.log.rows import read_quarantined, read_resubmitted
from geartrain_cloud.log.tables import (
    SELECT_CURSORS,
    SELECT_ENTRIES,
    SELECT_EXCLUDED,
    read_cursor,
    read_entry,
)
from geartrain_cloud.ports import AckCursor, Entry, QuarantinedBatch

_LETTERS = RowCodec(Letter)


@dataclass(frozen=True, slots=True)
class PlaceInfo:
    """One (flow, channel, partition): its newest entry, and what its entries hold together.

    bytes: of its segments; replaced, replaced_bytes: files that no entry names any more, and that are deleted
    once no reader can come by them.
    """

    newest: Entry
    first: int
    rows: int
    segments: int
    bytes: int = 0
    replaced: int = 0
    replaced_bytes: int = 0


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
    """Every (flow, channel, partition) of the log, sorted; raises `LedgerError`."""
    query = (
        "SELECT flow, channel, partition, min(number), max(number), "
        "sum(iif(segment = '', 0, count)), count(DISTINCT segment), "
        "max(segment = '') FROM entries GROUP BY flow, channel, partition ORDER BY flow, channel, partition"
    )
    newest = SELECT_ENTRIES + "WHERE flow = ? AND channel = ? AND partition = ? AND number = ?"
    with ledger_of(folder) as ledger:
        ledger.execute("BEGIN")
        found = ledger.execute(query).fetchall()
        sizes, old = _sizes(ledger, "segments"), _sizes(ledger, "replaced")
        return [
            PlaceInfo(
                read_entry(ledger.execute(newest, (flow, channel, partition, last)).fetchone()),
                first,
                rows,
                segments - has_empty,
                sizes.get((flow, channel, partition), (0, 0))[1],
                *old.get((flow, channel, partition), (0, 0)),
            )
            for flow, channel, partition, first, last, rows, segments, has_empty in found
        ]


def _sizes(ledger: sqlite3.Connection, table: str) -> dict[tuple[str, str, int], tuple[int, int]]:
    """By place, how many files and bytes a table lists."""
    query = f"SELECT flow, channel, partition, count(*), sum(size) FROM {table} GROUP BY 1, 2, 3"  # noqa: S608
    return {(f, c, p): (count, size) for f, c, p, count, size in ledger.execute(query)}


def all_cursors(folder: Path) -> list[AckCursor]:
    """Where each device stands in each flow, by flow and device; raises `LedgerError`."""
    with ledger_of(folder) as ledger:
        return [read_cursor(row) for row in ledger.execute(SELECT_CURSORS + "ORDER BY flow, device")]


def assigned_devices(folder: Path) -> list[tuple[str, str, str]]:
    """(flow, device, channel) for every channel that waits for a device; raises `LedgerError`."""
    query = "SELECT DISTINCT flow, device, channel FROM entries WHERE kind = 'assigned' ORDER BY 1, 2, 3"
    with ledger_of(folder) as ledger:
        return ledger.execute(query).fetchall()


def excluded_devices(folder: Path) -> set[tuple[str, str, str]]:
    """(flow, device, channel) for every channel that goes on without a device; raises `LedgerError`."""
    with ledger_of(folder) as ledger:
        return {(flow, device, channel) for flow, channel, device in ledger.execute(SELECT_EXCLUDED)}


def quarantined(folder: Path, number: int | None = None) -> list[HeldBatch]:
    """The quarantined batches, oldest first, or the one of this number; raises `LedgerError`."""
    with ledger_of(folder) as ledger:
        rows = read_quarantined(ledger, number)
    if number is not None and not rows:
        raise LedgerError(f"the quarantine has no batch {number}: see gear quarantine ls")
    return [HeldBatch(*row) for row in rows]


def letters(folder: Path, flow: str | None = None) -> Iterator[LoggedLetter]:
    """The dead letters in the log, in its order; raises `LedgerError`."""
    reader = LogReader(folder)
    query = SELECT_ENTRIES + "WHERE channel = ? AND segment <> '' AND (? IS NULL OR flow = ?) "
    with ledger_of(folder) as ledger:
        found = ledger.execute(
            query + "ORDER BY flow, partition, number", (DEAD_LETTERS, flow, flow)
        ).fetchall()
        done = read_resubmitted(ledger)
    for entry in map(read_entry, found):
        schema = reader.schema(entry.flow, DEAD_LETTERS)
        if schema is None or schema.schema_id != _LETTERS.schema.schema_id:
            raise LedgerError(
                f"the dead letters of {entry.flow} are of another layout: use the release that wrote them"
            )
        table = reader.table(entry)
        try:
            rows = from_table(schema, table)
        except SchemaError as error:
            raise LedgerError(f"entry {entry.number} of {entry.flow}/{DEAD_LETTERS}: {error}") from None
        for row, letter in enumerate(_LETTERS.from_columns(rows.fields)):
            path = rows.paths[row] if rows.paths is not None else b""
            place = (entry.flow, entry.partition, entry.number, row)
            origin = (rows.names[row], rows.numbers[row], path)
            yield LoggedLetter(*place, entry.device, rows.times[row], origin, letter, place in done)
