"""Takes out of a stopped log what one device has sent: rows of channels, dead letters, and the quarantine.

Beside the log, while no ingest runs. Guarantees: positions, clocks and digests stay, and so do the rows of
other devices, byte for byte. The rows become entries that only tell clocks, so a replay goes over them as if
the device had sent none. A kill at any moment leaves a whole log, and the next call goes on. When it returns,
no file of the log holds such a row, nor does free room in the ledger.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from geartrain.adapters.files import write_durable
from geartrain.adapters.sqlite import open_to_write, translated
from geartrain.errors import LedgerError
from geartrain.errors.reason import make_reason
from geartrain_cloud.ingest.counters import Counter
from geartrain_cloud.log.entry_reasons import EntryCode
from geartrain_cloud.log.opening import BUSY_S, ledger_of, stopped_log, writable_ledger
from geartrain_cloud.log.part import partition_of, segment_digest
from geartrain_cloud.log.rows import put_terms, put_totals, read_terms, read_totals
from geartrain_cloud.log.tables import (
    INSERT_SEGMENT,
    LEDGER_FILE,
    REPLACE_ENTRY,
    SELECT_ENTRIES,
    SELECT_MEMBERS,
    SELECT_SEGMENTS,
    entry_row,
    read_entry,
    read_segment,
    segment_row,
)
from geartrain_cloud.ports import Entry, EntryKind, HeldSegment, StoredSegment

_NUMBER = re.compile(r"(?P<folder>.*/)(?P<number>\d+)-\d+(m\d+)?\.arrow")
_RUNNING = "gear-ingest is running on it: stop the platform first"


@dataclass(frozen=True, slots=True)
class Erased:
    """What was, or would be, taken out: rows of `flows` in so many segments, and quarantined batches.

    assigned: the flows that the device is still a member of: what it sends on is logged again.
    """

    flows: tuple[str, ...] = ()
    segments: int = 0
    rows: int = 0
    quarantined: int = 0
    assigned: tuple[str, ...] = ()


def erasable(folder: Path, device: str) -> Erased:
    """What the log in `folder` holds of a device; raises `LedgerError`."""
    with ledger_of(folder) as ledger:
        flows = ledger.execute(
            "SELECT DISTINCT flow FROM entries WHERE device = ? AND segment <> '' "
            "UNION SELECT flow FROM quarantine WHERE device = ? ORDER BY flow",
            (device, device),
        ).fetchall()
        segments, rows = ledger.execute(
            "SELECT count(DISTINCT segment), coalesce(sum(count), 0) FROM entries "
            "WHERE device = ? AND segment <> ''",
            (device,),
        ).fetchone()
        (quarantined,) = ledger.execute(
            "SELECT count(*) FROM quarantine WHERE device = ?", (device,)
        ).fetchone()
        members = {flow for flow, _, member in ledger.execute(SELECT_MEMBERS) if member == device}
        ended = {flow for (flow,) in ledger.execute("SELECT DISTINCT flow FROM entries WHERE kind = 'ended'")}
    assigned = tuple(sorted(members - ended))
    return Erased(tuple(flow for (flow,) in flows), segments, rows, quarantined, assigned)


def flows_with(folder: Path, device: str) -> set[str]:
    """The flows to which a device has ever brought rows, those included of which none are left; raises
    `LedgerError`.
    """
    with ledger_of(folder) as ledger:
        rows = ledger.execute(
            "SELECT DISTINCT flow FROM entries WHERE device = ? AND (segment <> '' OR kind = ? "
            "OR detail LIKE '% were erased')",
            (device, EntryKind.REMOVED.value),
        ).fetchall()
    return {flow for (flow,) in rows}


def erase_device(folder: Path, device: str, reached: Callable[[str], None] = lambda what: None) -> Erased:
    """Take what a device has sent out of the log in `folder`.

    reached: is told each step before it is made. Returns what went. Raises `LedgerError`, also while an
    ingest runs, and for a segment that is damaged, which stays.
    """
    with stopped_log(folder, _RUNNING):
        found = erasable(folder, device)
        term = _take(folder)
        for name in _names(folder, device):
            reached(f"rewriting {name}")
            _rewrite(folder, name, device, term, reached)
        reached("emptying the quarantine")
        _empty_quarantine(folder, device)
        reached("removing old files")
        _remove_unnamed(folder)
        reached("compacting the ledger")
        _compact(folder)
    return found


def _take(folder: Path) -> int:
    """A new term, which no ingest has, so that no name of a file comes twice."""
    with writable_ledger(folder) as ledger:
        terms = {partition: term + 1 for partition, term in read_terms(ledger).items()}
        put_terms(ledger, terms)
    return max(terms.values(), default=1)


def _names(folder: Path, device: str) -> list[str]:
    query = "SELECT DISTINCT segment FROM entries WHERE device = ? AND segment <> '' ORDER BY segment"
    with ledger_of(folder) as ledger:
        return [name for (name,) in ledger.execute(query, (device,))]


def _rewrite(folder: Path, name: str, device: str, term: int, reached: Callable[[str], None]) -> None:
    """Have the entries of a segment name one without the rows of a device; the old file goes."""
    with ledger_of(folder) as ledger:
        row = ledger.execute(SELECT_SEGMENTS + "WHERE name = ?", (name,)).fetchone()
        entries = _entries(ledger, name)
    if row is None:
        raise LedgerError(f"the ledger has no checksum of segment {name}, so it cannot be rewritten safely")
    held = read_segment(row)
    kept = [entry for entry in entries if entry.device != device]
    made = _write_kept(folder, held, kept, term)
    reached("committing")
    gone = [_without_rows(entry) for entry in entries if entry.device == device]
    with writable_ledger(folder) as ledger:
        moved, at = [], 0
        for entry in kept:
            moved.append(replace(entry, segment=made.segment.name if made else "", first_row=at))
            at += entry.count
        ledger.executemany(REPLACE_ENTRY, [entry_row(entry) for entry in (*moved, *gone)])
        ledger.execute("DELETE FROM segments WHERE name = ?", (name,))
        if made is not None:
            ledger.execute(INSERT_SEGMENT, segment_row(made))
        _add(ledger, device, {Counter.RECORDS_ERASED: sum(e.count for e in entries if e.device == device)})
    reached("removing the old file")
    _remove(folder / name)


def _write_kept(folder: Path, held: HeldSegment, kept: Sequence[Entry], term: int) -> HeldSegment | None:
    """A durable segment of the rows of `kept`, in their order; None where there are none."""
    from geartrain_cloud.log.segment import take_segment  # pyarrow: control starts without it

    path = folder / held.segment.name
    try:
        data = path.read_bytes()
    except OSError as error:
        raise LedgerError(
            f"segment {path} cannot be read ({error.strerror}): restore it from a copy"
        ) from None
    if segment_digest(data) != held.segment.digest:
        raise LedgerError(f"segment {path} is damaged: restore the file from a copy, then erase again")
    if not kept:
        return None
    data = take_segment(data, [(entry.first_row, entry.count) for entry in kept])
    parts = _NUMBER.fullmatch(held.segment.name)
    if parts is None:
        raise LedgerError(f"segment {held.segment.name!r} has a name that ingest never gave")
    name = f"{parts['folder']}{parts['number']}-{term}m{kept[-1].number}.arrow"
    try:
        write_durable(folder / name, data)
    except OSError as error:
        raise LedgerError(f"{folder / name} cannot be written: {error.strerror or error}") from None
    segment = StoredSegment(name, len(data), segment_digest(data), held.segment.made_us)
    rows = sum(entry.count for entry in kept)
    return replace(held, segment=segment, first=kept[0].number, last=kept[-1].number, rows=rows)


def _entries(ledger: sqlite3.Connection, name: str) -> list[Entry]:
    rows = ledger.execute(SELECT_ENTRIES + "WHERE segment = ? AND segment <> '' ORDER BY number", (name,))
    return [read_entry(row) for row in rows]


def _without_rows(entry: Entry) -> Entry:
    reason = make_reason(EntryCode.ROWS_ERASED, count=entry.count, channel=entry.channel)
    bare = replace(entry, segment="", first_row=0, count=0, channel="")
    return replace(bare, kind=EntryKind.WATERMARK, reason=reason)


def _empty_quarantine(folder: Path, device: str) -> None:
    with writable_ledger(folder) as ledger:
        count, size = ledger.execute(
            "SELECT count(*), coalesce(sum(length(payload)), 0) FROM quarantine WHERE device = ?", (device,)
        ).fetchone()
        ledger.execute("DELETE FROM quarantine WHERE device = ?", (device,))
        _add(ledger, device, {Counter.QUARANTINED_BATCHES: -count, Counter.QUARANTINE_BYTES: -size})


def _add(ledger: sqlite3.Connection, device: str, amounts: dict[Counter, int]) -> None:
    """Change totals of whoever owns the device's partition: the ingest with the nearest scope below it."""
    partition, totals = partition_of(device, len(read_terms(ledger))), read_totals(ledger)
    scope = max((scope for _, scope, _ in totals if scope <= partition), default=0)
    known = {name: total for name, at, total in totals if at == scope}
    changed = {name.value: known.get(name.value, 0) + amount for name, amount in amounts.items() if amount}
    put_totals(ledger, changed, scope)


def _remove_unnamed(folder: Path) -> None:
    """Remove all segments that no entry names: nobody reads while the platform is stopped."""
    with writable_ledger(folder) as ledger:
        ledger.execute("DELETE FROM replaced")
        query = "SELECT name FROM segments UNION SELECT DISTINCT segment FROM entries WHERE segment <> ''"
        named = {name for (name,) in ledger.execute(query)}
    for path in (folder / "segments").rglob("*"):
        if path.is_file() and path.relative_to(folder).as_posix() not in named:
            _remove(path)
    for path in folder.glob("status*.json"):  # it may name values; ingest writes it anew
        _remove(path)


def _compact(folder: Path) -> None:
    """Leave nothing of what was deleted in the ledger, nor in its write-ahead log."""
    path = folder / LEDGER_FILE
    with (
        translated(LedgerError, f"the ledger {path}"),
        closing(open_to_write(path, busy_s=BUSY_S)) as ledger,
    ):
        ledger.execute("VACUUM")
        busy, *_ = ledger.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise LedgerError(f"the ledger {path} is read by another program: stop the platform, erase again")


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise LedgerError(f"{path} cannot be removed: {error.strerror or error}") from None
