"""Every bit of the log's files flipped, one at a time: it is detected or harmless, and the rest is read.

Here every bit of some bytes; `python -m tests.proofs.test_bit_flips_log` takes every bit of every byte of a
segment of 64 KiB, of three pages of the ledger, and of all that one page of each smaller table holds, about
an hour, and prints what became of them.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from geartrain.errors import LedgerError
from geartrain_cloud.log.browse import all_cursors
from geartrain_cloud.log.opening import ledger_of, writable_ledger
from geartrain_cloud.log.queries import commit
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.log.rows import (
    COLUMNS,
    put,
    read_closed_epochs,
    read_digest,
    read_quarantined,
    read_queries,
    read_replaced,
    read_resubmitted,
    read_schema,
    read_schemas,
    read_terms,
    read_totals,
)
from geartrain_cloud.log.segment import open_segment
from geartrain_cloud.log.verify import verify_log
from geartrain_cloud.ports import Entry
from tests.cloud.fleet import FLOW, TestDevice, make_config, running

SEGMENT_BYTES = 64 << 10
SMALL = tuple(table for table in COLUMNS if table != "segments")
Place = int
"""A position of partition 0."""


@dataclass(frozen=True)
class Log:
    """A whole log, and all that can be read of it: by position, the entry and its rows."""

    folder: Path
    content: dict[Place, Any]
    cursors: list[Any]
    small: dict[str, Any]

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger.sqlite"

    def digest(self, seq: int) -> bytes | None:
        """The running digest of a batch of device-1."""
        found: bytes | None = self.small["digests"][seq]
        return found

    @property
    def large(self) -> tuple[Place, Path]:
        """The entry with the segment of 64 KiB, and its file."""
        place = max(self.content, key=lambda p: self.content[p][0].count)
        return place, self.folder / self.content[place][0].segment


def make_log(folder: Path) -> Log:
    """A log of many entries, one of them with a segment of 64 KiB."""

    async def run() -> None:
        config = make_config(folder, ("device-1", "device-2"), group_commit_ms=1, merge=False)
        async with running(config) as world:
            devices = [TestDevice("device-1"), TestDevice("device-2")]
            for device in devices:
                world.net.deliver(device.topic, device.schemas())
                await world.net.acked(device)
            for turn in range(200):
                device = devices[turn % 2]
                count = 1_010 if turn == 60 else 2
                quotes = device.quotes(*(float(turn * i) for i in range(count))) if turn % 30 == 0 else None
                world.net.deliver(device.topic, quotes or device.advance(device.time + 10))
                device.time += 0 if quotes else 10
                await world.net.acked(device)
            later = TestDevice("device-2", b"epoch--2")
            world.net.deliver(device.topic, b"\xff no batch")  # to the quarantine
            world.net.deliver(later.topic, later.hello(2))
            await world.net.until(lambda: world.net.welcomes(later) != [])
            world.net.deliver(later.topic, later.schemas())
            await world.net.acked(later)

    asyncio.run(run())
    commit(folder, "one", FLOW, {"0": 2})
    with writable_ledger(folder) as ledger:
        put(ledger, "replaced", [("segments/stocks/quotes/p0/gone.arrow", FLOW, "quotes", 0, 1, 10, 5)])
        put(ledger, "resubmitted_letters", [(FLOW, 0, 7, 0)])
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as ledger:
        ledger.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return Log(folder, read_all(folder, None), all_cursors(folder), read_small(folder))


def read_small(folder: Path) -> dict[str, Any]:
    """What each smaller table gives, None where that is refused."""

    def digests(ledger: sqlite3.Connection) -> dict[int, bytes | None]:
        return {seq: read_digest(ledger, "device-1", FLOW, b"epoch--1", seq) for seq in range(1, 52)}

    readers: dict[str, Callable[[sqlite3.Connection], Any]] = {
        "fencing": read_terms,
        "closed_epochs": read_closed_epochs,
        "digests": digests,
        "schemas": lambda ledger: (read_schemas(ledger), read_schema(ledger, FLOW, "quotes")),
        "quarantine": lambda ledger: read_quarantined(ledger, None),
        "resubmitted_letters": read_resubmitted,
        "replaced": lambda ledger: read_replaced(ledger, ""),
        "queries": read_queries,
        "counters": read_totals,
    }
    found: dict[str, Any] = {}
    for table, read in readers.items():
        try:
            with ledger_of(folder) as ledger:
                found[table] = read(ledger)
        except LedgerError:
            found[table] = None
    return found


def read_all(folder: Path, known: Iterable[Place] | None) -> dict[Place, Any]:
    """What each position gives, read by itself: (entry, rows), or nothing where that is refused."""
    reader = LogReader(folder)
    if known is None:
        known = range(1, reader.positions(FLOW)["0"] + 1)
    found = {}
    for entry in _entries(reader, list(known)):
        try:
            rows = reader.table(entry).to_pydict() if entry.segment else None
        except LedgerError:
            continue
        found[entry.number] = (entry, rows)
    return found


def _entries(reader: LogReader, known: list[Place]) -> list[Entry]:
    """The entries at the known positions: all at once, or one by one where that is refused."""
    try:
        return reader.entries(FLOW, "0", 0, max(known))
    except LedgerError:
        found: list[Entry] = []
        for number in known:
            with suppress(LedgerError):
                found += reader.entries(FLOW, "0", number - 1, number)
        return found


@contextmanager
def flipped(path: Path, offset: int, bit: int) -> Iterator[None]:
    """The file with one bit flipped, for the block."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        before = os.pread(descriptor, 1, offset)
        os.pwrite(descriptor, bytes([before[0] ^ 1 << bit]), offset)
        try:
            yield
        finally:
            os.pwrite(descriptor, before, offset)
    finally:
        os.close(descriptor)


