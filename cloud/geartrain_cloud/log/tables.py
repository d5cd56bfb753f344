"""The tables of the ledger, and how their rows become the ports' data and back.

Used by `SqliteLedger`, which writes them, and by `LogReader`, which only reads. Guarantees: what was written
comes back equal, and the checksum reveals a row that changed on the disk. docs/data_files.md describes each
table.
"""

from __future__ import annotations

import json

import msgspec

from geartrain.adapters.layouts import SqliteLayout
from geartrain.errors import LedgerError
from geartrain.errors.reason import Reason, decode_reason, encode_reason
from geartrain.ports import SplitProgress
from geartrain_cloud.log.checksums import Row, sealed, whole
from geartrain_cloud.log.rows import insert, select
from geartrain_cloud.ports import AckCursor, Entry, EntryKind, HeldSegment, StoredSegment

LAYOUT = SqliteLayout(b"GTle", 1, LedgerError, "begin with another log folder")
"""Of the tables below, and of the segments beside them."""

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
    partition INTEGER NOT NULL,
    number INTEGER NOT NULL CHECK (number >= 1),
    kind TEXT NOT NULL,
    channel TEXT NOT NULL,
    device TEXT NOT NULL,
    epoch BLOB NOT NULL,
    seq INTEGER NOT NULL,
    segment TEXT NOT NULL,
    first_row INTEGER NOT NULL,
    count INTEGER NOT NULL CHECK (count >= 0),
    source TEXT NOT NULL,
    detail TEXT NOT NULL,
    clocks TEXT NOT NULL,
    checksum BLOB NOT NULL,
    PRIMARY KEY (flow, partition, number)
) STRICT, WITHOUT ROWID;
CREATE INDEX of_channel ON entries (flow, channel, partition, number) WHERE channel <> '';
CREATE INDEX moves ON entries (flow, source, device, number)
    WHERE kind IN ('assigned', 'retired', 'excluded', 'lacks', 'readmitted');
CREATE INDEX revisions ON entries (flow, partition, seq, number) WHERE kind = 'revision';
CREATE INDEX crossings ON entries (flow, device, seq) WHERE kind = 'crossing';
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
    source_watermarks TEXT NOT NULL,
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
    sources TEXT NOT NULL,
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
    "SELECT flow, partition, number, kind, channel, device, epoch, seq, segment, first_row, count, source, "
    "detail, clocks, checksum FROM entries "
)
INSERT_ENTRY = "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
REPLACE_ENTRY = INSERT_ENTRY.replace("INSERT", "INSERT OR REPLACE", 1)
# Steps from place to place along the primary key: a plain GROUP BY would read every entry.
SELECT_PLACES = """
WITH RECURSIVE found (place) AS (
    SELECT (SELECT json_array(flow, partition) FROM entries ORDER BY flow, partition LIMIT 1)
    UNION ALL
    SELECT (SELECT json_array(flow, partition) FROM entries
            WHERE (flow, partition) > (place ->> 0, place ->> 1)
            ORDER BY flow, partition LIMIT 1)
    FROM found WHERE place IS NOT NULL
)
SELECT place ->> 0, place ->> 1 FROM found WHERE place IS NOT NULL
"""
_NEWEST_MOVES = """
SELECT flow, source, device FROM entries AS one
WHERE kind IN ('assigned', 'retired', 'excluded', 'lacks', 'readmitted') AND kind IN ({kinds})
AND NOT EXISTS (
    SELECT 1 FROM entries WHERE flow = one.flow AND source = one.source AND device = one.device
    AND number > one.number AND kind IN ('assigned', 'retired', 'excluded', 'lacks', 'readmitted')
) ORDER BY flow, source, device
"""
SELECT_MEMBERS = _NEWEST_MOVES.format(kinds="'assigned', 'excluded', 'lacks', 'readmitted'")
"""Of each (flow, source, device) whose newest move is not RETIRED."""
SELECT_EXCLUDED = _NEWEST_MOVES.format(kinds="'excluded', 'lacks'")
"""Of each whose newest move is EXCLUDED or LACKS."""
SELECT_CROSSINGS = (
    "SELECT device, flow, max(seq), detail FROM entries WHERE kind = 'crossing' GROUP BY flow, device"
)
SELECT_REVISIONS = (
    "SELECT flow, partition, max(seq) FROM entries WHERE kind = 'revision' GROUP BY flow, partition"
)
SELECT_SEGMENTS = select("segments")
INSERT_SEGMENT = insert("segments")
SELECT_CURSORS = (
    "SELECT device, flow, epoch, ordinal, seq, digest, positions, watermarks, source_watermarks, "
    "checksum FROM cursors "
)
REPLACE_CURSOR = "INSERT OR REPLACE INTO cursors VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
AT_PLACE = "WHERE flow = ? AND partition = ? "
"""A place is a (flow, partition): one sequence of entries."""


def entry_row(entry: Entry) -> Row:
    """The values of `INSERT_ENTRY`."""
    place = (entry.flow, entry.partition, entry.number, entry.kind.value, entry.channel)
    batch = (entry.device, entry.epoch, entry.seq)
    rows = (entry.segment, entry.first_row, entry.count)
    return sealed((*place, *batch, *rows, entry.source, encode_reason(entry.reason), _json(entry.clocks)))


def read_entry(row: Row) -> Entry:
    """The entry of a row of `SELECT_ENTRIES`; raises `LedgerError` where it is not what was written."""
    values = whole(row, f"entry {row[2]} of {row[0]}/{row[1]}")
    flow, partition, number, kind, channel, device, epoch, seq, segment, first_row, count, *rest = values
    source, detail, clocks = rest
    return Entry(
        flow,
        partition,
        number,
        EntryKind(kind),
        channel,
        device,
        epoch,
        seq,
        segment,
        first_row,
        count,
        source,
        read_reason(detail),
        json.loads(clocks),
    )


def read_reason(text: str) -> Reason:
    """The reason of an entry as its row has it; raises `LedgerError` where the text is no reason."""
    try:
        return decode_reason(text)
    except ValueError as error:
        raise LedgerError(f"an entry of the log has {error}: restore the log from a copy") from error


def entry_at(row: Row, *place: object) -> Entry:
    """`read_entry` of a row that was asked for by its place; raises `LedgerError` where it is another's.

    A damaged page can lead SQLite to a row, whole in itself, that is not the one that was looked for.
    """
    entry = read_entry(row)
    if row[: len(place)] != place:
        asked = "/".join(map(str, place))
        raise LedgerError(
            f"in the place of {asked} stands entry {entry.number} of {entry.flow}/{entry.partition}, so the "
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
    marks = (_json(cursor.watermarks), _json(cursor.source_watermarks))
    return sealed((*place, _json(positions), *marks))


def read_cursor(row: Row) -> AckCursor:
    """The cursor of a row of `SELECT_CURSORS`; raises `LedgerError` where it is not what was written."""
    columns = whole(row, f"the cursor of {row[0]}/{row[1]}")
    device, flow, epoch, ordinal, seq, digest, positions_json, *marks = columns
    positions = {
        (step, split): SplitProgress(position, max_time, ended)
        for step, split, position, max_time, ended in json.loads(positions_json)
    }
    watermarks, source_watermarks = map(json.loads, marks)
    return AckCursor(device, flow, epoch, ordinal, seq, digest, positions, watermarks, source_watermarks)


def _json(value: object) -> str:
    return msgspec.json.encode(value, order="sorted").decode()
