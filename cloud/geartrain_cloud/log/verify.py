"""Checks whether the log is what ingest wrote: every row of the ledger, and every byte of every segment.

Beside the log, on a running or a stopped one. Guarantees: a damaged range is reported with its positions,
whichever part of it is damaged. What lies beyond it is still checked. Nothing is written.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from geartrain.errors import LedgerError
from geartrain.records.event_time import START_OF_TIME
from geartrain_cloud.log.checksums import is_whole
from geartrain_cloud.log.opening import ledger_of
from geartrain_cloud.log.rows import COLUMNS, select
from geartrain_cloud.log.segment import open_segment
from geartrain_cloud.log.tables import (
    AT_PLACE,
    LEDGER_FILE,
    SELECT_CURSORS,
    SELECT_ENTRIES,
    SELECT_PLACES,
    SELECT_SEGMENTS,
    read_entry,
    read_segment,
)
from geartrain_cloud.ports import HeldSegment

Place = tuple[str, int]
"""(flow, partition)."""


@dataclass(frozen=True, slots=True)
class Damage:
    """What is damaged: positions `first` to `last` of (flow, partition), or a whole file (0, 0).

    channel: empty where it is not known to be of one.
    """

    flow: str
    partition: int
    channel: str
    first: int
    last: int
    file: str
    reason: str


@dataclass(slots=True)
class Verified:
    """What was read. placed: entries in their places; unchecked: segments of which the ledger
    holds no checksum.
    """

    entries: int = 0
    placed: int = 0
    rows: int = 0
    segments: int = 0
    segment_bytes: int = 0
    unchecked: int = 0
    damages: list[Damage] = field(default_factory=list)


@dataclass(slots=True)
class _Run:
    """The entries of one place and channel that name one segment: their positions, and how many rows they
    need.
    """

    channel: str
    first: int
    last: int
    rows: int


def verify_log(folder: Path) -> Verified:
    """Read the whole log in `folder`; raises `LedgerError` only where there is no ledger to read at all."""
    found = Verified()
    runs: dict[tuple[Place, str], _Run] = {}
    with ledger_of(folder) as ledger:
        # One snapshot: what ingest commits meanwhile is not looked for in what was read before.
        ledger.execute("BEGIN")
        known: dict[str, HeldSegment] = {}
        with _reported(found, "its pages cannot be checked"):
            _check_pages(ledger, found)
        with _reported(found, "its cursors cannot be read"):
            _check_cursors(ledger, found)
        for place in _places(ledger, found):
            _check_entries(ledger, place, found, runs)
        with _reported(found, "its entries cannot be counted"):
            (count,) = ledger.execute("SELECT count(*) FROM entries NOT INDEXED").fetchone()
            if count != found.placed:
                reason = f"it has {count} entries, but {found.placed} are found at their places"
                found.damages.append(Damage("", 0, "", 0, 0, LEDGER_FILE, reason))
        with _reported(found, "its segments cannot be read"):
            known = {row[0]: read_segment(row) for row in ledger.execute(SELECT_SEGMENTS) if is_whole(row)}
        for table in COLUMNS:
            with _reported(found, f"its table {table} cannot be read"):
                _check_rows(ledger, table, found)
    for (place, name), run in runs.items():
        _check_segment(folder, place, name, run, known.get(name), found)
    found.segments = len({name for _, name in runs})
    return found


@contextmanager
def _reported(found: Verified, what: str) -> Iterator[None]:
    """Report what SQLite cannot read, and go on."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        found.damages.append(Damage("", 0, "", 0, 0, LEDGER_FILE, f"{what}: {error}"))


def _places(ledger: sqlite3.Connection, found: Verified) -> list[Place]:
    try:
        return ledger.execute(SELECT_PLACES).fetchall()
    except sqlite3.DatabaseError:  # reported by whoever reads the entries; others know the places, too
        places: set[Place] = set()
    with _reported(found, "its segments cannot be read"):
        places.update(ledger.execute("SELECT DISTINCT flow, partition FROM segments"))
    with _reported(found, "its schemas cannot be read"):
        query = "SELECT DISTINCT flow, partition FROM schemas, fencing"
        places.update(ledger.execute(query))
    return sorted(places)


def _check_pages(ledger: sqlite3.Connection, found: Verified) -> None:
    for (text,) in ledger.execute("PRAGMA integrity_check(20)"):
        if text != "ok":
            found.damages.append(Damage("", 0, "", 0, 0, LEDGER_FILE, f"SQLite says: {text}"))


def _check_cursors(ledger: sqlite3.Connection, found: Verified) -> None:
    for row in ledger.execute(SELECT_CURSORS):
        if not is_whole(row):
            reason = f"the cursor of {row[0]}/{row[1]} is not what was written"
            found.damages.append(Damage(row[1], 0, "", 0, 0, LEDGER_FILE, reason))