def flip_segment(log: Log, offsets: Iterable[int]) -> int:
    """Flip every bit of these bytes of the large segment; returns how many, each detected by its checksum."""
    _, path = log.large
    with closing(sqlite3.connect(log.ledger)) as ledger:
        name = path.relative_to(log.folder).as_posix()
        (digest,) = ledger.execute("SELECT digest FROM segments WHERE name = ?", (name,)).fetchone()
    flips = 0
    for offset in offsets:
        for bit in range(8):
            with flipped(path, offset, bit), pytest.raises(LedgerError, match="is damaged"):
                open_segment(path, digest)
            flips += 1
    return flips


def flip_segment_and_read_the_rest(log: Log, offsets: Iterable[int]) -> None:
    """The damaged range is reported, and nothing else is lost."""
    number, path = log.large
    for offset in offsets:
        with flipped(path, offset, offset % 8):
            (damage,) = verify_log(log.folder).damages
            assert (damage.channel, damage.first, damage.last) == ("quotes", number, number)
            assert damage.file == path.relative_to(log.folder).as_posix()
            left = {place: found for place, found in log.content.items() if place != number}
            assert read_all(log.folder, log.content) == left


def pages_of(ledger: Path, table: str) -> list[int]:
    """The leaf pages of a table, by SQLite's file format: of a b-tree of one or two levels."""
    raw, size = ledger.read_bytes(), page_size(ledger)
    with closing(sqlite3.connect(ledger)) as connection:
        query = "SELECT rootpage FROM sqlite_master WHERE name = ?"
        (root,) = connection.execute(query, (table,)).fetchone()
    page = raw[(root - 1) * size : root * size]
    if page[0] in (0x0A, 0x0D):
        return [root]
    assert page[0] == 0x02, "an interior page of an index b-tree"
    cells = int.from_bytes(page[3:5], "big")
    starts = [int.from_bytes(page[12 + 2 * i : 14 + 2 * i], "big") for i in range(cells)]
    return [int.from_bytes(page[s : s + 4], "big") for s in starts] + [int.from_bytes(page[8:12], "big")]


def used(ledger: Path, page: int) -> list[int]:
    """The bytes of a leaf page that say anything: its header, its pointers and its cells."""
    size = page_size(ledger)
    raw = ledger.read_bytes()[(page - 1) * size : page * size]
    cells, start = int.from_bytes(raw[3:5], "big"), int.from_bytes(raw[5:7], "big")
    return [*range(8 + 2 * cells), *range(start, size)]


def page_size(ledger: Path) -> int:
    return int.from_bytes(ledger.read_bytes()[16:18], "big")


def positions_on(log: Log, page: int) -> set[Place]:
    """The positions that are lost with a page: what cannot be read when all of it is zero."""
    size, whole = page_size(log.ledger), log.ledger.read_bytes()
    log.ledger.write_bytes(whole[: (page - 1) * size] + bytes(size) + whole[page * size :])
    try:
        return log.content.keys() - read_all(log.folder, log.content).keys()
    finally:
        log.ledger.write_bytes(whole)


def flip_page(log: Log, page: int, offsets: Iterable[int]) -> Counter[str]:
    """Flip every bit of these bytes of a page of the ledger; returns what became of how many."""
    base, on_page = (page - 1) * page_size(log.ledger), positions_on(log, page)
    became: Counter[str] = Counter()
    for offset in offsets:
        for bit in range(8):
            with flipped(log.ledger, base + offset, bit):
                became[_judged(log, on_page, f"page {page}, byte {offset}, bit {bit}")] += 1
    return became


