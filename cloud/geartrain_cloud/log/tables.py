"""The tables of the ledger, and how their rows become the ports' data and back.

Used by `SqliteLedger`, which writes them, and by `LogReader`, which only reads. Guarantees: what was written
comes back equal, and the checksum reveals a row that changed on the disk. docs/data_files.md describes each
table.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping

import msgspec

from geartrain.errors import LedgerError
from geartrain.ports import SplitProgress
from geartrain_cloud.log.checksums import Row, sealed, whole
from geartrain_cloud.log.rows import insert, select
from geartrain_cloud.ports import AckCursor, Entry, EntryKind, HeldSegment, StoredSegment

VERSION = 4
"""The layout below; kept in `PRAGMA user_version`."""

DIGESTS_KEPT = 1_024
"""Running digests remembered of each epoch: far more than an agent's window holds."""

CLOSED_KEPT = 1_000
"""Closed epochs remembered of each (device, flow)."""

LEDGER_FILE = "ledger.sqlite"

CREATE = """
CREATE TABLE fencing (
    partition INTEGER PRIMARY KEY,
    term INTEGER NOT NULL,
    checksum BLOB NOT NULL
) STRICT;
CREATE TABLE entries (
    flow TEXT NOT NULL,
    channel TEXT NOT NULL,
    partition INTEGER NOT NULL,
    number INTEGER NOT NULL CHECK (number >= 1),
    kind TEXT NOT NULL,
    clock INTEGER NOT NULL,
    device TEXT NOT NULL,
    epoch BLOB NOT NULL,
    seq INTEGER NOT NULL,
    segment TEXT NOT NULL,
    first_row INTEGER NOT NULL,
    count INTEGER NOT NULL CHECK (count >= 0),
    detail TEXT NOT NULL,
    checksum BLOB NOT NULL,
    PRIMARY KEY (flow, channel, partition, number)
) STRICT, WITHOUT ROWID;
CREATE INDEX assigned ON entries (flow, channel, device) WHERE kind = 'assigned';
CREATE INDEX moves ON entries (flow, channel, device, number) WHERE kind IN ('excluded', 'readmitted');
CREATE INDEX in_segment ON entries (segment) WHERE segment <> '';
CREATE TABLE cursors (
    device TEXT NOT NULL,
    flow TEXT NOT NULL,
    epoch BLOB NOT NULL,
    ordinal INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    digest BLOB NOT NULL,
    positions TEXT NOT NULL,
    watermarks TEXT NOT NULL,
    checksum BLOB NOT NULL,
    PRIMARY KEY (device, flow)
) STRICT, WITHOUT ROWID;
CREATE TABLE closed_epochs (
    device TEXT NOT NULL,
    flow TEXT NOT NULL,
    epoch BLOB NOT NULL,
    ordinal INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    digest BLOB NOT NULL,
    checksum BLOB NOT NULL,
    PRIMARY KEY (device, flow, epoch)
) STRICT, WITHOUT ROWID;
CREATE TABLE digests (
    device TEXT NOT NULL,
    flow TEXT NOT NULL,
    epoch BLOB NOT NULL,
    seq INTEGER NOT NULL,
    digest BLOB NOT NULL,
    checksum BLOB NOT NULL,
    PRIMARY KEY (device, flow, epoch, seq)
) STRICT, WITHOUT ROWID;
CREATE TABLE schemas (
    number INTEGER PRIMARY KEY,
    flow TEXT NOT NULL,
    channel TEXT NOT NULL,
    schema_id TEXT NOT NULL,
    text TEXT NOT NULL,
    checksum BLOB NOT NULL,
    UNIQUE (flow, channel, schema_id)
) STRICT;
CREATE TABLE quarantine (
    number INTEGER PRIMARY KEY,
    device TEXT NOT NULL,
    flow TEXT NOT NULL,
    epoch BLOB NOT NULL,
    seq INTEGER NOT NULL,
    count INTEGER NOT NULL,
    reason TEXT NOT NULL,
    payload BLOB NOT NULL,
    acked INTEGER NOT NULL,
    resubmitted INTEGER NOT NULL DEFAULT 0,
    checksum BLOB NOT NULL
) STRICT;
CREATE TABLE resubmitted_letters (
    flow TEXT NOT NULL,
    partition INTEGER NOT NULL,
    number INTEGER NOT NULL,
    row INTEGER NOT NULL,
    checksum BLOB NOT NULL,
    PRIMARY KEY (flow, partition, number, row)
) STRICT, WITHOUT ROWID;
CREATE TABLE segments (
    name TEXT PRIMARY KEY,
    flow TEXT NOT NULL,
    channel TEXT NOT NULL,
    partition INTEGER NOT NULL,
    first INTEGER NOT NULL,
    last INTEGER NOT NULL,
    rows INTEGER NOT NULL,
    size INTEGER NOT NULL,
    digest BLOB NOT NULL,
    made_us INTEGER NOT NULL,
    checksum BLOB NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE replaced (
    name TEXT PRIMARY KEY,
    flow TEXT NOT NULL,
    channel TEXT NOT NULL,
    partition INTEGER NOT NULL,
    last INTEGER NOT NULL,
    size INTEGER NOT NULL,
    since_us INTEGER NOT NULL,
    checksum BLOB NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE queries (
    name TEXT NOT NULL,
    flow TEXT NOT NULL,
    key TEXT NOT NULL,
    position INTEGER NOT NULL,
    checksum BLOB NOT NULL,
    PRIMARY KEY (name, flow, key)
) STRICT, WITHOUT ROWID;
CREATE TABLE counters (
    name TEXT NOT NULL,
    scope INTEGER NOT NULL,
    total INTEGER NOT NULL,
    checksum BLOB NOT NULL,
    PRIMARY KEY (name, scope)
) STRICT, WITHOUT ROWID;
"""