def _check_rows(ledger: sqlite3.Connection, table: str, found: Verified) -> None:
    count = sum(not is_whole(row) for row in ledger.execute(select(table)))
    if count:
        reason = f"{count} rows of its table {table} are not what was written"
        found.damages.append(Damage("", 0, "", 0, 0, LEDGER_FILE, reason))


def _check_entries(
    ledger: sqlite3.Connection, place: Place, found: Verified, runs: dict[tuple[Place, str], _Run]
) -> None:
    last, clocks = 0, dict[str, int]()
    for row in _entries(ledger, place, found):
        entry = read_entry(row) if is_whole(row) and row[:2] == place else None
        number = row[2] if type(row[2]) is int else last + 1  # damage may have put anything in its place
        # Neither a row that stands there twice nor one that damage has moved there makes up for another.
        found.placed += number == last + 1 or (number > last and entry is not None)
        if number != last + 1:
            reason = "entries are missing from the ledger"
            if number <= last:
                reason = f"entry {number} stands where {last + 1} should"
            found.damages.append(Damage(*place, "", last + 1, max(last + 1, number - 1), LEDGER_FILE, reason))
        last = max(last, number)
        found.entries += 1
        if entry is None:
            reason = "the entry is not what was written"
            found.damages.append(Damage(*place, "", number, number, LEDGER_FILE, reason))
            continue
        for source, clock in clocks.items():
            if (now := entry.clocks.get(source, START_OF_TIME)) < clock:
                reason = f"the clock of source {source} goes back from {clock} to {now}"
                found.damages.append(Damage(*place, entry.channel, number, number, LEDGER_FILE, reason))
        clocks |= {s: max(clock, clocks.get(s, clock)) for s, clock in entry.clocks.items()}
        if not entry.segment:
            continue
        found.rows += entry.count
        upto = entry.first_row + entry.count
        run = runs.setdefault((place, entry.segment), _Run(entry.channel, number, number, upto))
        run.last, run.rows = number, max(run.rows, upto)
        if run.channel != entry.channel:
            reason = f"its rows are of channel {run.channel} at position {run.first}, of {entry.channel} here"
            found.damages.append(Damage(*place, entry.channel, number, number, entry.segment, reason))


def _entries(ledger: sqlite3.Connection, place: Place, found: Verified) -> Iterator[tuple[Any, ...]]:
    """The rows of a place in order; those that cannot be read are reported, with all between them."""
    query = SELECT_ENTRIES + AT_PLACE + "AND number > ? ORDER BY number"
    last, reason = 0, "the entries are out of their order"
    try:
        # From the least number on: that of a damaged row may be below 1.
        for row in ledger.execute(query, (*place, START_OF_TIME)):
            yield row
            last = max(last, row[2]) if type(row[2]) is int else last + 1
    except sqlite3.DatabaseError as error:
        reason = f"the entries cannot be read: {error}"
        found.damages.append(Damage(*place, "", last + 1, last + 1, LEDGER_FILE, reason))
    beyond = _beyond_damage(ledger, place, last)
    if beyond is not None:
        if beyond > last + 1:
            found.damages.append(Damage(*place, "", last + 1, beyond - 1, LEDGER_FILE, reason))
        with _reported(found, "its entries cannot all be read"):
            yield from ledger.execute(query, (*place, beyond - 1))


def _beyond_damage(ledger: sqlite3.Connection, place: Place, last: int) -> int | None:
    """The first entry behind a damaged page, found from the end of the log; None where there is none."""
    query = SELECT_ENTRIES + AT_PLACE + "AND number > ? ORDER BY number DESC"
    beyond = None
    try:
        for row in ledger.execute(query, (*place, last)):
            beyond = row[2] if type(row[2]) is int and row[2] > last else beyond
    except sqlite3.DatabaseError:  # here the damaged page begins, which was reported
        return beyond
    return beyond


def _check_segment(
    folder: Path, place: Place, name: str, run: _Run, known: HeldSegment | None, found: Verified
) -> None:
    def damaged(reason: str) -> None:
        found.damages.append(Damage(*place, run.channel, run.first, run.last, name, reason))

    path = folder / name
    if not path.is_file():
        damaged("the file is missing: restore it from a copy")
        return
    found.segment_bytes += path.stat().st_size
    if known is None:
        found.unchecked += 1
    try:
        table = open_segment(path, None if known is None else known.segment.digest)[1]
        # Without a checksum a damaged offset could lead to memory that is not the table's.
        table.validate(full=known is None)
    except (LedgerError, pa.ArrowException) as error:
        damaged(str(error))
        return
    if known is not None:
        said = (known.flow, known.partition, known.channel, known.first, known.last)
        if said != (*place, run.channel, run.first, run.last) or known.segment.size != path.stat().st_size:
            damaged(
                f"the ledger says {said}, {known.segment.size} bytes of it: its row is not what was written"
            )
    if table.num_rows < run.rows:
        damaged(f"the file holds {table.num_rows} rows, the ledger says {run.rows}")