def _judged(log: Log, on_page: set[Place], where: str) -> str:
    damages = verify_log(log.folder).damages
    found = read_all(log.folder, log.content)
    wrong = {place for place, content in found.items() if content != log.content[place]}
    lost = log.content.keys() - found.keys()
    assert not wrong, f"{where}: {sorted(wrong)[:3]} read otherwise than they were written"
    assert lost <= on_page, f"{where}: {sorted(lost - on_page)[:3]} are lost, which lie on other pages"
    try:
        cursors = all_cursors(log.folder) == log.cursors
    except LedgerError:
        cursors = False
    small = read_small(log.folder)
    forged = {seq for seq, known in (small["digests"] or {}).items() if known not in (None, log.digest(seq))}
    assert not forged, f"{where}: the digests of {sorted(forged)[:3]} are read otherwise than written"
    if not damages:
        others = [table for table, content in small.items() if content != log.small[table]]
        assert not others, f"{where}: {others} are read otherwise than written, and nobody says so"
        assert not lost, f"{where}: {sorted(lost)[:3]} are lost, and nobody says so"
        assert cursors, f"{where}: the cursors are other ones, and nobody says so"
        return "harmless"
    named = {n for d in damages if d.first for n in range(d.first, d.last + 1)}
    if not any(d.file == "ledger.sqlite" and not d.first for d in damages):
        assert lost <= named, f"{where}: {sorted(lost - named)[:3]} are lost and not reported"
    return "detected, nothing lost" if not lost else "detected, records of the page refused"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Log:
    return make_log(tmp_path_factory.mktemp("flips"))


def test_the_log_is_what_these_proofs_need(log: Log) -> None:
    assert verify_log(log.folder).damages == []
    assert log.large[1].stat().st_size >= SEGMENT_BYTES
    assert len(pages_of(log.ledger, "entries")) >= 3


def test_flipped_bits_of_a_segment_are_detected_and_the_rest_is_read(log: Log) -> None:
    size = log.large[1].stat().st_size
    assert flip_segment(log, range(0, size, 97)) == len(range(0, size, 97)) * 8
    flip_segment_and_read_the_rest(log, [0, 7, size // 2 + 1, size - 1])


@pytest.mark.parametrize("table", ["entries", "cursors", "segments"])
def test_flipped_bits_of_a_page_of_the_ledger_are_detected_or_harmless(log: Log, table: str) -> None:
    page = pages_of(log.ledger, table)[len(pages_of(log.ledger, table)) // 2]
    # The page's header and its first pointers, where a bit says most, and some of all the rest.
    became = flip_page(log, page, [*range(0, 16, 3), *range(16, page_size(log.ledger), 331)])
    assert became["detected, records of the page refused"] + became["detected, nothing lost"] > 20
    assert verify_log(log.folder).damages == []


@pytest.mark.parametrize("table", SMALL)
def test_flipped_bits_of_a_smaller_table_are_detected_or_harmless(log: Log, table: str) -> None:
    assert log.small[table]
    page = pages_of(log.ledger, table)[-1]
    offsets = used(log.ledger, page)
    became = flip_page(log, page, offsets[:: max(len(offsets) // 12, 1)])
    assert became["detected, nothing lost"] > len(offsets[:: max(len(offsets) // 12, 1)])
    assert verify_log(log.folder).damages == []


@pytest.mark.parametrize("table", SMALL)
def test_a_changed_row_of_a_smaller_table_is_not_believed(log: Log, tmp_path: Path, table: str) -> None:
    """As a flipped bit deep in a page changes it, which SQLite does not notice."""
    folder, column = tmp_path / "log", COLUMNS[table].split(", ")[-1]
    shutil.copytree(log.folder, folder)
    other = {"digests": "X'00'", "closed_epochs": "X'00'", "schemas": f"{column} || ' '"}
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as ledger, ledger:
        ledger.execute(f"UPDATE {table} SET {column} = {other.get(table, column + ' + 1')}")
    small = read_small(folder)
    assert small.pop(table) in (None, dict.fromkeys(range(1, 52)))
    assert small == {one: log.small[one] for one in small}
    assert any(f"table {table} " in damage.reason for damage in verify_log(folder).damages)


def main(chosen: list[str]) -> None:
    """Every bit of what is chosen: `segment`, or pages of tables of the ledger; prints figures."""
    with tempfile.TemporaryDirectory() as folder:
        log = make_log(Path(folder))
        if "segment" in chosen:
            size = log.large[1].stat().st_size
            print(
                f"segment of {size} bytes: {flip_segment(log, range(size))} flips, all detected", flush=True
            )
            flip_segment_and_read_the_rest(log, range(0, size, 499))
        for table in (one for one in chosen if one != "segment"):
            pages = pages_of(log.ledger, table)
            page = pages[len(pages) // 2]
            offsets = used(log.ledger, page) if table in SMALL else range(page_size(log.ledger))
            became = flip_page(log, page, offsets)
            print(f"page {page}, of {table}: {dict(sorted(became.items()))}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or ["segment", "entries", "cursors", "segments", *SMALL])
