"""What of the log may go: old segments that every query which reads them is done with.

Stands beside ingest, on a running or stopped log. Guarantees: nothing goes that a registered query has not
committed, nor of a channel that no query is registered for; positions and clocks stay, only rows go, and
whoever asks for them is told so; a segment's file is removed after the ledger has forgotten it.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, replace
from pathlib import Path

from geartrain.errors import LedgerError
from geartrain.ports import EntryKind
from geartrain_cloud.log.opening import writable_ledger
from geartrain_cloud.log.tables import REPLACE_ENTRY, SELECT_ENTRIES, entry_row, read_entry


@dataclass(frozen=True, slots=True)
class Retention:
    """How long rows are kept: older_than_s seconds, bytes_max bytes of segments in all; None: no limit."""

    older_than_s: float | None = None
    bytes_max: int | None = None


@dataclass(frozen=True, slots=True)
class Retained:
    """What went, and what is left; held: segments that are due but that a query still needs."""

    segments: int
    bytes: int
    bytes_left: int
    held: int


def retain(folder: Path, limits: Retention, now_us: int) -> Retained:
    """Remove what is due; now_us: wall clock. Raises `LedgerError`."""
    gone: list[tuple[str, int]] = []
    held = 0
    with writable_ledger(folder) as ledger:
        segments = ledger.execute(
            "SELECT name, size, made_us FROM segments ORDER BY made_us, name"
        ).fetchall()
        left = sum(size for _, size, _ in segments)
        for name, size, made_us in segments:
            is_old = limits.older_than_s is not None and now_us - made_us > limits.older_than_s * 1e6
            if not is_old and (limits.bytes_max is None or left <= limits.bytes_max):
                continue
            if not _is_done_with(ledger, name):
                held += 1
                continue
            _forget(ledger, name)
            gone.append((name, size))
            left -= size
    for name, _ in gone:
        try:
            (folder / name).unlink(missing_ok=True)
        except OSError as error:
            raise LedgerError(f"{folder / name} cannot be removed: {error.strerror or error}") from None
    return Retained(len(gone), sum(size for _, size in gone), left, held)


def position_key(channel: str, partition: int) -> str:
    """How positions name a partition of a channel."""
    return f"{channel}/{partition}" if partition else channel


def _is_done_with(ledger: sqlite3.Connection, name: str) -> bool:
    """Whether all queries that read a segment are done with it, and there is at least one."""
    query = "SELECT flow, channel, partition, max(number) FROM entries WHERE segment = ? GROUP BY 1, 2, 3"
    for flow, channel, partition, last in ledger.execute(query, (name,)).fetchall():
        done = "SELECT min(position) FROM queries WHERE flow = ? AND key = ?"
        (position,) = ledger.execute(done, (flow, position_key(channel, partition))).fetchone()
        if position is None or position < last:
            return False
    return True


def _forget(ledger: sqlite3.Connection, name: str) -> None:
    entries = [read_entry(row) for row in ledger.execute(SELECT_ENTRIES + "WHERE segment = ?", (name,))]
    removed = [replace(entry, kind=EntryKind.REMOVED, segment="", first_row=0) for entry in entries]
    ledger.executemany(REPLACE_ENTRY, [entry_row(entry) for entry in removed])
    ledger.execute("DELETE FROM segments WHERE name = ?", (name,))
