"""The tables of the ledger, and how their rows become the ports' data and back.

Used by `SqliteLedger`, which writes them, and by `LogReader`, which only reads. Guarantees: what was written
comes back equal. docs/data_files.md describes each table.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from typing import Any

from geartrain.errors import LedgerError
from geartrain.ports import AckCursor, Entry, EntryKind, SplitProgress

VERSION = 1
"""The layout below; kept in `PRAGMA user_version`."""

DIGESTS_KEPT = 1_024
"""Running digests remembered of each epoch: far more than an agent's window holds."""

LEDGER_FILE = "ledger.sqlite"

CREATE = """
CREATE TABLE fencing (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    term INTEGER NOT NULL
) STRICT;
INSERT INTO fencing VALUES (1, 0);
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
    PRIMARY KEY (flow, channel, partition, number)
) STRICT, WITHOUT ROWID;
CREATE INDEX assigned ON entries (flow, channel, device) WHERE kind = 'assigned';
CREATE TABLE cursors (
    device TEXT NOT NULL,
    flow TEXT NOT NULL,
    epoch BLOB NOT NULL,
    ordinal INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    digest BLOB NOT NULL,
    positions TEXT NOT NULL,
    watermarks TEXT NOT NULL,
    PRIMARY KEY (device, flow)
) STRICT, WITHOUT ROWID;
CREATE TABLE closed_epochs (
    device TEXT NOT NULL,
    flow TEXT NOT NULL,
    epoch BLOB NOT NULL,
    PRIMARY KEY (device, flow, epoch)
) STRICT, WITHOUT ROWID;
CREATE TABLE digests (
    device TEXT NOT NULL,
    flow TEXT NOT NULL,
    epoch BLOB NOT NULL,
    seq INTEGER NOT NULL,
    digest BLOB NOT NULL,
    PRIMARY KEY (device, flow, epoch, seq)
) STRICT, WITHOUT ROWID;
CREATE TABLE schemas (
    number INTEGER PRIMARY KEY,
    flow TEXT NOT NULL,
    channel TEXT NOT NULL,
    schema_id TEXT NOT NULL,
    text TEXT NOT NULL,
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
    payload BLOB NOT NULL
) STRICT;
CREATE TABLE counters (
    name TEXT PRIMARY KEY,
    total INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
"""

SELECT_ENTRIES = (
    "SELECT flow, channel, partition, number, kind, clock, device, epoch, seq, segment, first_row, count, "
    "detail FROM entries "
)
INSERT_ENTRY = "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
SELECT_CURSORS = "SELECT device, flow, epoch, ordinal, seq, digest, positions, watermarks FROM cursors "
REPLACE_CURSOR = "INSERT OR REPLACE INTO cursors VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
AT_PLACE = "WHERE flow = ? AND channel = ? AND partition = ? "


def check_version(connection: sqlite3.Connection, path: object) -> None:
    """Raise `LedgerError` unless the file is a ledger of this layout."""
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    if found != VERSION:
        raise LedgerError(
            f"{path} is no ledger of version {VERSION} (it says {found}): "
            "use the release that made it, or another log folder"
        )


def entry_row(entry: Entry) -> tuple[Any, ...]:
    """The values of `INSERT_ENTRY`."""
    place = (entry.flow, entry.channel, entry.partition, entry.number, entry.kind.value, entry.clock)
    batch = (entry.device, entry.epoch, entry.seq)
    return (*place, *batch, entry.segment, entry.first_row, entry.count, entry.detail)


def read_entry(row: tuple[Any, ...]) -> Entry:
    """The entry of a row of `SELECT_ENTRIES`."""
    flow, channel, partition, number, kind, clock, device, epoch, seq, segment, first_row, count, detail = row
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


def cursor_row(cursor: AckCursor) -> tuple[Any, ...]:
    """The values of `REPLACE_CURSOR`."""
    positions = [
        [step, split, at.position, at.max_time, at.ended] for (step, split), at in cursor.positions.items()
    ]
    place = (cursor.device, cursor.flow, cursor.epoch, cursor.ordinal, cursor.seq, cursor.digest)
    return (*place, _json(positions), _json(dict(cursor.watermarks)))


def read_cursor(row: tuple[Any, ...]) -> AckCursor:
    """The cursor of a row of `SELECT_CURSORS`."""
    device, flow, epoch, ordinal, seq, digest, positions_json, watermarks_json = row
    positions = {
        (step, split): SplitProgress(position, max_time, ended)
        for step, split, position, max_time, ended in json.loads(positions_json)
    }
    watermarks: Mapping[str, int] = json.loads(watermarks_json)
    return AckCursor(device, flow, epoch, ordinal, seq, digest, positions, watermarks)


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
