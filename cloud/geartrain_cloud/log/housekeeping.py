"""What happens to segments in the ledger after they are written: they are merged, or forgotten.

Used by `SqliteLedger` and by retention, inside one of their transactions. Guarantees: no position and no
clock changes. A merge leaves every entry its rows. A file that entries named is remembered until it is
deleted.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import replace

from geartrain_cloud.log.rows import put
from geartrain_cloud.log.tables import (
    INSERT_SEGMENT,
    REPLACE_ENTRY,
    SELECT_ENTRIES,
    SELECT_SEGMENTS,
    entry_row,
    read_entry,
    read_segment,
    segment_row,
)
from geartrain_cloud.ports import EntryKind, HeldSegment, StoredSegment

# The second condition lets SQLite use the index of the entries that have a segment.
_IN_SEGMENT = SELECT_ENTRIES + "WHERE segment = ? AND segment <> '' ORDER BY number"


def forget_rows(ledger: sqlite3.Connection, name: str, now_us: int) -> None:
    """Make every entry in the segment `name` one without rows; now_us: wall clock."""
    entries = [read_entry(row) for row in ledger.execute(_IN_SEGMENT, (name,))]
    removed = [replace(entry, kind=EntryKind.REMOVED, segment="", first_row=0) for entry in entries]
    ledger.executemany(REPLACE_ENTRY, [entry_row(entry) for entry in removed])
    held = _held(ledger, name)
    if held is not None:
        _retire(ledger, held, now_us)


def merge_rows(ledger: sqlite3.Connection, merged: StoredSegment, names: Sequence[str], now_us: int) -> bool:
    """Let the entries in `names`, whose rows follow one another in `merged`, name it; False where one of them
    is gone.
    """
    held = [found for name in names if (found := _held(ledger, name)) is not None]
    if len(held) < len(names):
        return False
    rows = 0
    for old in held:
        entries = [read_entry(row) for row in ledger.execute(_IN_SEGMENT, (old.segment.name,))]
        moved = [replace(e, segment=merged.name, first_row=e.first_row + rows) for e in entries]
        ledger.executemany(REPLACE_ENTRY, [entry_row(entry) for entry in moved])
        rows += old.rows
        _retire(ledger, old, now_us)
    first, last = held[0], held[-1]
    place = (first.flow, first.channel, first.partition, first.first, last.last)
    ledger.execute(INSERT_SEGMENT, segment_row(HeldSegment(merged, *place, rows)))
    return True


def _held(ledger: sqlite3.Connection, name: str) -> HeldSegment | None:
    row = ledger.execute(SELECT_SEGMENTS + "WHERE name = ?", (name,)).fetchone()
    return None if row is None else read_segment(row)


def _retire(ledger: sqlite3.Connection, held: HeldSegment, now_us: int) -> None:
    ledger.execute("DELETE FROM segments WHERE name = ?", (held.segment.name,))
    place = (held.flow, held.channel, held.partition, held.last)
    put(ledger, "replaced", [(held.segment.name, *place, held.segment.size, now_us)])