SELECT_ENTRIES = (
    "SELECT flow, channel, partition, number, kind, clock, device, epoch, seq, segment, first_row, count, "
    "detail, checksum FROM entries "
)
INSERT_ENTRY = "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
REPLACE_ENTRY = INSERT_ENTRY.replace("INSERT", "INSERT OR REPLACE", 1)
# Steps from place to place along the primary key: a plain GROUP BY would read every entry.
SELECT_PLACES = """
WITH RECURSIVE found (place) AS (
    SELECT (SELECT json_array(flow, channel, partition) FROM entries
            ORDER BY flow, channel, partition LIMIT 1)
    UNION ALL
    SELECT (SELECT json_array(flow, channel, partition) FROM entries
            WHERE (flow, channel, partition) > (place ->> 0, place ->> 1, place ->> 2)
            ORDER BY flow, channel, partition LIMIT 1)
    FROM found WHERE place IS NOT NULL
)
SELECT place ->> 0, place ->> 1, place ->> 2 FROM found WHERE place IS NOT NULL
"""
SELECT_EXCLUDED = """
SELECT flow, channel, device FROM entries AS one
WHERE kind = 'excluded' AND NOT EXISTS (
    SELECT 1 FROM entries WHERE flow = one.flow AND channel = one.channel AND device = one.device
    AND number > one.number AND kind IN ('excluded', 'readmitted')
) ORDER BY flow, channel, device
"""
SELECT_SEGMENTS = select("segments")
INSERT_SEGMENT = insert("segments")
SELECT_CURSORS = (
    "SELECT device, flow, epoch, ordinal, seq, digest, positions, watermarks, checksum FROM cursors "
)
REPLACE_CURSOR = "INSERT OR REPLACE INTO cursors VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
AT_PLACE = "WHERE flow = ? AND channel = ? AND partition = ? "


def check_version(connection: sqlite3.Connection, path: object) -> None:
    """Raise `LedgerError` unless the file is a ledger of this layout."""
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    if found != VERSION:
        raise LedgerError(
            f"{path} is no ledger of version {VERSION} (it says {found}): "
            "use the release that made it, or another log folder"
        )


def entry_row(entry: Entry) -> Row:
    """The values of `INSERT_ENTRY`."""
    place = (entry.flow, entry.channel, entry.partition, entry.number, entry.kind.value, entry.clock)
    batch = (entry.device, entry.epoch, entry.seq)
    return sealed((*place, *batch, entry.segment, entry.first_row, entry.count, entry.detail))


def read_entry(row: Row) -> Entry:
    """The entry of a row of `SELECT_ENTRIES`; raises `LedgerError` where it is not what was written."""
    values = whole(row, f"entry {row[3]} of {row[0]}/{row[1]}")
    flow, channel, partition, number, kind, clock, device, epoch, seq, segment, first_row, count, detail = (
        values
    )
    return Entry(
        flow,
        channel,
        partition,
        number,
        EntryKind(kind),
        clock,
        device,
        epoch,
        seq,
        segment,
        first_row,
        count,
        detail,
    )


def entry_at(row: Row, *place: object) -> Entry:
    """`read_entry` of a row that was asked for by its place; raises `LedgerError` where it is another's.

    A damaged page can lead SQLite to a row, whole in itself, that is not the one that was looked for.
    """
    entry = read_entry(row)
    if row[: len(place)] != place:
        asked = "/".join(map(str, place))
        raise LedgerError(
            f"in the place of {asked} stands entry {entry.number} of {entry.flow}/{entry.channel}, so the "
            "ledger is damaged: restore it from a copy"
        )
    return entry


def segment_row(held: HeldSegment) -> Row:
    """The values of `INSERT_SEGMENT`."""
    place = (held.flow, held.channel, held.partition, held.first, held.last, held.rows)
    return sealed((held.segment.name, *place, held.segment.size, held.segment.digest, held.segment.made_us))


def read_segment(row: Row) -> HeldSegment:
    """The segment of a row of `SELECT_SEGMENTS`; raises `LedgerError` where it is not what was written."""
    columns = whole(row, f"the row of segment {row[0]}")
    name, flow, channel, partition, first, last, rows, size, digest, made_us = columns
    segment = StoredSegment(name, size, digest, made_us)
    return HeldSegment(segment, flow, channel, partition, first, last, rows)


def cursor_row(cursor: AckCursor) -> Row:
    """The values of `REPLACE_CURSOR`."""
    positions = [
        [step, split, at.position, at.max_time, at.ended] for (step, split), at in cursor.positions.items()
    ]
    place = (cursor.device, cursor.flow, cursor.epoch, cursor.ordinal, cursor.seq, cursor.digest)
    return sealed((*place, _json(positions), _json(dict(cursor.watermarks))))


def read_cursor(row: Row) -> AckCursor:
    """The cursor of a row of `SELECT_CURSORS`; raises `LedgerError` where it is not what was written."""
    columns = whole(row, f"the cursor of {row[0]}/{row[1]}")
    device, flow, epoch, ordinal, seq, digest, positions_json, watermarks_json = columns
    positions = {
        (step, split): SplitProgress(position, max_time, ended)
        for step, split, position, max_time, ended in json.loads(positions_json)
    }
    watermarks: Mapping[str, int] = json.loads(watermarks_json)
    return AckCursor(device, flow, epoch, ordinal, seq, digest, positions, watermarks)


def _json(value: object) -> str:
    return msgspec.json.encode(value, order="sorted").decode()
